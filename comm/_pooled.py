"""The pooled exchange: ids go to the owners of their rows, owners pool what they hold, partial sums come back.

What `tablewise` and `rowwise` share. A bag whose rows lie on R ranks is the canonical sum of R partial sums. EMBark
calls this the reduction-based cluster. Bytes back are R * batch * dim a table, however many ids a bag has.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from kernels import Bags, bucketize, pooled_lookup

from .canonical import RowGrads, RowOrder, canonical_sum, row_order, sum_in_order
from .counts import Counts
from .group import Group
from .norm import apply_phases, row_norm
from .padded_keys import PaddedKeys
from .schedule import Phase
from .shards import Shards
from .store import Lease, Store
from .strategy import off_diagonal
from .wire import Wire, row_bytes, send_values


class Routed(NamedTuple):
    """A rank's ids on their way: `rows`, `weights` and `lengths` grouped by owner, with the splits of each."""

    rows: Tensor
    weights: Tensor | None
    lengths: Tensor
    row_splits: list[int]
    length_splits: list[int]
    batch: int


class Arrived(NamedTuple):
    """What an owner got: bags in the order (source, table, sample), `source` [N] the rank of each id, bags per
    source.
    """

    rows: Tensor
    offsets: Tensor
    weights: Tensor | None
    source: Tensor
    bag_splits: list[int]
    batches: list[int]


