"""Sums in the canonical order, the same bits under every strategy.

Each rank sums its own part of the batch first, by position; the sums of a node's ranks are added in rank order; the
sums of the nodes are added in node order. So two strategies that route the same gradients differently update with the
same numbers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import segment_grads, sparse_update, unique_ids

from .group import Group
from .store import Store
from .wire import Wire, pack, row_bytes, send_values, unpack


class RowGrads(NamedTuple):
    """Partial sums of gradients and their rows, ready for `kernels.sparse_update` (pooling `sum`)."""

    rows: Tensor
    grads: Tensor
    offsets: Tensor
    weights: Tensor | None
    order: Tensor
    starts: Tensor


def canonical_sum(parts: Sequence[Tensor], ranks_per_node: int) -> Tensor:
    """Sum of one tensor per rank, node by node."""
    nodes = [_sum(parts[at : at + ranks_per_node]) for at in range(0, len(parts), ranks_per_node)]
    return _sum(nodes)


def canonical_all_reduce(group: Group, x: Tensor, label: str, wire: Wire = "table") -> Tensor:
    """Canonical sum of every rank's `x` [n, ...], on every rank: all-to-all of chunks, sum, all-gather.

    A `wire` other than the table's takes `x` [n, dim] and rounds what is sent, twice: the terms, then the sums.

    Bytes a rank sends: (size - 1) / size * bytes of x in each of the two, as in a ring.
    """
    sizes = chunk_sizes(len(x), group.size)
    mine = sizes[group.rank]
    arrived = send_values(group, x, sizes, [mine] * group.size, f"{label}.scatter", wire)
    total = canonical_sum(torch.split(arrived, mine) if mine else [arrived] * group.size, group.ranks_per_node)
    return unpack(group.all_gather(pack(total, wire), sizes, f"{label}.gather"), x.shape[-1], x.dtype, wire)


def all_reduce_touched(
    group: Group, rows: Tensor, grads: Tensor, height: int, label: str, wire: Wire = "table", ring: bool = False
) -> tuple[Tensor, Tensor]:
    """Sum of every rank's gradients of some of `height` rows: (rows that any rank touched, ascending; their sums).

    `rows` [n] distinct, `grads` [n, dim]. A touch count travels beside the dense buffer, so that rows nobody touched
    are left alone, whatever the optimizer does with a zero gradient. `ring` adds in the library's order, not the
    canonical.
    """
    dense = grads.new_zeros(height, grads.shape[1] + 1)
    dense[rows, :-1], dense[rows, -1] = grads, 1.0
    if ring:
        total = group.all_reduce(dense, label)
    elif wire == "table":
        total = canonical_all_reduce(group, dense, label)
    else:
        sums = canonical_all_reduce(group, dense[:, :-1].contiguous(), label, wire)
        total = torch.cat([sums, canonical_all_reduce(group, dense[:, -1:].contiguous(), label)], dim=1)
    touched = torch.nonzero(total[:, -1]).flatten()
    return touched, total[touched, :-1].contiguous()


def touched_bytes(height: int, dim: int, dtype: torch.dtype, world: int, wire: Wire = "table") -> dict[str, Tensor]:
    """Bytes of `all_reduce_touched` (canonical) from rank to rank [world, world], by what follows its label."""
    chunks = torch.tensor(chunk_sizes(height, world)) * (row_bytes(dim, dtype, wire) + dtype.itemsize)
    scatter = (chunks[None, :] * torch.ones(world, 1, dtype=torch.int64)).fill_diagonal_(0)
    return {"scatter": scatter, "gather": scatter.T}


def ring_bytes(entries: int, itemsize: int, world: int) -> Tensor:
    """Bytes of `Group.all_reduce` from rank to rank [world, world]."""
    chunks = torch.tensor(chunk_sizes(entries, world)) * itemsize
    rank, sent = torch.arange(world), torch.zeros(world, world, dtype=torch.int64)
    after = (rank + 1) % world
    sent[rank, after] = 2 * chunks.sum() - chunks[after] - chunks[(rank + 2) % world]
    return sent.fill_diagonal_(0)


def chunk_sizes(n: int, size: int) -> list[int]:
    """`n` entries cut over `size` ranks, the first ones taking one more."""
    return [n // size + (rank < n % size) for rank in range(size)]


def group_by_row(
    rows: Tensor,
    source: Tensor,
    grads: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    group: Group,
    summed: bool,
    backend: str | None,
) -> RowGrads:
    """Sum gradients per row up to the last level of the canonical order; `sparse_update` adds that one.

    `rows`, `source` [N] int64: row and sending rank of each id, rank-major; `grads`, `offsets`, `weights` as in
    `segment_grads`. `summed` says that a rank's gradients are one per row already.
    """
    levels: list[Callable[[Tensor], Tensor]] = []
    if not summed and group.size > 1:
        levels.append(lambda rank: rank)
    if group.nodes > 1:
        levels.append(lambda rank: rank // group.ranks_per_node)
    for member in levels:
        # `key` sorts by row, then by member; a member's rank stands for it at the next level
        index = unique_ids(rows * group.size + member(source), backend)
        grads = segment_grads(grads, offsets, weights, "sum", index.order, index.starts, backend)
        rows, source = index.rows // group.size, source[index.order[index.starts[:-1]]]
        offsets, weights = torch.arange(len(rows) + 1, device=rows.device), None
    index = unique_ids(rows, backend)
    return RowGrads(index.rows, grads, offsets, weights, index.order, index.starts)


def apply_grads(store: Store, sums: RowGrads, lr: float, step: int, backend: str | None) -> None:
    """The last level of the canonical sum and the optimizer step, fused, on touched rows of `store`; `step` from 0."""
    sparse_update(
        store.values,
        store.states,
        sums.rows,
        sums.grads,
        sums.offsets,
        sums.weights,
        "sum",
        sums.order,
        sums.starts,
        store.optimizer,
        lr,
        step + 1,
        backend=backend,
    )


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
