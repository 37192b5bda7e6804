"""Inputs of segment_grads for tests and benchmarks, and what they cost: those of a lookup, seen from behind."""

from typing import Any

import torch
from torch import Tensor

from .._cases import INDEX_BYTES, copied, covering, generator, name_of, normal, sum_bound
from ..cost import Cost
from ..pooled_lookup import cases as lookup
from ..pooled_lookup._torch import pooled_max
from ..pooled_lookup.cases import Case
from ..unique_ids._torch import unique_ids
from ._torch import segment_grads

_CHOICES = covering(
    {
        "dim": (1, 3, 16, 33, 128),
        "pooling": ("sum", "mean", "max"),
        "weighted": (False, True),
        "dtype": (torch.float32, torch.float64),
        "spread": ("uniform", "same", "zipf"),
        "rows": (1, 40),
    },
    allowed=lambda choice: not choice["weighted"] or choice["pooling"] == "sum",
)
CASES = (
    *(Case(name_of(choice), bags=4, hotness=3, **choice) for choice in _CHOICES),
    Case("empty_batch", bags=0, hotness=0, rows=5, dim=16),
    Case("empty_bags-sum", bags=3, hotness=0, rows=5, dim=3, weighted=True),
    Case("empty_bags-mean", bags=3, hotness=0, rows=5, dim=3, pooling="mean"),
    Case("empty_bags-max", bags=3, hotness=0, rows=5, dim=3, pooling="max"),
    Case("long_bags", bags=2, hotness=21, rows=7, dim=3, weighted=True),
)
BENCH = tuple(case for case in lookup.BENCH if case.dtype == torch.float32)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `segment_grads`."""
    forward = lookup.make(case, seed, device)
    _, _, order, starts = unique_ids(forward["ids"])
    grads = {
        "grad_out": normal((case.bags, case.dim), case.dtype, generator(seed + 1)).to(device),
        "offsets": forward["offsets"],
        "weights": forward["weights"],
        "pooling": case.pooling,
        "order": order,
        "starts": starts,
    }
    if case.pooling == "max":
        grads["winner"] = pooled_max(forward["table"], forward["ids"], forward["offsets"])[1]
    return grads


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract, repeated reads of a bag's gradient counted as if from memory."""
    grad_out, weights, order, starts = (inputs[name] for name in ("grad_out", "weights", "order", "starts"))
    row = grad_out.shape[1] * grad_out.dtype.itemsize
    n, segments = len(order), len(starts) - 1
    memory = n * (row + 2 * INDEX_BYTES) + segments * (row + INDEX_BYTES)
    if inputs.get("winner") is not None:
        memory += n * grad_out.shape[1] * INDEX_BYTES
    if weights is not None:
        memory += n * grad_out.dtype.itemsize
    return Cost(bytes={"memory": memory}, flops=n * grad_out.shape[1] * (1 if weights is None else 2))


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the float64 truth, by name of result."""
    terms = segment_grads(**copied(inputs, double=True, magnitudes=True))
    return {"out": sum_bound(terms, inputs["starts"].diff()[:, None], eps)}
