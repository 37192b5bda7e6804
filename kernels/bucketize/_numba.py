"""bucketize in Numba CUDA, to be read: route each position, torch's stable sort by owner, gather."""

import torch
from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ..pooled_lookup._numba import bag_of


@cuda.jit
def route_kernel(owners, rows, ids, table_starts, parts, span, first, owner_of_cell, base_of_cell):
    position = cuda.grid(1)
    if position < ids.shape[0]:
        table = bag_of(table_starts, position)  # tables cut positions as bags do
        id = ids[position]
        if span[table] > 0:
            part, local = id // span[table], id % span[table]
        else:
            part, local = id % parts[table], id // parts[table]
        cell = first[table] + part
        owners[position] = owner_of_cell[cell]
        rows[position] = base_of_cell[cell] + local


@cuda.jit
def gather_kernel(rows_by_owner, rows, order):
    at = cuda.grid(1)
    if at < order.shape[0]:
        rows_by_owner[at] = rows[order[at]]


@cuda.jit(device=True)
def first_at_least(sorted_owners, rank):
    low, high = 0, sorted_owners.shape[0]
    while low < high:
        middle = (low + high) // 2
        if sorted_owners[middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@cuda.jit
def count_kernel(counts, sorted_owners):
    rank = cuda.grid(1)
    if rank < counts.shape[0]:
        counts[rank] = first_at_least(sorted_owners, rank + 1) - first_at_least(sorted_owners, rank)


def bucketize(
    ids: Tensor,
    table_starts: Tensor,
    parts: Tensor,
    span: Tensor,
    first: Tensor,
    owner: Tensor,
    base: Tensor,
    world: int,
) -> tuple[Tensor, Tensor, Tensor]:
    n = len(ids)
    owners, rows, rows_by_owner = (table_starts.new_empty(n) for _ in range(3))
    counts = table_starts.new_empty(world)
    launch(route_kernel, n, owners, rows, ids, table_starts, parts, span, first, owner, base)
    sorted_owners, order = torch.sort(owners, stable=True)
    launch(count_kernel, world, counts, sorted_owners)
    launch(gather_kernel, n, rows_by_owner, rows, order)
    return order, counts, rows_by_owner
