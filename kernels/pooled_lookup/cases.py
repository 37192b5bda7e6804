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
    sum_bound,
)
from ..cost import Cost
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


_CHOICES = covering(
    {
        "dim": (1, 3, 16, 33, 128),
        "pooling": ("sum", "mean"),
        "weighted": (False, True),
        "index": (torch.int32, torch.int64),
        "dtype": (torch.float32, torch.float64),
        "spread": ("uniform", "same", "zipf"),
        "rows": (1, 40),
    },
    allowed=lambda choice: not (choice["weighted"] and choice["pooling"] == "mean"),
)
CASES = (
    *(Case(name_of(choice), bags=4, hotness=3, **choice) for choice in _CHOICES),
    Case("empty_batch", bags=0, hotness=0, rows=5, dim=16),
    Case("empty_bags-sum", bags=3, hotness=0, rows=5, dim=3, weighted=True),
    Case("empty_bags-mean", bags=3, hotness=0, rows=5, dim=3, pooling="mean"),
    Case("long_bags", bags=2, hotness=21, rows=7, dim=3, weighted=True),
)
BENCH = (
    Case("uniform", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False),
    Case("zipf", bags=8192, hotness=20, rows=500_000, dim=128, ragged=False, spread="zipf"),
)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `pooled_lookup`."""
    random = generator(seed)
    offsets = draw_offsets(case.bags, case.hotness, case.ragged, random)
    n = int(offsets[-1])
    return {
        "table": normal((case.rows, case.dim), case.dtype, random).to(device),
        "ids": draw_ids(n, case.rows, case.spread, case.index, random).to(device),
        "offsets": offsets.to(device),
        "weights": normal((n,), case.dtype, random).to(device) if case.weighted else None,
        "pooling": case.pooling,
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: every id reads its row, every bag writes one."""
    table, ids, offsets, weights = (inputs[name] for name in ("table", "ids", "offsets", "weights"))
    row = table.shape[1] * table.dtype.itemsize
    bags = len(offsets) - 1
    memory = len(ids) * (row + ids.dtype.itemsize) + bags * row + len(offsets) * INDEX_BYTES
    if weights is not None:
        memory += len(ids) * table.dtype.itemsize
    flops = len(ids) * table.shape[1] * (1 if weights is None else 2)
    return Cost(bytes={"memory": memory}, flops=flops)


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the float64 truth, by name of result."""
    terms = pooled_lookup(**copied(inputs, double=True, magnitudes=True))
    return {"out": sum_bound(terms, inputs["offsets"].diff()[:, None], eps)}
