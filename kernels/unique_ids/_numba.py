"""unique_ids in Numba CUDA, to be read: torch's stable sort and running sum, one thread per sorted position."""

import torch
from numba import cuda
from torch import Tensor

from .._numba_common import launch


@cuda.jit
def begins_run_kernel(begins, keys):
    at = cuda.grid(1)
    if at < keys.shape[0]:
        begins[at] = at == 0 or keys[at] != keys[at - 1]


@cuda.jit
def scatter_kernel(rows, inverse, starts, keys, order, runs_through):
    at = cuda.grid(1)
    n = keys.shape[0]
    if at < n:
        run = runs_through[at] - 1
        inverse[order[at]] = run
        if at == 0 or keys[at] != keys[at - 1]:
            rows[run] = keys[at]
            starts[run] = at
        if at == n - 1:
            starts[run + 1] = n


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = len(ids)
    keys, order = torch.sort(ids, stable=True)
    begins = order.new_empty(n)
    launch(begins_run_kernel, n, begins, keys)
    runs_through = begins.cumsum(0)
    distinct = int(runs_through[-1]) if n else 0
    rows, inverse, starts = ids.new_empty(distinct), order.new_empty(n), order.new_zeros(distinct + 1)
    launch(scatter_kernel, n, rows, inverse, starts, keys, order, runs_through)
    return rows, inverse, order, starts
