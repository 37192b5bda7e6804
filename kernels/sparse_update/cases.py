"""Inputs of sparse_update for tests and benchmarks, and what they cost: those of a lookup, seen from behind."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._cases import copied, covering, generator, name_of
from ..cost import Cost
from ..pooled_lookup import cases as lookup
from ..segment_grads import cases as segments
from ..segment_grads._torch import segment_grads
from ..unique_ids._torch import unique_ids
from .optimizer import RULES, Optimizer, compute_dtype, numbers_of, state_like
from .rounding import MANTISSA_BITS


@dataclass(frozen=True)
class Case(lookup.Case):
    """A lookup's case and the optimizer that follows it; `dtype` is the table's, `decay` as `Optimizer.decay`."""

    optimizer: str = "sgd"
    decay: str = "none"
    clip: float | None = None
    stochastic: bool = False


_CHOICES = covering(
    {
        "dim": (1, 3, 33),
        "optimizer": RULES,
        "dtype": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
        "decay": ("none", "l2", "decoupled"),
        "clip": (None, 1.0),
        "stochastic": (False, True),
        "weighted": (False, True),
    },
    allowed=lambda choice: choice["dtype"] in MANTISSA_BITS or not choice["stochastic"],
)
CASES = (
    *(
        Case(
            name_of(choice),
            bags=4,
            hotness=3,
            rows=40,
            spread=("uniform", "same", "zipf")[n % 3],
            index=(torch.int32, torch.int64)[n % 2],
            pooling="sum" if choice["weighted"] or n % 2 else "mean",
            **choice,
        )
        for n, choice in enumerate(_CHOICES)
    ),
    Case("wide", bags=2, hotness=2, rows=9, dim=128, optimizer="adam"),
    Case("empty_batch", bags=0, hotness=0, rows=5, dim=16, optimizer="rowwise_adagrad"),
    Case("empty_bags", bags=3, hotness=0, rows=5, dim=3),
    Case("long_walk", bags=40, hotness=1, rows=3, dim=3, spread="same", optimizer="rowwise_adagrad"),
)
BENCH = tuple(
    Case(**{**asdict(case), "name": f"{case.name}-{rule}"}, optimizer=rule)
    for case in lookup.BENCH
    if case.dtype == torch.float32 and case.pooling == "sum"
    for rule in RULES
)

LR, STEP, GRAD_SCALE, DECAY = 0.05, 3, 0.5, 0.1


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `sparse_update`; `table` and `states` change in place."""
    compute = replace(case, dtype=compute_dtype(case.dtype))
    forward = lookup.make(compute, seed, device)
    random = generator(seed + 2)
    optimizer = Optimizer(
        case.optimizer,
        weight_decay=0.0 if case.decay == "none" else DECAY,
        decoupled=case.decay == "decoupled",
        clip_row_norm=case.clip,
        stochastic_rounding=case.stochastic,
        seed=seed,
    )
    table = forward["table"].to(case.dtype)
    states = (torch.rand(state.shape, generator=random).to(state) for state in state_like(table, optimizer))
    return {
        "table": table,
        "states": tuple(states),
        "rows": unique_ids(forward["ids"])[0],
        **segments.make(compute, seed, device),
        "optimizer": optimizer,
        "lr": LR,
        "step": STEP,
        "grad_scale": 1.0 if case.clip is None else GRAD_SCALE,
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: segment_grads without its result, then touched rows and states read and written.

    Flops: a handful for each number of a row that is read.
    """
    table, states, rows = inputs["table"], inputs["states"], inputs["rows"]
    summed = segments.cost(inputs)
    u, dim = len(rows), table.shape[1]
    grads = u * dim * inputs["grad_out"].itemsize  # counted by segment_grads, and not written here
    kept = sum(state[:1].nbytes for state in (table, *states))
    memory = summed.bytes["memory"] - grads + u * (2 * kept + rows.itemsize)
    return Cost(bytes={"memory": memory}, flops=summed.flops + 5 * u * dim * (1 + len(states)))


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """How far each number of a right result may be from the float64 truth, by name of result.

    Carries an error e of the gradient g through the rule to first order (|g| is `size`), each operation adding eps = 2u
    of its result, so that float64 inputs, whose truth rounds too, are covered; doubled in the end for the rest. Storing
    in the table's format then moves a weight by at most half a unit in its last place, stochastically by one.
    """
    table, rows, optimizer = inputs["table"].double(), inputs["rows"].long(), inputs["optimizer"]
    n = numbers_of(optimizer, inputs["lr"], inputs["step"], inputs["grad_scale"])
    states = [state.double()[rows] for state in inputs["states"]]
    dim, weight = table.shape[1], table[rows].abs()
    sums = {name: inputs[name] for name in ("grad_out", "offsets", "weights", "pooling", "order", "starts")}
    size = n.grad_scale * segment_grads(**copied(sums, double=True)).abs()
    e = n.grad_scale * segments.bound(sums, eps)["out"] + eps * size

    if n.clip < math.inf:  # g * min(1, clip / norm); the norm is off by |e|, and by the rounding of dim + 2 operations
        norm = size.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        factor = (n.clip / norm).clamp(max=1)
        e = factor * (e + size * (e.norm(dim=1, keepdim=True) / norm + (dim + 4) * eps))
        size = factor * size
    if optimizer.decay == "l2":
        size = size + n.decay * weight
        e = e + 2 * eps * size

    off: dict[str, Tensor] = {}
    squares, squares_off = size.square(), 2 * size * e + eps * size.square()
    if optimizer.name.startswith("rowwise"):  # a mean: dim - 1 additions and a division
        squares, squares_off = (x.mean(1) for x in (squares, squares_off))
        squares_off = squares_off + dim * eps * squares
    step, step_off = size, e
    if optimizer.name.endswith("adam"):
        step = n.beta1 * states[0] + n.rest1 * size
        step_off = n.rest1 * e + 4 * eps * step
        off["states0"] = step_off
    if optimizer.name != "sgd":
        keep, add = (n.beta2, n.rest2) if optimizer.name.endswith("adam") else (1.0, 1.0)
        before = keep * states[-1]
        state_off = add * squares_off + 4 * eps * (before + add * squares)
        off[f"states{len(states) - 1}"] = state_off
        # |sqrt a - sqrt b| <= |a - b| / sqrt b; the new state is at least `before`, which cases draw > 0
        root = before.sqrt() * n.unbias
        root_off = state_off / before.sqrt() * n.unbias + 4 * eps * (before + add * squares).sqrt() * n.unbias
        if root.ndim == 1:
            root, root_off = root[:, None], root_off[:, None]
        step_off = step_off / root + step * root_off / root.square() + 4 * eps * step / root
        step = step / root
    moved = weight + n.rate * step
    off["table"] = n.rate * step_off + 6 * eps * moved
    off = {name: 2 * value for name, value in off.items()}
    format_ = torch.finfo(inputs["table"].dtype)
    units = 1.0 if optimizer.stochastic_rounding else 0.5
    off["table"] += units * format_.eps * (moved + off["table"]).clamp(min=format_.tiny)
    return {name: _at_rows(value, rows, len(table)) for name, value in off.items()}


def _at_rows(value: Tensor, rows: Tensor, height: int) -> Tensor:
    """`value` at `rows` of an array that is 0 elsewhere: untouched rows may not be off at all."""
    whole = value.new_zeros(height, *value.shape[1:])
    whole[rows] = value
    return whole
