"""The Store protocol: rows of one tier, reached by lease. Kernels never see two tiers."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels import Optimizer


@dataclass(frozen=True)
class Lease:
    """`slots` [n] int64: where in the store's arrays the n rows asked for are, until `release`."""

    slots: Tensor


class Store(Protocol):
    """One tier of rows of one width. `values` [lines, dim] and `states` (`kernels.state_like` of them) are what kernels
    read and update.
    """

    values: Tensor
    states: tuple[Tensor, ...]
    optimizer: Optimizer

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """Slots of `rows` [n] int64, held until the lease is released."""
        ...

    def release(self, lease: Lease, dirty: bool) -> None:
        """Give the slots back; `dirty` if their rows were updated."""
        ...

    def prefetch(self, rows: Tensor) -> None:
        """Begin to bring `rows` near."""
        ...

    def flush(self) -> None:
        """Write every changed row back to where it lives."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        ...
