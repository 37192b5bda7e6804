"""Stores: tiers of rows. A plain device table is a store whose slots are its rows."""

from collections.abc import Callable, Sequence

from torch import Tensor

from comm.store import Lease, Store
from kernels import Optimizer, Unique, state_like

from .tier import StoreSpec

StoreFactory = Callable[[StoreSpec], Store]
"""Makes the store of one team of tables on one rank."""


def device_store(spec: StoreSpec) -> "DeviceStore":
    """Every row on the device from the start."""
    return DeviceStore(spec.whole(), spec.optimizer)


class DeviceStore:
    """All rows in device memory: `values` [rows, dim] and the optimizer's `states`."""

    slots_are_rows = True

    def __init__(self, values: Tensor, optimizer: Optimizer) -> None:
        self.values, self.optimizer = values, optimizer
        self.states = state_like(values, optimizer)
        self._leases = 0

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """The rows themselves."""
        self._leases += 1
        return Lease(rows)

    def settle(self, lease: Lease) -> Lease:
        """Rows do not move."""
        return lease

    def release(self, lease: Lease, dirty: bool) -> None:
        """Count the lease as returned."""
        self._leases -= 1

    def prefetch(self, rows: Tensor, coming: Sequence[Tensor] = (), index: Unique | None = None) -> None:
        """Every row is near already."""

    def flush(self) -> None:
        """There is no slower tier to write to."""

    def read(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Copies of values and states of `rows`."""
        return self.values[rows], *(state[rows] for state in self.states)

    def write(self, rows: Tensor, arrays: Sequence[Tensor]) -> None:
        """Set values and states of `rows`."""
        for mine, given in zip((self.values, *self.states), arrays, strict=True):
            mine[rows] = given

    def stats(self) -> dict[str, int]:
        """`leases`: how many are out."""
        return {"leases": self._leases}
