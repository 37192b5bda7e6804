"""Sums in the canonical order, the same bits under every strategy.

Each rank sums its own part of the batch first, by position; the sums of a node's ranks are added in rank order; the
sums of the nodes are added in node order. So two strategies that route the same gradients differently update with the
same numbers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import Unique as Index
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


def node_all_reduce(group: Group, x: Tensor, label: str) -> Tensor:
    """`canonical_all_reduce` through the nodes, the same bits: each node sums first, a chunk on each of its ranks; the
    ranks at one place of all nodes then sum the node sums of their chunk; the node gathers.

    A node of L ranks so sends 1 / L of the bytes to others, and the rest stays inside. Ask for `group.node` and
    `group.rail` before streams run.
    """
    node, rail = group.node, group.rail
    sizes = chunk_sizes(len(x), node.size)
    place, own = node.rank, rail.rank
    arrived = node.all_to_all(x, sizes, [sizes[place]] * node.size, f"{label}.node_scatter")
    of_node = _sum(torch.split(arrived, sizes[place]) if sizes[place] else [arrived] * node.size)
    shares = chunk_sizes(sizes[place], rail.size)
    arrived = rail.all_to_all(of_node, shares, [shares[own]] * rail.size, f"{label}.rail_scatter")
    total = _sum(torch.split(arrived, shares[own]) if shares[own] else [arrived] * rail.size)
    chunk = rail.all_gather(total, shares, f"{label}.rail_gather")
    return node.all_gather(chunk, sizes, f"{label}.node_gather")


def all_reduce_touched(
    group: Group, rows: Tensor, grads: Tensor, height: int, label: str, wire: Wire = "table", ring: bool = False,
    through_nodes: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sum of every rank's gradients of some of `height` rows: (rows that any rank touched, ascending; their sums).

    `rows` [n] distinct, `grads` [n, dim]. A touch count travels beside the dense buffer, so that rows nobody touched
    are left alone, whatever the optimizer does with a zero gradient. `ring` adds in the library's order, not the
    canonical. `through_nodes` takes the way of `node_all_reduce`, in the tables' format.
    """
    dense = touched_buffer(rows, grads, height)
    if ring:
        total = group.all_reduce(dense, label)
    elif through_nodes:
        total = node_all_reduce(group, dense, label)
    elif wire == "table":
        total = canonical_all_reduce(group, dense, label)
    else:
        sums = canonical_all_reduce(group, dense[:, :-1].contiguous(), label, wire)
        total = torch.cat([sums, canonical_all_reduce(group, dense[:, -1:].contiguous(), label)], dim=1)
    return touched_rows(total)


def touched_buffer(rows: Tensor, grads: Tensor, height: int) -> Tensor:
    """[height, dim + 1]: gradients of `rows`, and in the last column whether there is one."""
    dense = grads.new_zeros(height, grads.shape[1] + 1)
    dense[rows, :-1], dense[rows, -1] = grads, 1.0
    return dense


def touched_rows(total: Tensor) -> tuple[Tensor, Tensor]:
    """Of a sum of such buffers: rows with a gradient from any rank, ascending, and their sums."""
    touched = torch.nonzero(total[:, -1]).flatten()
    return touched, total[touched, :-1].contiguous()


def touched_bytes(height: int, dim: int, dtype: torch.dtype, world: int, wire: Wire = "table") -> dict[str, Tensor]:
    """Bytes of `all_reduce_touched` (canonical) from rank to rank [world, world], by what follows its label."""
    chunks = torch.tensor(chunk_sizes(height, world)) * (row_bytes(dim, dtype, wire) + dtype.itemsize)
    scatter = (chunks[None, :] * torch.ones(world, 1, dtype=torch.int64)).fill_diagonal_(0)
    return {"scatter": scatter, "gather": scatter.T}


def node_bytes(height: int, row: int, world: int, ranks_per_node: int) -> dict[str, Tensor]:
    """Bytes of `node_all_reduce` of `height` entries of `row` bytes from rank to rank [world, world], by what follows
    its label.
    """
    nodes = world // ranks_per_node
    scatter, across = torch.zeros(2, world, world, dtype=torch.int64).unbind(0)
    for place, size in enumerate(chunk_sizes(height, ranks_per_node)):
        shares = chunk_sizes(size, nodes)
        for node in range(nodes):
            to = node * ranks_per_node + place
            scatter[node * ranks_per_node : (node + 1) * ranks_per_node, to] = size * row
            across[place::ranks_per_node, to] = shares[node] * row
    scatter.fill_diagonal_(0)
    across.fill_diagonal_(0)
    return {"node_scatter": scatter, "rail_scatter": across, "rail_gather": across.T, "node_gather": scatter.T}


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


class RowOrder(NamedTuple):
    """How the terms of a canonical sum by row meet: known before the terms are.

    `levels`: one index for each level below the last, then `last`. `first` [U] is the position among the ids of one of
    each distinct row, in the order of the sums.
    """

    levels: tuple[Index, ...]
    last: Index
    first: Tensor


def row_order(rows: Tensor, source: Tensor, group: Group, summed: bool, backend: str | None) -> RowOrder:
    """The order of the canonical sum for `rows`, `source` [N] int64: row and sending rank of each id, rank-major.

    `summed` says that a rank's gradients are one per row already.
    """
    members: list[Callable[[Tensor], Tensor]] = []
    if not summed and group.size > 1:
        members.append(lambda rank: rank)
    if group.nodes > 1:
        members.append(lambda rank: rank // group.ranks_per_node)
    levels, position = [], torch.arange(len(rows), device=rows.device)
    for member in members:
        # the key sorts by row, then by member; a member's rank stands for it at the next level
        index = unique_ids(rows * group.size + member(source), backend)
        first = index.order[index.starts[:-1]]
        rows, source, position = index.rows // group.size, source[first], position[first]
        levels.append(index)
    last = unique_ids(rows, backend)
    return RowOrder(tuple(levels), last, position[last.order[last.starts[:-1]]])


def sum_in_order(
    order: RowOrder, rows: Tensor, grads: Tensor, offsets: Tensor, weights: Tensor | None, backend: str | None
) -> RowGrads:
    """Sum gradients per row up to the last level of the canonical order; `sparse_update` adds that one.

    `rows` [N]: where the row of each id is to be updated, in the order that `order` was made for; `grads`, `offsets`,
    `weights` as in `segment_grads`.
    """
    for index in order.levels:
        grads = segment_grads(grads, offsets, weights, "sum", index.order, index.starts, backend)
        offsets, weights = torch.arange(len(grads) + 1, device=grads.device), None
    return RowGrads(rows[order.first], grads, offsets, weights, order.last.order, order.last.starts)


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
    """`row_order` and `sum_in_order` at once."""
    order = row_order(rows, source, group, summed, backend)
    return sum_in_order(order, rows, grads, offsets, weights, backend)


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
