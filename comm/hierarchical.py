"""The pooled exchange through the node: partial sums meet inside a node first, one sum a bag and table crosses
between nodes.

Rank l of a node gathers, from its node's ranks, the partial sums for the samples whose home is a rank l of any node,
adds them, and exchanges node sums with the ranks l of the other nodes (its rail). Gradients go the same way back. The
canonical order is the one of the flat exchange, so the bits are too. Between nodes a table's values cross once for a
node, however many of its ranks hold the rows. Source: EMBark's topology-aware communication; its direct writes into a
peer's memory need GPUs that share memory, this is the form for ranks that do not.
"""

from itertools import accumulate

import torch
from torch import Tensor

from ._pooled import Arrived, PooledExchange, Routed
from .canonical import canonical_sum
from .counts import Counts
from .group import Group
from .shards import Shards
from .store import Store
from .strategy import off_diagonal
from .wire import row_bytes, send_values


class Hierarchical(PooledExchange):
    """See the module's docstring. Any grid of shards."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        super().__init__(label, shards, group, store, backend)
        self.node, self.rail = group.node, group.rail
        local = group.ranks_per_node
        held = shards.tables_of_rank
        self.held_in_node = [torch.cat(held[n * local : (n + 1) * local]).unique() for n in range(group.nodes)]
        self.here = self.held_in_node[group.node_of(group.rank)]
        self.peers = held[group.rank - self.node.rank :][:local]

    def send(self, partial: Tensor, arrived: Arrived, routed: Routed) -> Tensor:
        """Partial sums to this rank's samples' rails within the node, then node sums over the rail."""
        batches, width = arrived.batches, partial.shape[1]
        mine = self._homes(batches, self.node.rank)
        order, splits = self._by_rail(arrived)
        sizes = [len(held) * sum(mine) for held in self.peers]
        label = f"{self.label}.send"
        met = send_values(self.node, partial[order], splits, sizes, f"{label}.node", self.wire)
        parts = []
        for held, part in zip(self.peers, torch.split(met, sizes), strict=True):
            full = [partial.new_zeros(len(self.here), batch, width) for batch in mine]
            rows = torch.searchsorted(self.here, held)
            for home, block in zip(full, torch.split(part, [len(held) * batch for batch in mine]), strict=True):
                home[rows] = block.view(len(held), home.shape[1], width)
            parts.append(torch.cat([home.flatten(0, 1) for home in full]))
        node_sums = canonical_sum(parts, self.node.size)
        send = [len(self.here) * batch for batch in mine]
        receive = [len(tables) * routed.batch for tables in self.held_in_node]
        return send_values(self.rail, node_sums, send, receive, f"{label}.rail", self.wire)

    def sum_returned(self, returned: Tensor, routed: Routed) -> Tensor:
        """Node sums, added in node order."""
        sizes = [len(tables) * routed.batch for tables in self.held_in_node]
        parts = []
        for tables, part in zip(self.held_in_node, torch.split(returned, sizes), strict=True):
            full = returned.new_zeros(len(self.shards.tables), routed.batch, returned.shape[1])
            full[tables] = part.view(len(tables), routed.batch, returned.shape[1])
            parts.append(full)
        return canonical_sum(parts, 1).flatten(0, 1)

    def grad_send(self, grad: Tensor, routed: Routed, arrived: Arrived) -> Tensor:
        """Each bag's gradient once to every node that holds a part of its table, then to the holders in it."""
        label, width = f"{self.label}.grad_send", grad.shape[1]
        by_table = grad.view(len(self.shards.tables), routed.batch, width)
        outgoing = by_table[torch.cat(self.held_in_node)].flatten(0, 1)
        mine = self._homes(arrived.batches, self.node.rank)
        send = [len(tables) * routed.batch for tables in self.held_in_node]
        receive = [len(self.here) * batch for batch in mine]
        met = torch.split(send_values(self.rail, outgoing, send, receive, f"{label}.rail", self.wire), receive)
        blocks = [
            block.view(len(self.here), batch, width)[torch.searchsorted(self.here, held)].flatten(0, 1)
            for held in self.peers
            for block, batch in zip(met, mine, strict=True)
        ]
        splits = [len(held) * sum(mine) for held in self.peers]
        order, sizes = self._by_rail(arrived)
        came = send_values(self.node, torch.cat(blocks), splits, sizes, f"{label}.node", self.wire)
        grads = torch.empty_like(came)
        grads[order] = came
        return grads

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        flat = super().sent(counts)
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        local, world = self.group.ranks_per_node, self.group.size
        batch = counts.batch.view(-1, local)  # [node, place]
        node, rail = torch.zeros(world, world, dtype=torch.int64), torch.zeros(world, world, dtype=torch.int64)
        for source in range(world):
            here, place = divmod(source, local)
            for other in range(local):
                node[source, here * local + other] = counts.tables[source] * batch[:, other].sum()
            for there in range(self.group.nodes):
                rail[source, there * local + place] = len(self.held_in_node[here]) * batch[there, place]
        phases = {"send.node": node, "send.rail": rail, "grad_send.rail": rail.T, "grad_send.node": node.T}
        return {name: bytes_ for name, bytes_ in flat.items() if name not in ("send", "grad_send")} | {
            name: off_diagonal(bags * row) for name, bags in phases.items()
        }

    def _homes(self, batches: list[int], place: int) -> list[int]:
        """Batch sizes of the ranks at `place` in their nodes, by node."""
        return batches[place :: self.group.ranks_per_node]

    def _by_rail(self, arrived: Arrived) -> tuple[Tensor, list[int]]:
        """Bags as they arrived (by home rank), regrouped by the home's place in its node; the size of each group."""
        starts = [0, *accumulate(arrived.bag_splits)]
        ranks = [home for place in range(self.node.size) for home in range(place, self.group.size, self.node.size)]
        order = torch.cat([torch.arange(starts[home], starts[home + 1]) for home in ranks])
        sizes = [sum(arrived.bag_splits[place :: self.node.size]) for place in range(self.node.size)]
        return order, sizes


STRATEGY = Hierarchical
