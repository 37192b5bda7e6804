"""A hot tier over a pooled exchange: hot ids leave their bags, which the exchange pools without them; the rank adds its
copies.

A bag is the canonical sum of the owners' partial sums, plus the sum of its hot rows: a grouping of its own, so the bits
are those of the oracle with that grouping, not of the exchange without a tier.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kernels import Bags, pooled_lookup, segment_grads, unique_ids

from ._pooled import PooledExchange
from .copies import Copies
from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Store


class PooledTiers(Copies, PooledExchange):
    """See the module's docstring. What comes after it in a class's bases is the exchange of cold ids."""

    def __init__(self, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> None:
        super().__init__(label, shards, group, store, backend)
        self.hold_copies()

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        names = {f"{self.label}.{name}": f"{self.label}.cold_{name}" for name in ("bags", "pooled")}
        tiers = Phase("tiers", self.tiers, ("bags",), ("cold_bags", "hot_bags"), "compute")
        add = Phase("add_hot", self.add_hot, ("cold_pooled", "hot_bags"), ("pooled",), "compute")
        cold = (
            replace(
                phase,
                needs=tuple(names.get(name, name) for name in phase.needs),
                gives=tuple(names.get(name, name) for name in phase.gives),
            )
            for phase in super().forward()
        )
        return tiers.scoped(self.label), *cold, add.scoped(self.label)

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store, owners' rows and copies."""
        sums = Phase("local_reduce", self.hot_sums, ("grad", "hot_bags"), ("hot_rows", "hot_sums"), "compute")
        reduce, apply = self.hot_phases(lambda rows, sums: (rows, sums), ("hot_rows", "hot_sums"))
        return sums.scoped(self.label), *super().backward(), reduce, apply

    def tiers(self, bags: Bags) -> tuple[Bags, Bags]:
        """The bags without their hot ids, and with those alone, as places among the copies."""
        hot_keys = self.shards.hot_keys
        keys = bags.ids + torch.repeat_interleave(self.shards.table_base[:-1], self.shards.table_starts(bags).diff())
        copies = torch.searchsorted(hot_keys, keys)
        hot = hot_keys[copies.clamp(max=len(hot_keys) - 1)] == keys if len(hot_keys) else copies < 0
        return _some(bags, bags.ids, ~hot), _some(bags, copies, hot)

    def add_hot(self, cold: Tensor, hot: Bags) -> Tensor:
        """What owners pooled, and this rank's copies."""
        copies = self.first_copy + hot.ids
        return cold + pooled_lookup(self.store.values, copies, hot.offsets, hot.weights, "sum", backend=self.backend)

    def hot_sums(self, grad: Tensor, hot: Bags) -> tuple[Tensor, Tensor]:
        """This rank's touched copies and one gradient for each."""
        index = unique_ids(hot.ids, self.backend)
        sums = segment_grads(grad, hot.offsets, hot.weights, "sum", index.order, index.starts, self.backend)
        return index.rows, sums

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank of each network phase; see `Strategy.sent`."""
        return super().sent(counts) | self.hot_bytes()


def _some(bags: Bags, ids: Tensor, chosen: Tensor) -> Bags:
    """The bags with the `chosen` of `ids` alone."""
    before = torch.cat([chosen.new_zeros(1, dtype=torch.int64), chosen.cumsum(0)])
    return Bags(ids[chosen], before[bags.offsets], None if bags.weights is None else bags.weights[chosen])