class PooledExchange:
    """See the module's docstring. One instance carries all tables of one width under one strategy."""

    padded: PaddedKeys | None = None
    """How keys travel, if not after their counts."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        self.label, self.shards, self.group, self.store, self.backend = label, shards, group, store, backend
        self.wire: Wire = shards.placements[0].wire
        self.norm = row_norm(shards, group, store, backend)
        self.held = shards.tables_of_rank[group.rank]

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        phases = (
            Phase("route", self.route, ("bags",), ("routed",), "compute"),
            Phase("keys", self.keys, ("routed",), ("arrived",), "network"),
            Phase("gather", self.gather, ("arrived", "step"), ("partial", "lease"), "compute"),
            Phase("send", self.send, ("partial", "arrived", "routed"), ("returned",), "network"),
            Phase("combine", self.combine, ("returned", "routed", "lease", "training"), ("pooled",), "compute"),
        )
        return tuple(phase.scoped(self.label, ("step", "training")) for phase in phases)

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        phases = (
            Phase("index", self.index, ("arrived",), ("order",), "compute"),
            Phase("grad_send", self.grad_send, ("grad", "routed", "arrived"), ("grads",), "network"),
            Phase("owner_reduce", self.owner_reduce, ("grads", "arrived", "order", "lease"), ("row_grads",), "compute"),
            *apply_phases(self, self.norm),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def route(self, bags: Bags) -> Routed:
        """Group the ids by owner, and count how many of each bag every owner gets."""
        tables, world = len(self.shards.tables), self.group.size
        starts = self.shards.table_starts(bags)
        buckets = bucketize(bags.ids, starts, self.shards.row_shards, world, self.backend)
        owners = torch.repeat_interleave(torch.arange(world), buckets.counts)
        bag_of = torch.repeat_interleave(torch.arange(len(bags)), bags.lengths)[buckets.order]
        counts = torch.bincount(owners * len(bags) + bag_of, minlength=world * len(bags))
        by_table = rearrange(counts, "(w t b) -> w t b", w=world, t=tables)
        lengths = [by_table[owner, held].flatten() for owner, held in enumerate(self.shards.tables_of_rank)]
        return Routed(
            rows=buckets.rows.to(self.shards.wire_ids),
            weights=None if bags.weights is None else bags.weights[buckets.order],
            lengths=torch.cat(lengths).to(torch.int32),
            row_splits=buckets.counts.tolist(),
            length_splits=[len(part) for part in lengths],
            batch=self.shards.batch(bags),
        )

    def keys(self, routed: Routed) -> Arrived:
        """Exchange sizes, then lengths, row numbers and weights; all but weights at once if the parts are padded."""
        group, label = self.group, f"{self.label}.keys"
        if self.padded:
            lengths, rows, row_counts, batches = self._padded_keys(self.padded, routed, label)
            return self._arrived(lengths, rows, row_counts, batches, routed, label)
        sizes = torch.tensor([routed.row_splits, [routed.batch] * group.size]).T.contiguous()
        row_counts, batches = group.exchange(sizes, label).T.tolist()
        bag_splits = [batch * len(self.held) for batch in batches]
        lengths = group.all_to_all(routed.lengths, routed.length_splits, bag_splits, label)
        rows = group.all_to_all(routed.rows, routed.row_splits, row_counts, label)
        return self._arrived(lengths, rows, row_counts, batches, routed, label)

    def _padded_keys(
        self, padded: PaddedKeys, routed: Routed, label: str
    ) -> tuple[Tensor, Tensor, list[int], list[int]]:
        """Lengths, rows, rows from each rank and batch of each; a part is the batch, the lengths, then the rows."""
        dtype = self.shards.wire_ids
        lengths = torch.split(routed.lengths.to(dtype), routed.length_splits)
        rows = torch.split(routed.rows, routed.row_splits)
        batch = torch.tensor([routed.batch], dtype=dtype)
        outgoing = [torch.cat([batch, *part]) for part in zip(lengths, rows, strict=True)]
        arrived, splits = padded.exchange(torch.cat(outgoing), [len(part) for part in outgoing], label)
        parts = torch.split(arrived, splits)
        batches = [int(part[0]) for part in parts]
        ends = [1 + batch * len(self.held) for batch in batches]
        lengths = torch.cat([part[1:end] for part, end in zip(parts, ends, strict=True)])
        found = [part[end:] for part, end in zip(parts, ends, strict=True)]
        return lengths, torch.cat(found), [len(part) for part in found], batches

    def _arrived(
        self, lengths: Tensor, rows: Tensor, row_counts: list[int], batches: list[int], routed: Routed, label: str
    ) -> Arrived:
        """What came, and the weights, whose number both sides know."""
        weights = None
        if routed.weights is not None:
            weights = self.group.all_to_all(routed.weights, routed.row_splits, row_counts, label)
        offsets = torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0, dtype=torch.int64)])
        source = torch.repeat_interleave(torch.arange(self.group.size), torch.tensor(row_counts))
        return Arrived(rows.long(), offsets, weights, source, [batch * len(self.held) for batch in batches], batches)

    def gather(self, arrived: Arrived, step: int) -> tuple[Tensor, Lease]:
        """Pool the rows that this rank holds, for every rank's bags."""
        lease = self.store.prepare(arrived.rows, step)
        pooled = pooled_lookup(
            self.store.values, lease.slots, arrived.offsets, arrived.weights, "sum", backend=self.backend
        )
        return pooled, lease

    def send(self, partial: Tensor, arrived: Arrived, routed: Routed) -> Tensor:
        """Partial sums back to where their samples are."""
        label = f"{self.label}.send"
        return send_values(self.group, partial, arrived.bag_splits, routed.length_splits, label, self.wire)

    def combine(self, returned: Tensor, routed: Routed, lease: Lease, training: bool) -> Tensor:
        """Canonical sum of the partial sums of each bag."""
        if not training:
            self.store.release(lease, dirty=False)
        return self.sum_returned(returned, routed)

    def sum_returned(self, returned: Tensor, routed: Routed) -> Tensor:
        """The partial sums of every owner, added in canonical order, [tables * batch, dim]."""
        parts = []
        for held, part in zip(self.shards.tables_of_rank, torch.split(returned, routed.length_splits), strict=True):
            full = returned.new_zeros(len(self.shards.tables), routed.batch, returned.shape[1])
            full[held] = part.view(len(held), routed.batch, returned.shape[1])
            parts.append(full)
        return rearrange(canonical_sum(parts, self.group.ranks_per_node), "t b d -> (t b) d")

    def grad_send(self, grad: Tensor, routed: Routed, arrived: Arrived) -> Tensor:
        """Each bag's gradient to every rank that holds a part of its table."""
        by_table = rearrange(grad, "(t b) d -> t b d", t=len(self.shards.tables))
        wanted = torch.cat(self.shards.tables_of_rank)
        outgoing = rearrange(by_table[wanted], "t b d -> (t b) d")
        label = f"{self.label}.grad_send"
        return send_values(self.group, outgoing, routed.length_splits, arrived.bag_splits, label, self.wire)

    def index(self, arrived: Arrived) -> RowOrder:
        """How gradients will be summed by row."""
        return row_order(arrived.rows, arrived.source, self.group, False, self.backend)

    def owner_reduce(self, grads: Tensor, arrived: Arrived, order: RowOrder, lease: Lease) -> RowGrads:
        """Sum by row, in canonical order up to its last level."""
        return sum_in_order(order, lease.slots, grads, arrived.offsets, arrived.weights, self.backend)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        number = self.store.values.itemsize
        key, weight = self.shards.wire_ids.itemsize, number if counts.weighted else 0
        bags = counts.batch[:, None] * counts.tables[None, :]  # from source to owner
        keys = self.padded.sent(1 + bags + counts.keys, key) if self.padded else 2 * 8 + bags * 4 + counts.keys * key
        values = bags * row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        return {
            "keys": off_diagonal(keys + counts.keys * weight),
            "send": off_diagonal(values.T),
            "grad_send": off_diagonal(values),
            **({"norm": off_diagonal(self.norm.sent(counts, number))} if self.norm else {}),
        }
