"""Inputs of pooled_lookup for tests and benchmarks, and what they cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import (
    INDEX_BYTES,
    copied,
    covering,
    draw_ids,
    draw_offsets,
    generator,
    name_of,
    normal,
    rounded_bound,
    sum_bound,
)
from ..bags import accumulator
from ..cost import Cost
from . import OUTPUTS, TABLES
from ._torch import pooled_lookup


@dataclass(frozen=True)
class Case:
    """`bags` bags of about `hotness` ids, `spread` over a table of `rows` x `dim`."""

    name: str
    bags: int
    hotness: int
    rows: int
    dim: int
    spread: str = "uniform"
    ragged: bool = True
    index: torch.dtype = torch.int64
    dtype: torch.dtype = torch.float32
    weighted: bool = False
    pooling: str = "sum"
    out: torch.dtype | None = None


def _allowed(choice: dict[str, Any]) -> bool:
    if choice["weighted"] and choice["pooling"] in ("mean", "max"):
        return False
    return choice["dtype"] != torch.float64 or choice["out"] is None


_CHOICES = covering(
    {
        "dim": (1, 3, 16, 33, 128),
        "pooling": ("sum", "mean", "max", "none"),
        "weighted": (False, True),
        "index": (torch.int32, torch.int64),
        "dtype": TABLES,
        "out": (None, *OUTPUTS),
        "spread": ("uniform", "same", "zipf"),
        "rows": (1, 40),
    },
    _allowed,
)
CASES = (
    *(Case(name_of(choice), bags=4, hotness=3, **choice) for choice in _CHOICES),
    Case("empty_batch", bags=0, hotness=0, rows=5, dim=16),
    Case("empty_bags-sum", bags=3, hotness=0, rows=5, dim=3, weighted=True),
    Case("empty_bags-mean", bags=3, hotness=0, rows=5, dim=3, pooling="mean"),
    Case("empty_bags-max", bags=3, hotness=0, rows=5, dim=3, pooling="max"),
    Case("many_columns", bags=3, hotness=3, rows=40, dim=209, dtype=torch.uint8, weighted=True),
    Case("long_bags", bags=2, hotness=21, rows=7, dim=3, weighted=True),
)
BENCH = (
    Case("uniform", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False),
    Case("zipf", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False, spread="zipf"),
    Case("float16", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False, dtype=torch.float16),
    Case("int8", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False, dtype=torch.uint8),
)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `pooled_lookup`."""
    random = generator(seed)
    offsets = draw_offsets(case.bags, case.hotness, case.ragged, random)
    n = int(offsets[-1])
    scale_bias = None
    if case.dtype == torch.uint8:
        table = torch.randint(256, (case.rows, case.dim), generator=random).to(torch.uint8)
        scale_bias = normal((case.rows, 2), torch.float32, random).to(device)
    else:
        table = normal((case.rows, case.dim), case.dtype, random)
    ids = draw_ids(n, case.rows, case.spread, case.index, random)
    weights = normal((n,), accumulator(case.dtype), random).to(device) if case.weighted else None
    return {
        "table": table.to(device),
        "ids": ids.to(device),
        "offsets": offsets.to(device),
        "weights": weights,
        "pooling": case.pooling,
        "scale_bias": scale_bias,
        "out_dtype": case.out or (torch.float32 if case.dtype == torch.uint8 else case.dtype),
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: every id reads its row, every bag writes one."""
    table, ids, offsets, weights = (inputs[name] for name in ("table", "ids", "offsets", "weights"))
    dim, out_dtype = table.shape[1], inputs.get("out_dtype") or table.dtype
    row = dim * table.dtype.itemsize
    if inputs.get("scale_bias") is not None:
        row += 2 * torch.float32.itemsize
    results = len(ids) if inputs["pooling"] == "none" else len(offsets) - 1
    memory = len(ids) * (row + ids.dtype.itemsize) + results * dim * out_dtype.itemsize + len(offsets) * INDEX_BYTES
    if weights is not None:
        memory += len(ids) * weights.dtype.itemsize
    flops = len(ids) * dim * (1 if weights is None else 2)
    return Cost(bytes={"memory": memory}, flops=flops)


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the float64 truth, by name of result.

    `eps` is that of the sums. `max` and `none` have sums of one term; a row of bytes rounds a product and a sum more,
    which two further terms cover.
    """
    terms = pooled_lookup(**copied(inputs, double=True, magnitudes=True))
    one = inputs["pooling"] in ("max", "none")
    n = torch.ones_like(terms) if one else inputs["offsets"].diff()[:, None]
    off = sum_bound(terms, n if inputs.get("scale_bias") is None else n + 2, eps)
    out_dtype = inputs.get("out_dtype") or inputs["table"].dtype
    if out_dtype == accumulator(inputs["table"].dtype):
        return {"out": off}
    return {"out": rounded_bound(off, pooled_lookup(**copied(inputs, double=True)), out_dtype)}
