"""Popular rows on every rank, the rest as in `unique`: FEC's tiers, exactly.

A placement's `hot` ids have a copy behind every rank's own rows. A rank reads hot rows from its copy and asks owners
for cold ones; hot gradients are summed over ranks in one dense buffer of the hot set's height, with a touch count,
and every copy takes the same step. Sums are canonical, so the bits are those of `unique`; with several nodes of several
ranks they go through the nodes, which is what makes a copy cheaper than an exchange between them. The owner's own row
of a hot id is dead weight.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels import Bags, Buckets, bucketize, pooled_lookup, segment_grads, unique_ids, update_rows
from kernels import Unique as Index

from .canonical import all_reduce_touched, node_bytes, ring_bytes, touched_buffer, touched_bytes, touched_rows
from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Lease, Store
from .unique import Distinct, Unique


class Tiers(NamedTuple):
    """A rank's distinct rows in two tiers: `unique` over all, `cold` and `hot` which of them, `copies` where hot ones
    are.

    `buckets` and `slots` are as in `unique.Distinct`: cold rows in the order in which they come back, then the hot
    ones.
    """

    unique: Index
    buckets: Buckets
    slots: Tensor
    cold: Tensor
    hot: Tensor
    copies: Tensor


class HotCold(Unique):
    """See the module's docstring. One block of columns a table."""

    ring = False

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        super().__init__(label, shards, group, store, backend)
        self.first_copy = shards.rows_of_rank[group.rank]
        self.through_nodes = group.nodes > 1 and group.ranks_per_node > 1 and not self.ring
        if self.through_nodes:
            _ = group.node, group.rail  # made here, by all ranks, before any stream runs

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`: those of the cold strategy, its keys those of cold rows."""
        ours = {f"{self.label}.dedup": self.tiers, f"{self.label}.combine": self.combine_tiers}
        return tuple(replace(phase, run=ours.get(phase.name, phase.run)) for phase in super().forward())

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store, owners' rows and copies."""
        phases = {phase.name.removeprefix(f"{self.label}."): phase for phase in super().backward()}
        gives = tuple(f"{self.label}.{name}" for name in ("row_sums", "hot_sums"))
        exchange = HotReduce(self, lambda hot_sums, tiers: (tiers.copies, hot_sums))
        reduce = Phase("hot_reduce", exchange, ("hot_sums", "distinct"), ("hot_grads",), "network")
        apply = Phase("hot_apply", self.hot_apply, ("hot_grads", "lr", "step"), (), "compute")
        phases["local_reduce"] = replace(phases["local_reduce"], run=self.tier_sums, gives=gives)
        at = list(phases).index("owner_reduce")
        cold, scoped = list(phases.values()), [p.scoped(self.label, ("lr", "step")) for p in (reduce, apply)]
        return *cold[:at], scoped[0], cold[at], scoped[1], *cold[at + 1 :]

    def tiers(self, bags: Bags) -> Tiers:
        """Distinct rows over all tables; cold ones grouped by owner."""
        base, hot_keys = self.shards.table_base, self.shards.hot_keys
        keys = bags.ids + torch.repeat_interleave(base[:-1], self.shards.table_starts(bags).diff())
        index = unique_ids(keys, self.backend)
        copies = torch.searchsorted(hot_keys, index.rows)
        is_hot = hot_keys[copies.clamp(max=len(hot_keys) - 1)] == index.rows if len(hot_keys) else copies < 0
        cold, hot = torch.nonzero(~is_hot).flatten(), torch.nonzero(is_hot).flatten()
        row_starts = torch.searchsorted(index.rows[cold], base)
        ids = index.rows[cold] - torch.repeat_interleave(base[:-1], row_starts.diff())
        buckets = bucketize(ids, row_starts, self.shards.row_shards, self.group.size, self.backend)
        buckets = self.leaving(buckets)
        slots = torch.empty_like(index.rows)
        slots[cold[buckets.order]] = torch.arange(len(cold))
        slots[hot] = len(cold) + torch.arange(len(hot))
        return Tiers(index, buckets, slots[index.inverse], cold, hot, copies[hot])

    def combine_tiers(self, returned: Tensor, bags: Bags, tiers: Tiers, lease: Lease, training: bool) -> Tensor:
        """Pool the bags from the rows that came back and this rank's copies, each bag in the order of its ids."""
        if not training:
            self.store.release(lease, dirty=False)
        rows = torch.cat([returned, self.store.values[self.first_copy + tiers.copies]])
        return pooled_lookup(rows, tiers.slots, bags.offsets, bags.weights, "sum", backend=self.backend)

    def tier_sums(self, grad: Tensor, bags: Bags, tiers: Tiers) -> tuple[Tensor, Tensor]:
        """One gradient per distinct row of this rank: cold ones grouped by owner, and hot ones."""
        index = tiers.unique
        sums = segment_grads(grad, bags.offsets, bags.weights, "sum", index.order, index.starts, self.backend)
        return sums[tiers.cold[tiers.buckets.order]], sums[tiers.hot]

    def hot_apply(self, hot_grads: tuple[Tensor, Tensor], lr: float, step: int) -> None:
        """The same optimizer step on every copy."""
        store, (touched, grads) = self.store, hot_grads
        lease = store.prepare(self.first_copy + touched, step)
        update_rows(store.values, store.states, lease.slots, grads, store.optimizer, lr, step + 1, backend=self.backend)
        store.release(lease, dirty=True)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        values, height, world = self.store.values, len(self.shards.hot_keys), self.group.size
        if self.ring:
            hot = {"hot_reduce": ring_bytes(height * (values.shape[1] + 1), values.itemsize, world)}
        else:
            if self.through_nodes:
                row = (values.shape[1] + 1) * values.itemsize
                stages = node_bytes(height, row, world, self.group.ranks_per_node)
            else:
                stages = touched_bytes(height, values.shape[1], values.dtype, world)
            hot = {f"hot_reduce.{stage}": bytes_ for stage, bytes_ in stages.items()}
        return super().sent(counts) | hot


class HotReduce:
    """Hot rows that any rank touched, and the sum of their gradients: what the phase `hot_reduce` runs. In three steps,
    so that the sum can share a message with others.

    `mine(*values)` gives this rank's touched copies and their gradients. Travels in the tables' dtype.
    """

    def __init__(self, hot: HotCold, mine: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.hot, self.mine = hot, mine

    def __call__(self, *values: Any) -> tuple[Tensor, Tensor]:
        """By a message of its own."""
        hot, (copies, sums) = self.hot, self.mine(*values)
        label, height = f"{hot.label}.hot_reduce", len(hot.shards.hot_keys)
        return all_reduce_touched(
            hot.group, copies, sums, height, label, ring=hot.ring, through_nodes=hot.through_nodes
        )

    def pack(self, *values: Any) -> Tensor:
        """What is to be summed over ranks, flat."""
        copies, sums = self.mine(*values)
        return touched_buffer(copies, sums, len(self.hot.shards.hot_keys)).flatten()

    def unpack(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Of that sum."""
        return touched_rows(total.view(-1, self.hot.store.values.shape[1] + 1))


def all_cold(distinct: Distinct) -> Tiers:
    """The tiers of rows of which none is hot."""
    everything, none = torch.arange(len(distinct.unique.rows)), torch.zeros(0, dtype=torch.int64)
    return Tiers(*distinct, cold=everything, hot=none, copies=none)


STRATEGY = HotCold
