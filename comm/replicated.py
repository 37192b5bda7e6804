"""Every rank holds every row: look-ups are local, the gradients of touched rows are all-reduced. EMBark's
data-parallel cluster.

The ranks agree on the union of their touched rows, place their gradients in a dense buffer of that height and sum it
in canonical order; then each applies the same update to its own copy, so the copies stay equal bit for bit.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Bags, pooled_lookup, segment_grads, unique_ids, update_rows
from kernels import Unique as Index

from .canonical import canonical_all_reduce, chunk_sizes
from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Lease, Store
from .strategy import off_diagonal
from .wire import Wire, row_bytes


class RowSums(NamedTuple):
    """This rank's touched rows, ascending, and the sum of its gradients for each."""

    rows: Tensor
    grads: Tensor


class Replicated:
    """See the module's docstring. One instance carries all tables of one width under this strategy."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        self.label, self.shards, self.group, self.store, self.backend = label, shards, group, store, backend
        self.wire: Wire = shards.placements[0].wire

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        phases = (Phase("gather", self.gather, ("bags", "step", "training"), ("pooled", "lease"), "compute"),)
        return tuple(phase.scoped(self.label, ("step", "training")) for phase in phases)

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        phases = (
            Phase("index", self.index, ("bags",), ("touched",), "compute"),
            Phase("keys", self.keys, ("touched",), ("union",), "network"),
            Phase("local_reduce", self.local_reduce, ("grad", "bags", "touched"), ("row_sums",), "compute"),
            Phase("grad_send", self.grad_send, ("row_sums", "union"), ("grads",), "network"),
            Phase("apply", self.apply, ("union", "grads", "lease", "lr", "step"), (), "compute"),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def gather(self, bags: Bags, step: int, training: bool) -> tuple[Tensor, Lease]:
        """Pool the bags from this rank's own copy."""
        lease = self.store.prepare(self._keys(bags), step)
        pooled = pooled_lookup(self.store.values, lease.slots, bags.offsets, bags.weights, "sum", self.backend)
        if not training:
            self.store.release(lease, dirty=False)
        return pooled, lease

    def index(self, bags: Bags) -> Index:
        """This rank's distinct rows."""
        return unique_ids(self._keys(bags), self.backend)

    def local_reduce(self, grad: Tensor, bags: Bags, index: Index) -> RowSums:
        """One gradient per distinct row of this rank."""
        grads = segment_grads(grad, bags.offsets, bags.weights, "sum", index.order, index.starts, self.backend)
        return RowSums(index.rows, grads)

    def keys(self, touched: Index) -> Tensor:
        """The distinct rows of all ranks, ascending."""
        group, label = self.group, f"{self.label}.keys"
        count = torch.tensor([len(touched.rows)])
        sizes = group.all_gather(count, [1] * group.size, label).tolist()
        rows = group.all_gather(touched.rows.to(self.shards.wire_ids), sizes, label)
        return unique_ids(rows.long(), self.backend).rows

    def grad_send(self, row_sums: RowSums, union: Tensor) -> Tensor:
        """Canonical sum of all ranks' gradients of the union's rows."""
        dense = row_sums.grads.new_zeros(len(union), row_sums.grads.shape[1])
        dense[torch.searchsorted(union, row_sums.rows)] = row_sums.grads
        return canonical_all_reduce(self.group, dense, f"{self.label}.grad_send", self.wire)

    def apply(self, union: Tensor, grads: Tensor, lease: Lease, lr: float, step: int) -> None:
        """The same optimizer step on every copy."""
        store = self.store
        touched = store.prepare(union, step)
        slots = touched.slots
        update_rows(store.values, store.states, slots, grads, store.optimizer, lr, step + 1, backend=self.backend)
        store.release(touched, dirty=True)
        store.release(lease, dirty=True)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        world = len(counts.batch)
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        chunks = torch.tensor(chunk_sizes(counts.union, world)) * row
        keys = 8 + counts.touched * self.shards.wire_ids.itemsize
        return {
            "keys": off_diagonal(keys[:, None].expand(world, world)),
            "grad_send.scatter": off_diagonal(chunks[None, :].expand(world, world)),
            "grad_send.gather": off_diagonal(chunks[:, None].expand(world, world)),
        }

    def _keys(self, bags: Bags) -> Tensor:
        """Row numbers in the stacked array."""
        return bags.ids + torch.repeat_interleave(self.shards.table_base[:-1], self.shards.table_starts(bags).diff())


STRATEGY = Replicated
