"""The Store protocol: rows of one tier, reached by lease. Kernels never see two tiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels import Optimizer, Unique


@dataclass(frozen=True)
class Lease:
    """`slots` [n] int64: where in the store's arrays the n rows asked for are, until `release`."""

    slots: Tensor


class Store(Protocol):
    """One tier of rows of one width. `values` [lines, dim] and `states` (`kernels.state_like` of them) are what kernels
    read and update. `slots_are_rows`: the slot of a row is its number, always.

    A batch's rows are asked for once, by `prepare`, or by `prefetch` and then `prepare` with the same tensor. If the
    next batch is prefetched before this one is released, rows are updated at the slots that `settle` gives.
    """

    values: Tensor
    states: tuple[Tensor, ...]
    optimizer: Optimizer

    @property
    def slots_are_rows(self) -> bool:
        """Whether the slot of a row is its number, always."""
        ...

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """Slots of `rows` [n] int64, held until the lease is released."""
        ...

    def settle(self, lease: Lease) -> Lease:
        """The lease with its slots as they are after the next batch's `prefetch`; release this one instead."""
        ...

    def release(self, lease: Lease, dirty: bool) -> None:
        """Give the slots back; `dirty` if their rows were updated."""
        ...

    def prefetch(self, rows: Tensor, coming: Sequence[Tensor] = (), index: Unique | None = None) -> None:
        """Bring `rows` near, for the `prepare` of the same tensor. `coming`: rows of the batches after, nearest first.
        `index`: `kernels.unique_ids(rows)`, if it is at hand.
        """
        ...

    def flush(self) -> None:
        """Write every changed row back to where it lives."""
        ...

    def read(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Values and states of `rows` [n], wherever they are: copies, between steps."""
        ...

    def write(self, rows: Tensor, arrays: Sequence[Tensor]) -> None:
        """Set values and states of `rows` [n], distinct, as `read` gives them: between steps, with no lease out."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        ...
