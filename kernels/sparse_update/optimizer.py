"""The rules of `sparse_update` and their states: what is constant in a run (`Optimizer`) and in a step (`Numbers`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

RULES = ("sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam")
STATES = {
    "sgd": (),
    "adagrad": ("cell",),
    "rowwise_adagrad": ("row",),
    "adam": ("cell", "cell"),
    "rowwise_adam": ("cell", "row"),
}
"""What each state of a rule has a number for: every cell of the table, or every row."""


@dataclass(frozen=True)
class Optimizer:
    """A rule of `sparse_update` (its docstring has the formulas). Learning rate and step come with each call.

    `weight_decay` is added to the gradient as `weight_decay * weight` (L2), or with `decoupled` taken from the weight
    as `lr * weight_decay * weight`; on touched rows only. `clip_row_norm`: longest gradient of a row (2-norm), before
    decay. `stochastic_rounding` (float16 and bfloat16 tables; the others have nothing to round) draws from `seed`.

    Raises ValueError for an unknown name or a number out of its range.
    """

    name: str = "rowwise_adagrad"
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    decoupled: bool = False
    clip_row_norm: float | None = None
    stochastic_rounding: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise ValueError(f"unknown optimizer {self.name!r}: choose one of {', '.join(RULES)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 0 <= {name} < 1, given {getattr(self, name)}")
        for name in ("eps", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number >= 0, given {getattr(self, name)}")
        if self.clip_row_norm is not None and not 0 < self.clip_row_norm < math.inf:
            raise ValueError(f"clip_row_norm: expected a finite number > 0 or None, given {self.clip_row_norm}")

    @property
    def decay(self) -> str:
        """`none`, `l2` or `decoupled`."""
        if not self.weight_decay:
            return "none"
        return "decoupled" if self.decoupled else "l2"


class Numbers(NamedTuple):
    """What a step multiplies with, worked out in float64 once per call: run-time values of every kernel.

    `rate` is lr, for Adam divided by 1 - beta1^step; `unbias` is 1 / sqrt(1 - beta2^step); `decay` is the weight decay,
    times lr if decoupled; `clip` is inf for none.
    """

    rate: float
    eps: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float
    unbias: float
    decay: float
    clip: float
    grad_scale: float


def numbers_of(optimizer: Optimizer, lr: float, step: int, grad_scale: float) -> Numbers:
    """The Numbers of one step. Raises ValueError for a rule of Adam's at a step < 1."""
    rate, unbias = lr, 1.0
    if optimizer.name in ("adam", "rowwise_adam"):
        if step < 1:
            raise ValueError(f"step: expected >= 1 for {optimizer.name} (the first step is 1), given {step}")
        rate = lr / (1 - optimizer.beta1**step)
        unbias = (1 - optimizer.beta2**step) ** -0.5
    return Numbers(
        rate=rate,
        eps=optimizer.eps,
        beta1=optimizer.beta1,
        rest1=1 - optimizer.beta1,
        beta2=optimizer.beta2,
        rest2=1 - optimizer.beta2,
        unbias=unbias,
        decay=optimizer.weight_decay * (lr if optimizer.decoupled else 1.0),
        clip=math.inf if optimizer.clip_row_norm is None else optimizer.clip_row_norm,
        grad_scale=grad_scale,
    )


def compute_dtype(table: torch.dtype) -> torch.dtype:
    """What a table's gradients and states are kept, and its steps worked out, in: float64 for float64, else float32."""
    return torch.float64 if table == torch.float64 else torch.float32


def state_like(table: Tensor, optimizer: Optimizer) -> tuple[Tensor, ...]:
    """The zero states of `optimizer` for `table` [rows, dim]: [rows, dim] or [rows], so that a row can take its own."""
    dtype = compute_dtype(table.dtype)
    shapes = {"cell": table.shape, "row": table.shape[:1]}
    return tuple(table.new_zeros(shapes[kind], dtype=dtype) for kind in STATES[optimizer.name])


def check_states(table: Tensor, states: Sequence[Tensor], name: str) -> None:
    """Hold `states` to what `state_like` makes."""
    kinds, dtype = STATES[name], compute_dtype(table.dtype)
    expected = [tuple(table.shape if kind == "cell" else table.shape[:1]) for kind in kinds]
    given = [tuple(state.shape) for state in states]
    if given != expected or any(s.dtype != dtype or not s.is_contiguous() for s in states):
        kinds_given = [f"{state.dtype} {tuple(state.shape)}" for state in states]
        raise ValueError(f"states: expected contiguous {dtype} {expected} for {name}, given {kinds_given}")
