"""De-duplicated rows, de-duplicated again per node: a row that several ranks of a node want crosses between nodes once.

Rank l of a node asks, for all ranks of its node, the owners at place l of the nodes (its rail). Keys meet there, are
made distinct, and go over the rail; rows come back the same way. Gradients meet at the same rank, which adds its node's
ranks in order, the level above a rank in the canonical sum: the bits are those of `unique`. A hot tier's gain is to be
read against this strategy too, or part of it may be the node's.
"""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Buckets, segment_grads, unique_ids
from kernels import Unique as Index

from .canonical import RowOrder
from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Lease, Store
from .strategy import off_diagonal
from .unique import Distinct, Unique
from .wire import row_bytes, send_values


class Met(NamedTuple):
    """What a rank asks for its node: `keys` [N] owner's node * span + row, rank by rank, `splits` from each."""

    keys: Tensor
    splits: list[int]


class NodeDistinct(NamedTuple):
    """The node's distinct keys by owner: their index, the owners' row numbers, how many for each owner."""

    unique: Index
    rows: Tensor
    splits: list[int]


class NodeAsked(NamedTuple):
    """What an owner got from its rail: `rows` [N] wanted, how many from each node."""

    rows: Tensor
    splits: list[int]


class UniqueNode(Unique):
    """See the module's docstring. Rows lie as in `unique`."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        super().__init__(label, shards, group, store, backend)
        self.node, self.rail = group.node, group.rail
        self.span = max(shards.rows_of_rank) + 1  # keys of two owners do not meet

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        sending = ("rows", "asked", "node_distinct", "met", "distinct")
        returned = ("returned", "bags", "distinct", "lease", "training")
        phases = (
            Phase("dedup", self.dedup, ("bags",), ("distinct",), "compute"),
            Phase("keys_node", self.keys_node, ("distinct",), ("met",), "network"),
            Phase("dedup_node", self.dedup_node, ("met",), ("node_distinct",), "compute"),
            Phase("keys_rail", self.keys_rail, ("node_distinct",), ("asked",), "network"),
            Phase("gather", self.gather_rows, ("asked", "step"), ("rows", "lease"), "compute"),
            Phase("send", self.send_rows, sending, ("returned",), "network"),
            Phase("combine", self.combine, returned, ("pooled",), "compute"),
        )
        return tuple(phase.scoped(self.label, ("step", "training")) for phase in phases)

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        phases = (
            Phase("index", self.index_rows, ("asked",), ("order",), "compute"),
            Phase("local_reduce", self.local_reduce, ("grad", "bags", "distinct"), ("row_sums",), "compute"),
            Phase("grad_node", self.grad_node, ("row_sums", "distinct", "met"), ("met_grads",), "network"),
            Phase("node_reduce", self.node_reduce, ("met_grads", "node_distinct"), ("node_sums",), "compute"),
            Phase("grad_rail", self.grad_rail, ("node_sums", "node_distinct", "asked"), ("grads",), "network"),
            Phase("owner_reduce", self.owner_reduce, ("grads", "order", "lease"), ("row_grads",), "compute"),
            *self.apply_phases(),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def leaving(self, buckets: Buckets) -> Buckets:
        """`buckets` in the order in which keys leave: owners by place in the node, then by node."""
        starts = [0, *accumulate(buckets.counts.tolist())]
        owners = [o for place in range(self.node.size) for o in range(place, self.group.size, self.node.size)]
        order = torch.cat([torch.arange(starts[owner], starts[owner + 1]) for owner in owners])
        return Buckets(buckets.order[order], buckets.counts, buckets.rows[order])

    def keys_node(self, distinct: Distinct) -> Met:
        """This rank's distinct keys to the ranks of its node that ask for them."""
        label, counts = f"{self.label}.keys_node", distinct.buckets.counts.view(-1, self.node.size).T.contiguous()
        per_source = self.node.exchange(counts, label)  # [source in the node, owner's node]
        send, receive = counts.sum(1).tolist(), per_source.sum(1).tolist()
        rows = self.node.all_to_all(distinct.buckets.rows.to(self.shards.wire_ids), send, receive, label)
        nodes = torch.arange(self.group.nodes).repeat(self.node.size)
        return Met(torch.repeat_interleave(nodes, per_source.flatten()) * self.span + rows, receive)

    def dedup_node(self, met: Met) -> NodeDistinct:
        """The node's distinct keys, by owner."""
        index = unique_ids(met.keys, self.backend)
        cuts = torch.searchsorted(index.rows, torch.arange(self.group.nodes + 1) * self.span)
        return NodeDistinct(index, index.rows % self.span, cuts.diff().tolist())

    def keys_rail(self, wanted: NodeDistinct) -> NodeAsked:
        """The node's keys to their owners."""
        label = f"{self.label}.keys_rail"
        splits = self.rail.exchange(torch.tensor(wanted.splits), label).tolist()
        rows = self.rail.all_to_all(wanted.rows.to(self.shards.wire_ids), wanted.splits, splits, label)
        return NodeAsked(rows.long(), splits)

    def gather_rows(self, asked: NodeAsked, step: int) -> tuple[Tensor, Lease]:
        """The rows that nodes asked for."""
        lease = self.store.prepare(asked.rows, step)
        return self.store.values[lease.slots], lease

    def send_rows(self, rows: Tensor, asked: NodeAsked, wanted: NodeDistinct, met: Met, distinct: Distinct) -> Tensor:
        """Rows to the nodes that asked, then to every rank that wants them."""
        label = f"{self.label}.send"
        of_node = send_values(self.rail, rows, asked.splits, wanted.splits, f"{label}.rail", self.wire)
        copies = of_node[wanted.unique.inverse]
        return send_values(self.node, copies, met.splits, self._by_place(distinct), f"{label}.node", self.wire)

    def grad_node(self, row_sums: Tensor, distinct: Distinct, met: Met) -> Tensor:
        """This rank's gradients to the ranks of its node that asked for their rows."""
        label = f"{self.label}.grad_node"
        return send_values(self.node, row_sums, self._by_place(distinct), met.splits, label, self.wire)

    def node_reduce(self, grads: Tensor, wanted: NodeDistinct) -> Tensor:
        """Sum over the node's ranks, in rank order."""
        offsets = torch.arange(len(grads) + 1)
        return segment_grads(grads, offsets, None, "sum", wanted.unique.order, wanted.unique.starts, self.backend)

    def grad_rail(self, node_sums: Tensor, wanted: NodeDistinct, asked: NodeAsked) -> Tensor:
        """Node sums to the owners of their rows."""
        return send_values(self.rail, node_sums, wanted.splits, asked.splits, f"{self.label}.grad_rail", self.wire)

    def index_rows(self, asked: NodeAsked) -> RowOrder:
        """What is left of the canonical sum: the nodes, in order."""
        index = unique_ids(asked.rows, self.backend)
        return RowOrder((), index, index.order[index.starts[:-1]])

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        key, local, nodes = self.shards.wire_ids.itemsize, self.node.size, self.group.nodes
        world = self.group.size
        to_place, to_rail, inside, along = (torch.zeros(world, world, dtype=torch.int64) for _ in range(4))
        for source in range(world):
            node, place = divmod(source, local)
            for other in range(local):
                to_place[source, node * local + other] = counts.unique[source, other::local].sum()
                inside[source, node * local + other] = 1
            for there in range(nodes):
                owner = there * local + place
                to_rail[source, owner] = counts.node_unique[node, owner]
                along[source, owner] = 1
        phases = {
            "keys_node": 8 * nodes * inside + key * to_place,
            "keys_rail": 8 * along + key * to_rail,
            "send.rail": row * to_rail.T,
            "send.node": row * to_place.T,
            "grad_node": row * to_place,
            "grad_rail": row * to_rail,
        }
        return {name: off_diagonal(bytes_) for name, bytes_ in phases.items()} | self.norm_sent(counts)

    def _by_place(self, distinct: Distinct) -> list[int]:
        """How many of this rank's distinct keys each rank of its node asks for."""
        return distinct.buckets.counts.view(-1, self.node.size).sum(0).tolist()


STRATEGY = UniqueNode
