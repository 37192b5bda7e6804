"""Stores: tiers of rows. A plain device table is a store whose slots are its rows."""

from torch import Tensor

from comm.store import Lease
from kernels import Optimizer, state_like


class DeviceStore:
    """All rows in device memory: `values` [rows, dim] and the optimizer's `states`."""

    def __init__(self, values: Tensor, optimizer: Optimizer) -> None:
        self.values, self.optimizer = values, optimizer
        self.states = state_like(values, optimizer)
        self._leases = 0

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """The rows themselves."""
        self._leases += 1
        return Lease(rows)

    def release(self, lease: Lease, dirty: bool) -> None:
        """Count the lease as returned."""
        self._leases -= 1

    def prefetch(self, rows: Tensor) -> None:
        """Every row is near already."""

    def flush(self) -> None:
        """There is no slower tier to write to."""

    def stats(self) -> dict[str, int]:
        """`leases`: how many are out."""
        return {"leases": self._leases}
