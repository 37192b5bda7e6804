"""bucketize with Numba on the CPU: a counting sort by owner, each thread over its own run of positions."""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .._numba_cpu import INDEX_WORK, cut_evenly, kernel, threads_for


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
    index = (x.numpy() for x in (ids.long(), table_starts, parts, span, first, owner, base))
    with threads_for(len(ids), INDEX_WORK) as threads:
        order, counts, rows = _bucketize(*index, world, cut_evenly(len(ids), threads))
    return torch.from_numpy(order), torch.from_numpy(counts), torch.from_numpy(rows)


@kernel
def _bucketize(ids, table_starts, parts, span, first, owner, base, world, cuts):
    n, threads = len(ids), len(cuts) - 1
    owners, local = np.empty(n, np.int64), np.empty(n, np.int64)
    at = np.zeros((threads, world), np.int64)
    for t in prange(threads):
        table = np.searchsorted(table_starts, cuts[t], side="right") - 1
        for i in range(cuts[t], cuts[t + 1]):
            while i >= table_starts[table + 1]:
                table += 1
            row = ids[i]
            if span[table] > 0:
                part, row = row // span[table], row % span[table]
            else:
                part, row = row % parts[table], row // parts[table]
            cell = first[table] + part
            owners[i], local[i] = owner[cell], base[cell] + row
            at[t, owners[i]] += 1
    counts = at.sum(0)
    before = 0
    for rank in range(world):
        for t in range(threads):
            count = at[t, rank]
            at[t, rank] = before
            before += count
    order, rows = np.empty(n, np.int64), np.empty(n, np.int64)
    for t in prange(threads):
        for i in range(cuts[t], cuts[t + 1]):
            k = at[t, owners[i]]
            at[t, owners[i]] = k + 1
            order[k], rows[k] = i, local[i]
    return order, counts, rows
