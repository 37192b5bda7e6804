"""When the rows of a stream of batches travel, as counts: the bytes of `microbatch` and `prefetch` follow."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Bags

from .shards import Shards
from .when import When, part_sizes


class Travel(NamedTuple):
    """Of one batch's distinct cold rows, int64 from who asks to the owner: `early` [world, world] those that no rank
    asks for in the `depth` batches before; `first` [parts, world, world] the others, by the first part that reads them;
    `last` [parts, world, world] rows by the last part that reads them, but for `late` [world, world], those that the
    next batch does not ask for.
    """

    early: Tensor
    first: Tensor
    last: Tensor
    late: Tensor

    @staticmethod
    def of(shards: Shards, batches: Sequence[Sequence[Bags]], when: When) -> "list[Travel]":
        """Of each of `batches`, each a Bags a rank, without a window. The first have fewer before them; nothing is late
        after the last one. Plain torch, not the kernels whose traffic it predicts.
        """
        asked = [_asked(shards, batch, when.parts) for batch in batches]
        touched = [torch.unique(each.keys) for each in asked]
        found = []
        for at, (source, keys, first, last) in enumerate(asked):
            early, late = torch.zeros(2, len(keys), dtype=torch.bool)
            if when.prefetch:
                before = [keys[:0], *touched[max(at - when.depth, 0) : at]]
                early = ~torch.isin(keys, torch.cat(before))
            if when.deferral and at + 1 < len(batches):
                late = ~torch.isin(keys, touched[at + 1])
            cell = source * shards.world + _owners(shards, keys)
            found.append(
                Travel(
                    early=_count(cell[early], shards.world),
                    first=torch.stack([_count(cell[~early & (first == p)], shards.world) for p in range(when.parts)]),
                    last=torch.stack([_count(cell[~late & (last == p)], shards.world) for p in range(when.parts)]),
                    late=_count(cell[late], shards.world),
                )
            )
        return found


class _Asked(NamedTuple):
    """Rank and key of every distinct cold row that a rank asks for, and the parts that read it first and last."""

    source: Tensor
    keys: Tensor
    first: Tensor
    last: Tensor


def _asked(shards: Shards, batch: Sequence[Bags], parts: int) -> _Asked:
    tables = len(shards.tables)
    of_ranks = []
    for rank, bags in enumerate(batch):
        sizes = torch.tensor(part_sizes(shards.batch(bags), parts))
        part_of_sample = torch.repeat_interleave(torch.arange(parts), sizes)
        part = torch.repeat_interleave(part_of_sample.repeat(tables), bags.lengths)
        base = torch.repeat_interleave(shards.table_base[:-1], shards.table_starts(bags).diff())
        keys, inverse = torch.unique(bags.ids.long() + base, return_inverse=True)
        first, last = (torch.zeros(len(keys), dtype=torch.int64) for _ in range(2))
        first.scatter_reduce_(0, inverse, part, "amin", include_self=False)
        last.scatter_reduce_(0, inverse, part, "amax", include_self=False)
        cold = ~torch.isin(keys, shards.hot_keys)
        of_ranks.append((torch.full_like(keys, rank)[cold], keys[cold], first[cold], last[cold]))
    return _Asked(*(torch.cat(each) for each in zip(*of_ranks, strict=True)))


def _owners(shards: Shards, keys: Tensor) -> Tensor:
    cut = shards.row_shards
    table = torch.searchsorted(shards.table_base, keys, right=True) - 1
    ids, span = keys - shards.table_base[table], cut.span[table]
    part = torch.where(span > 0, ids // span.clamp(min=1), ids % cut.parts[table])
    return cut.owner[cut.first[table] + part]


def _count(cell: Tensor, world: int) -> Tensor:
    return torch.bincount(cell, minlength=world * world).view(world, world)
