"""The Tier protocol: where rows live that are not on the device, each with its optimizer states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels import Optimizer, state_like


@dataclass(frozen=True)
class StoreSpec:
    """What a store is asked to hold: `rows` x `dim` numbers of `dtype` and the states of `optimizer`.

    `initial(rows)` gives rows [n] int64 as they are before training, [n, dim]: a function of the row alone, so that any
    row can be made when it is first needed; `whole()` gives all of them at once, [rows, dim]. `label` is the team's,
    `table_of(row)` the table that a row belongs to; errors name them.
    """

    label: str
    rows: int
    dim: int
    dtype: torch.dtype
    optimizer: Optimizer
    initial: Callable[[Tensor], Tensor]
    whole: Callable[[], Tensor]
    table_of: Callable[[int], str]

    def states_of(self, values: Tensor) -> tuple[Tensor, ...]:
        """Zero states beside `values`."""
        return state_like(values, self.optimizer)


class Tier(Protocol):
    """Rows by number. `lines` are the arrays of a store, values and then states; row r is at lines[..][slot].

    Rows that were never written are `spec.initial` with zero states. `row_bytes` is what a row is in transit, states
    included.
    """

    spec: StoreSpec
    row_bytes: int

    def is_written(self, rows: Tensor) -> Tensor:
        """Whether each of `rows` [n] was ever written, [n] bool."""
        ...

    def read(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """Bring `rows` [n] int64, distinct and written, to `slots` of `lines`."""
        ...

    def write(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """Take `rows` [n] int64, distinct, from `slots` of `lines`."""
        ...

    def clear(self) -> None:
        """No row was ever written."""
        ...

    def close(self) -> None:
        """Give back what the tier holds of the system."""
        ...


def fetch(tier: Tier, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> Tensor:
    """Bring `rows` to `slots` of `lines`, making those that were never written; returns which those are, [n] bool."""
    fresh = ~tier.is_written(rows)
    if fresh.any():
        lines[0][slots[fresh]] = tier.spec.initial(rows[fresh])
        for state in lines[1:]:
            state[slots[fresh]] = 0
        rows, slots = rows[~fresh], slots[~fresh]
    if len(rows):
        tier.read(rows, lines, slots)
    return fresh


def state_bytes(spec: StoreSpec) -> int:
    """Bytes of one row's optimizer states."""
    return sum(state.nbytes for state in spec.states_of(torch.empty(1, spec.dim, dtype=spec.dtype)))
