"""Every rank holds every row, and the gradients of all rows are all-reduced, touched or not: no keys travel.

For small tables, whose every row a global batch touches anyway. EMBark's data-parallel cluster as published;
`replicated` sends the touched rows only.
"""

from torch import Tensor

from .canonical import all_reduce_touched, touched_bytes
from .counts import Counts
from .replicated import Replicated, RowSums
from .schedule import Phase
from .store import Lease


class ReplicatedDense(Replicated):
    """See the module's docstring."""

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        phases = (
            Phase("index", self.index, ("bags",), ("touched",), "compute"),
            Phase("local_reduce", self.local_reduce, ("grad", "bags", "touched"), ("row_sums",), "compute"),
            Phase("grad_send", self.grad_send_all, ("row_sums",), ("grads",), "network"),
            Phase("apply", self.apply_touched, ("grads", "lease", "lr", "step"), (), "compute"),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def grad_send_all(self, row_sums: RowSums) -> tuple[Tensor, Tensor]:
        """Rows that any rank touched, and the canonical sum of their gradients."""
        height, label = int(self.shards.table_base[-1]), f"{self.label}.grad_send"
        return all_reduce_touched(self.group, row_sums.rows, row_sums.grads, height, label, self.wire)

    def apply_touched(self, grads: tuple[Tensor, Tensor], lease: Lease, lr: float, step: int) -> None:
        """The same optimizer step on every copy."""
        self.apply(*grads, lease, lr, step)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        values = self.store.values
        height = int(self.shards.table_base[-1])
        bytes_ = touched_bytes(height, values.shape[1], values.dtype, len(counts.batch), self.wire)
        return {f"grad_send.{stage}": of_stage for stage, of_stage in bytes_.items()}


STRATEGY = ReplicatedDense
