"""De-duplicated rows: each rank asks for the distinct rows of its batch, owners send them once, the rank pools
itself.

EMBark's unique-based cluster, and the base of FEC. Rows lie on several ranks by modulo or by range. Bytes follow the
distinct rows, not the bags; gradients are summed per distinct row before they travel back.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Bags, Buckets, bucketize, pooled_lookup, segment_grads, unique_ids
from kernels import Unique as Index

from .canonical import RowGrads, RowOrder, row_order, sum_in_order
from .counts import Counts
from .group import Group
from .norm import apply_phases, row_norm
from .padded_keys import PaddedKeys
from .schedule import Phase
from .shards import Shards
from .store import Lease, Store
from .strategy import off_diagonal
from .wire import Wire, row_bytes, send_values


class Distinct(NamedTuple):
    """A rank's distinct rows: their index, their owners, and for each id its slot among the rows as they come back."""

    unique: Index
    buckets: Buckets
    slots: Tensor


class Asked(NamedTuple):
    """What an owner got: `rows` [N] wanted, `source` [N] the rank that wants each, how many from each."""

    rows: Tensor
    source: Tensor
    splits: list[int]


class Unique:
    """See the module's docstring. One instance carries all tables of one width under this strategy."""

    padded: PaddedKeys | None = None
    """How keys travel, if not after their counts."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        self.label, self.shards, self.group, self.store, self.backend = label, shards, group, store, backend
        self.wire: Wire = shards.placements[0].wire
        self.norm = row_norm(shards, group, store, backend)

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        phases = (
            Phase("dedup", self.dedup, ("bags",), ("distinct",), "compute"),
            Phase("keys", self.keys, ("distinct",), ("asked",), "network"),
            Phase("gather", self.gather, ("asked", "step"), ("rows", "lease"), "compute"),
            Phase("send", self.send, ("rows", "asked", "distinct"), ("returned",), "network"),
            Phase(
                "combine", self.combine, ("returned", "bags", "distinct", "lease", "training"), ("pooled",), "compute"
            ),
        )
        return tuple(phase.scoped(self.label, ("step", "training")) for phase in phases)

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        phases = (
            Phase("index", self.index, ("asked",), ("order",), "compute"),
            Phase("local_reduce", self.local_reduce, ("grad", "bags", "distinct"), ("row_sums",), "compute"),
            Phase("grad_send", self.grad_send, ("row_sums", "distinct", "asked"), ("grads",), "network"),
            Phase("owner_reduce", self.owner_reduce, ("grads", "order", "lease"), ("row_grads",), "compute"),
            *self.apply_phases(),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def dedup(self, bags: Bags) -> Distinct:
        """Distinct rows over all tables, grouped by owner."""
        base = self.shards.table_base
        keys = bags.ids + torch.repeat_interleave(base[:-1], self.shards.table_starts(bags).diff())
        index = unique_ids(keys, self.backend)
        row_starts = torch.searchsorted(index.rows, base)
        ids = index.rows - torch.repeat_interleave(base[:-1], row_starts.diff())
        buckets = bucketize(ids, row_starts, self.shards.row_shards, self.group.size, self.backend)
        buckets = self.leaving(buckets)
        slot_of_row = torch.empty_like(buckets.order)
        slot_of_row[buckets.order] = torch.arange(len(ids))
        return Distinct(index, buckets, slot_of_row[index.inverse])

    def leaving(self, buckets: Buckets) -> Buckets:
        """`buckets` in the order in which keys leave: owner by owner."""
        return buckets

    def keys(self, distinct: Distinct) -> Asked:
        """Exchange counts, then row numbers; both at once if the parts are padded."""
        group, label, counts = self.group, f"{self.label}.keys", distinct.buckets.counts
        outgoing = distinct.buckets.rows.to(self.shards.wire_ids)
        if self.padded:
            rows, splits = self.padded.exchange(outgoing, counts.tolist(), label)
        else:
            splits = group.exchange(counts, label).tolist()
            rows = group.all_to_all(outgoing, counts.tolist(), splits, label)
        source = torch.repeat_interleave(torch.arange(group.size), torch.tensor(splits))
        return Asked(rows.long(), source, splits)

    def gather(self, asked: Asked, step: int) -> tuple[Tensor, Lease]:
        """The rows that others asked for."""
        lease = self.store.prepare(asked.rows, step)
        return self.store.values[lease.slots], lease

    def send(self, rows: Tensor, asked: Asked, distinct: Distinct) -> Tensor:
        """Rows to where they were asked for."""
        label, counts = f"{self.label}.send", distinct.buckets.counts.tolist()
        return send_values(self.group, rows, asked.splits, counts, label, self.wire)

    def combine(self, returned: Tensor, bags: Bags, distinct: Distinct, lease: Lease, training: bool) -> Tensor:
        """Pool the bags from the rows that came back."""
        if not training:
            self.store.release(lease, dirty=False)
        return pooled_lookup(returned, distinct.slots, bags.offsets, bags.weights, "sum", backend=self.backend)

    def local_reduce(self, grad: Tensor, bags: Bags, distinct: Distinct) -> Tensor:
        """One gradient per distinct row of this rank, grouped by owner."""
        index = distinct.unique
        sums = segment_grads(grad, bags.offsets, bags.weights, "sum", index.order, index.starts, self.backend)
        return sums[distinct.buckets.order]

    def grad_send(self, row_sums: Tensor, distinct: Distinct, asked: Asked) -> Tensor:
        """Gradients to the owners of their rows."""
        label = f"{self.label}.grad_send"
        counts = distinct.buckets.counts.tolist()
        return send_values(self.group, row_sums, counts, asked.splits, label, self.wire)

    def index(self, asked: Asked) -> RowOrder:
        """How gradients will be summed by row."""
        return row_order(asked.rows, asked.source, self.group, True, self.backend)

    def owner_reduce(self, grads: Tensor, order: RowOrder, lease: Lease) -> RowGrads:
        """Sum by row over ranks, in canonical order up to its last level."""
        return sum_in_order(order, lease.slots, grads, torch.arange(len(grads) + 1), None, self.backend)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        rows, key = self.counted(counts), self.shards.wire_ids.itemsize
        keys = self.padded.sent(rows, key) if self.padded else 8 + rows * key
        values = rows * row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        return {
            "keys": off_diagonal(keys),
            "send": off_diagonal(values.T),
            "grad_send": off_diagonal(values),
            **self.norm_sent(counts),
        }

    def counted(self, counts: Counts) -> Tensor:
        """Rows that each source asks each owner for, [world, world]."""
        return counts.unique

    def apply_phases(self) -> tuple[Phase, ...]:
        """From `row_grads` to the update of the store."""
        return apply_phases(self, self.norm)

    def norm_sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes of the exchange of square sums, where there is one."""
        return {"norm": off_diagonal(self.norm.sent(counts, self.store.values.itemsize))} if self.norm else {}


STRATEGY = Unique
