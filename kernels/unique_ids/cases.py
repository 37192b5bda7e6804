"""Inputs of unique_ids for tests and benchmarks, and what they cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import INDEX_BYTES, covering, draw_ids, generator, name_of
from ..cost import Cost


@dataclass(frozen=True)
class Case:
    """`n` ids of `rows` rows."""

    name: str
    n: int
    rows: int
    spread: str = "uniform"
    index: torch.dtype = torch.int64


_CHOICES = covering(
    {
        "n": (0, 1, 30),
        "rows": (1, 20, 2_000_000_000),
        "spread": ("uniform", "same"),
        "index": (torch.int32, torch.int64),
    }
)
CASES = (
    *(Case(name_of(choice), **choice) for choice in _CHOICES),
    Case("zipf", n=40, rows=50, spread="zipf"),
    Case("beyond_int32", n=20, rows=2**40),
)
BENCH = (
    Case("uniform", n=8192 * 20, rows=500_000),
    Case("zipf", n=8192 * 20, rows=500_000, spread="zipf"),
)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `unique_ids`."""
    return {"ids": draw_ids(case.n, case.rows, case.spread, case.index, generator(seed)).to(device)}


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of one pass over keys and positions and of the results: a lower bound, a sort takes a few passes."""
    ids = inputs["ids"]
    return Cost(bytes={"memory": len(ids) * (3 * ids.dtype.itemsize + 4 * INDEX_BYTES)})


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """Nothing: integers are exact."""
    return {}
