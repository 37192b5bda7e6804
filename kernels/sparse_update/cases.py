"""Inputs of sparse_update for tests and benchmarks, and what they cost: those of a lookup, seen from behind."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from .._cases import covering, generator, name_of
from ..cost import Cost
from ..pooled_lookup import cases as lookup
from ..segment_grads import cases as segments
from ..unique_ids._torch import unique_ids


@dataclass(frozen=True)
class Case(lookup.Case):
    """A lookup's case and the optimizer that follows it."""

    optimizer: str = "sgd"


_CHOICES = covering(
    {
        "dim": (1, 3, 16, 33, 128),
        "optimizer": ("sgd", "rowwise_adagrad"),
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
    Case("empty_batch", bags=0, hotness=0, rows=5, dim=16, optimizer="rowwise_adagrad"),
    Case("empty_bags", bags=3, hotness=0, rows=5, dim=3),
    Case("long_walk", bags=40, hotness=1, rows=3, dim=3, spread="same", optimizer="rowwise_adagrad"),
)
BENCH = tuple(Case(**asdict(case), optimizer="rowwise_adagrad") for case in lookup.BENCH)

LR, EPS = 0.05, 1e-8


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `sparse_update`; `table` and `state` change in place."""
    forward = lookup.make(case, seed, device)
    random = generator(seed + 2)
    state = torch.rand(case.rows, generator=random, dtype=torch.float64).to(case.dtype).to(device)
    return {
        "table": forward["table"],
        "state": None if case.optimizer == "sgd" else state,
        "rows": unique_ids(forward["ids"])[0],
        **segments.make(case, seed, device),
        "optimizer": case.optimizer,
        "lr": LR,
        "eps": EPS,
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: segment_grads without its result, then touched rows and state read and written."""
    table, state, rows = inputs["table"], inputs["state"], inputs["rows"]
    summed = segments.cost(inputs)
    row = table.shape[1] * table.dtype.itemsize
    memory = summed.bytes["memory"] + len(rows) * (row + rows.dtype.itemsize)
    if state is not None:
        memory += 2 * len(rows) * state.dtype.itemsize
    return Cost(bytes={"memory": memory}, flops=summed.flops + 5 * len(rows) * table.shape[1])
