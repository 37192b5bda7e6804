"""Inputs of row_copy for tests and benchmarks, and what they cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import covering, generator, name_of, normal
from ..cost import Cost
from . import dim_of, new_rows
from ._torch import pack
from ._torch import row_copy as truth


@dataclass(frozen=True)
class Case:
    """`n` of `rows` rows of `dim` numbers from format `given` to format `to`.

    `move`: `gather`, `scatter`, `both` (slots to rows, some of them negative) or `all` (no index).
    """

    name: str
    n: int
    rows: int
    dim: int
    given: torch.dtype
    to: torch.dtype
    move: str = "both"
    index: torch.dtype = torch.int64


_FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)
_CHOICES = covering(
    {
        "given": _FORMATS,
        "to": _FORMATS,
        "dim": (1, 3, 32, 33),
        "move": ("gather", "scatter", "both", "all"),
        "index": (torch.int32, torch.int64),
    }
)
CASES = (
    *(Case(name_of(choice), n=5, rows=9, **choice) for choice in _CHOICES),
    Case("nothing", n=0, rows=3, dim=3, given=torch.float32, to=torch.float16),
)
BENCH = tuple(
    Case(name, n=50_000, rows=250_000, dim=128, given=given, to=to)
    for name, given, to in (
        ("float32", torch.float32, torch.float32),
        ("to_float16", torch.float32, torch.float16),
        ("to_bfloat16", torch.float32, torch.bfloat16),
        ("to_int8", torch.float32, torch.uint8),
        ("from_int8", torch.uint8, torch.float32),
    )
)


def draw_rows(rows: int, dim: int, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Standard normal rows in the format of `dtype`."""
    numbers = normal((rows, dim), torch.float32 if dtype == torch.uint8 else dtype, random)
    return pack(numbers) if dtype == torch.uint8 else numbers


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `row_copy`; `dst` changes in place. With `both`, every fourth pair is skipped."""
    random = generator(seed)
    scattered = case.move in ("scatter", "both")
    gathered = case.move in ("gather", "both")
    dst_rows = torch.randperm(case.rows, generator=random)[: case.n] if scattered else None
    src_rows = torch.randint(case.rows, (case.n,), generator=random) if gathered else None
    if src_rows is not None and dst_rows is not None:
        src_rows[1::4], dst_rows[3::4] = -1, -1
    inputs = {
        "dst": draw_rows(case.rows if scattered else case.n, case.dim, case.to, random),
        "src": draw_rows(case.rows if gathered else case.n, case.dim, case.given, random),
        "src_rows": src_rows if src_rows is None else src_rows.to(case.index),
        "dst_rows": dst_rows if dst_rows is None else dst_rows.to(case.index),
    }
    return {name: value if value is None else value.to(device) for name, value in inputs.items()}


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: rows read and written, and the index."""
    src, dst, src_rows, dst_rows = (inputs[name] for name in ("src", "dst", "src_rows", "dst_rows"))
    n = len(src) if src_rows is None else len(src_rows)
    memory = n * sum(rows.shape[1] * rows.itemsize for rows in (src, dst))
    memory += sum(rows.nbytes for rows in (src_rows, dst_rows) if rows is not None)
    return Cost(bytes={"memory": memory})


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the truth, which keeps `dst` in float64 (bytes are exact).

    `eps` is of no use here: nothing is summed.
    """
    src, dst = inputs["src"], inputs["dst"]
    if dst.dtype == torch.uint8:
        return {}
    exact = new_rows(len(dst), dim_of(dst), torch.float64, dst.device)
    exact.copy_(dst)
    truth(src if src.dtype == torch.uint8 else src.double(), exact, inputs["src_rows"], inputs["dst_rows"])
    if dst.dtype in (src.dtype, torch.float64):
        # Copied, or widened from float32; a float64 that went through float32 keeps what that rounding left.
        return {"dst": torch.zeros_like(exact)}
    # Half a unit in the last place of the format; float64 is rounded to float32 first, at most another 2^-24.
    half, smallest = torch.finfo(dst.dtype).eps / 2, torch.finfo(dst.dtype).smallest_normal
    return {"dst": (half + 2.0**-24) * exact.abs() + half * smallest}
