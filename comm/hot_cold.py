"""Popular rows on every rank, the rest as in `unique`: FEC's tiers, exactly.

A placement's `hot` ids have a copy behind every rank's own rows. A rank reads hot rows from its copy and asks owners
for cold ones; hot gradients are summed over ranks in one dense buffer of the hot set's height, with a touch count,
and every copy takes the same step. Sums are canonical, so the bits are those of `unique`; with several nodes of several
ranks they go through the nodes, which is what makes a copy cheaper than an exchange between them. The owner's own row
of a hot id is dead weight.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Bags, Buckets, bucketize, pooled_lookup, segment_grads, unique_ids
from kernels import Unique as Index

from .copies import Copies
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


class HotCold(Copies, Unique):
    """See the module's docstring. One block of columns a table."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        super().__init__(label, shards, group, store, backend)
        self.hold_copies()

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`: those of the cold strategy, its keys those of cold rows."""
        ours = {f"{self.label}.dedup": self.tiers, f"{self.label}.combine": self.combine_tiers}
        return tuple(replace(phase, run=ours.get(phase.name, phase.run)) for phase in super().forward())

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store, owners' rows and copies."""
        phases = {phase.name.removeprefix(f"{self.label}."): phase for phase in super().backward()}
        gives = tuple(f"{self.label}.{name}" for name in ("row_sums", "hot_sums"))
        needs = ("hot_sums", "distinct")
        reduce, apply = self.hot_phases(lambda hot_sums, tiers: (tiers.copies, hot_sums), needs)
        phases["local_reduce"] = replace(phases["local_reduce"], run=self.tier_sums, gives=gives)
        at = list(phases).index("owner_reduce")
        cold = list(phases.values())
        return *cold[:at], reduce, cold[at], apply, *cold[at + 1 :]

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

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        return super().sent(counts) | self.hot_bytes()


def all_cold(distinct: Distinct) -> Tiers:
    """The tiers of rows of which none is hot."""
    everything, none = torch.arange(len(distinct.unique.rows)), torch.zeros(0, dtype=torch.int64)
    return Tiers(*distinct, cold=everything, hot=none, copies=none)


STRATEGY = HotCold
