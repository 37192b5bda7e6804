"""Every rank holds every row, and every rank sends its touched rows' numbers and gradients to all others.

The sparse all-gather of data-parallel frameworks: no forward exchange, (size - 1) times a rank's gradients out. Each
rank then sums all of them in canonical order, so copies stay equal and the bits are those of `replicated`.
"""

import torch
from torch import Tensor

from kernels import Unique as Index

from .canonical import RowGrads, apply_grads, group_by_row
from .counts import Counts
from .replicated import Replicated, RowSums
from .schedule import Phase
from .store import Lease
from .strategy import off_diagonal
from .wire import pack, row_bytes, unpack


class AllGather(Replicated):
    """See the module's docstring."""

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        summing, applying = ("row_sums", "gathered", "sizes"), ("everything", "lease", "lr", "step")
        phases = (
            Phase("index", self.index, ("bags",), ("touched",), "compute"),
            Phase("keys", self.gather_keys, ("touched",), ("gathered", "sizes"), "network"),
            Phase("local_reduce", self.local_reduce, ("grad", "bags", "touched"), ("row_sums",), "compute"),
            Phase("grad_send", self.gather_grads, summing, ("grads",), "network"),
            Phase("reduce", self.reduce, ("gathered", "sizes", "grads"), ("everything",), "compute"),
            Phase("apply", self.apply_sums, applying, (), "compute"),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def gather_keys(self, touched: Index) -> tuple[Tensor, list[int]]:
        """Touched rows of every rank, rank by rank, and how many of each."""
        group, label = self.group, f"{self.label}.keys"
        sizes = group.all_gather(torch.tensor([len(touched.rows)]), [1] * group.size, label).tolist()
        return group.all_gather(touched.rows.to(self.shards.wire_ids), sizes, label).long(), sizes

    def gather_grads(self, row_sums: RowSums, rows: Tensor, sizes: list[int]) -> Tensor:
        """The gradients of these rows."""
        packed = self.group.all_gather(pack(row_sums.grads, self.wire), sizes, f"{self.label}.grad_send")
        return unpack(packed, row_sums.grads.shape[1], row_sums.grads.dtype, self.wire)

    def reduce(self, rows: Tensor, sizes: list[int], grads: Tensor) -> RowGrads:
        """Sum by row over ranks, in canonical order up to its last level."""
        source = torch.repeat_interleave(torch.arange(self.group.size), torch.tensor(sizes))
        offsets = torch.arange(len(rows) + 1)
        return group_by_row(rows, source, grads, offsets, None, self.group, True, self.backend)

    def apply_sums(self, sums: RowGrads, lease: Lease, lr: float, step: int) -> None:
        """The same optimizer step on every copy."""
        touched = self.store.prepare(sums.rows, step)
        apply_grads(self.store, sums._replace(rows=touched.slots), lr, step, self.backend)
        self.store.release(touched, dirty=True)
        self.store.release(lease, dirty=True)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        world = len(counts.batch)
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        return {
            "keys": off_diagonal((8 + counts.touched * self.shards.wire_ids.itemsize)[:, None].expand(world, world)),
            "grad_send": off_diagonal((counts.touched * row)[:, None].expand(world, world)),
        }


STRATEGY = AllGather
