"""Every id's row travels, however often the batch names it: plain all-to-all, without de-duplication.

What FEC and others compare with. Rows lie as in `unique`; owners get a gradient for every id and sum each rank's first,
by position, so the bits are those of `unique`.
"""

import torch
from torch import Tensor

from kernels import Bags, bucketize
from kernels import Unique as Index

from .canonical import RowOrder, row_order
from .counts import Counts
from .unique import Asked, Distinct, Unique


class AllToAll(Unique):
    """See the module's docstring."""

    def dedup(self, bags: Bags) -> Distinct:
        """Every id as if no other named its row, grouped by owner."""
        starts = self.shards.table_starts(bags)
        keys = bags.ids + torch.repeat_interleave(self.shards.table_base[:-1], starts.diff())
        each = torch.arange(len(keys) + 1)
        buckets = bucketize(bags.ids, starts, self.shards.row_shards, self.group.size, self.backend)
        slots = torch.empty_like(buckets.order)
        slots[buckets.order] = each[:-1]
        return Distinct(Index(keys, each[:-1], each[:-1], each), buckets, slots)

    def index(self, asked: Asked) -> RowOrder:
        """How gradients will be summed by row: each rank's own first."""
        return row_order(asked.rows, asked.source, self.group, False, self.backend)

    def counted(self, counts: Counts) -> Tensor:
        """Rows from owner to source: one an id."""
        return counts.keys


STRATEGY = AllToAll
