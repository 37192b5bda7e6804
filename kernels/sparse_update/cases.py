"""Inputs of sparse_update for tests and benchmarks, and what they cost: those of a lookup, seen from behind."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import copied, covering, generator, name_of
from ..cost import Cost
from ..pooled_lookup import cases as lookup
from ..segment_grads import cases as segments
from ..segment_grads._torch import segment_grads
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


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the float64 truth, by name of result.

    Propagates e, the bound of the gradient g (|g| <= big), through the rule: to first order, doubled for the rest.
    """
    table, state, lr, rows = inputs["table"].double(), inputs["state"], inputs["lr"], inputs["rows"].long()
    names = ("grad_out", "offsets", "weights", "pooling", "order", "starts")
    sums = {name: inputs[name] for name in names}
    big = segment_grads(**copied(sums, double=True, magnitudes=True))
    e = segments.bound(sums, eps)["out"]
    off = torch.zeros_like(table)
    if state is None:  # rounding of lr, of lr * g and of the subtraction
        off[rows] = lr * e + eps * (table[rows].abs() + 2 * lr * big)
        return {"table": off}
    # mean g^2: each square is off by 2 big e; the squares, their sum, a division and an addition round dim + 2 times.
    before = state.double()[rows]
    grown = before + big.square().mean(1)
    state_off = torch.zeros_like(state, dtype=torch.float64)
    state_off[rows] = 2 * (2 * big * e).mean(1) + (table.shape[1] + 2) * eps * grown
    # |sqrt a - sqrt b| <= |a - b| / sqrt b, and the state only grows: b >= the state before, which cases draw > 0.
    root = before.sqrt()[:, None]
    root_off = state_off[rows][:, None] / root
    step_off = lr * (e / root + big * root_off / root.square()) + 4 * eps * lr * big / root
    off[rows] = 2 * step_off + eps * table[rows].abs()
    return {"table": off, "state": state_off}
