"""Ids -> per-owner segments: who holds each row, and which row it is there.

Table t is cut into `parts[t]` row shards, by modulo (`span[t]` = 0) or by range (`span[t]` rows a part). Each (table,
part) is a *cell*; the cells of table t begin at `first[t]`. `owner[cell]` is the rank that holds the shard,
`base[cell]` the row of the owner's stacked array where it begins.

    part(id)   = id %  parts   or  id // span
    local(id)  = id // parts   or  id %  span
    cell       = first[t] + part(id)

| result | shape | |
|---|---|---|
| order | [N] int64 | positions, grouped by owner, ascending within an owner (stable) |
| counts | [world] int64 | ids for each owner |
| rows | [N] int64 | `base[cell] + local(id)` of `ids[order]`: what the owners look up |

`table_starts` [T + 1] int64 gives the table of each position: the ids of table t are
`ids[table_starts[t] : table_starts[t + 1]]` (0 <= id < rows of the table).
A whole table is `parts = 1`.

A column shard is a further table with the same ids: for a table cut into C blocks of columns, repeat its ids C times,
as C tables, each with row shards of its own (a grid, if they have several parts), whose rows are as wide as the block.
The owners of block c then get each id once, and what they send back are columns of the row, joined in order of c.
Nothing else differs, so the op knows no columns; reading the ids in place would save the 16 bytes an id that repeating
them costs, beside the 32 of the op.

Exact: integers only, every backend gives the same bits.

Bytes: N ids read twice, N positions and rows written.
Errors: ValueError with the expected and the given for a wrong shape, dtype or layout.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backend


class Buckets(NamedTuple):
    """Positions grouped by owner. See the module's docstring."""

    order: Tensor
    counts: Tensor
    rows: Tensor


class RowShards(NamedTuple):
    """Where the rows of each table live: int64 tensors `parts`, `span`, `first` [T], `owner`, `base` [cells].

    See the module's docstring.
    """

    parts: Tensor
    span: Tensor
    first: Tensor
    owner: Tensor
    base: Tensor


def bucketize(ids: Tensor, table_starts: Tensor, shards: RowShards, world: int, backend: str | None = None) -> Buckets:
    """Group `ids` [N] by the rank (0 .. world - 1) that owns their row. See the module's docstring for the contract."""
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids: expected a contiguous 1-D int32 or int64 tensor, given {ids.dtype} {tuple(ids.shape)}")
    tables = len(table_starts) - 1
    for name, index in zip(("table_starts", *shards._fields), (table_starts, *shards), strict=True):
        if index.ndim != 1 or index.dtype != torch.int64 or not index.is_contiguous():
            raise ValueError(
                f"{name}: expected a contiguous 1-D int64 tensor, given {index.dtype} {tuple(index.shape)}"
            )
    if not len(shards.parts) == len(shards.span) == len(shards.first) == tables:
        raise ValueError(f"shards: expected parts, span and first of {tables} tables, given {len(shards.parts)}")
    return Buckets(*_bucketize(ids, table_starts, *shards, world, _backend.resolve(backend, ids.device)))


@torch.library.custom_op(f"{_backend.NAMESPACE}::bucketize", mutates_args=())
def _bucketize(
    ids: Tensor,
    table_starts: Tensor,
    parts: Tensor,
    span: Tensor,
    first: Tensor,
    owner: Tensor,
    base: Tensor,
    world: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    implementation = _backend.load("bucketize", backend)
    return implementation.bucketize(ids, table_starts, parts, span, first, owner, base, world)


@_bucketize.register_fake
def _(
    ids: Tensor,
    table_starts: Tensor,
    parts: Tensor,
    span: Tensor,
    first: Tensor,
    owner: Tensor,
    base: Tensor,
    world: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    order = ids.new_empty(ids.shape[0], dtype=torch.int64)
    return order, ids.new_empty(world, dtype=torch.int64), torch.empty_like(order)
