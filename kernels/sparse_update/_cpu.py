"""sparse_update with Numba on the CPU: a row's gradient stays in the cache, while the next rows are fetched."""

import numpy as np
from numba import prange
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, cut, dot, kernel, prefetch_row, sum_segment, threads_for
from ..segment_grads._cpu import terms_of

PER_ROW = 4
"""What a row costs (its weights come from memory and go back), in positions (their gradients come from the cache)."""


def sparse_update(
    table: Tensor,
    state: Tensor | None,
    rows: Tensor,
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    optimizer: str,
    lr: float,
    eps: float,
) -> None:
    terms, bag_of, scale = terms_of(grad_out, offsets, weights, pooling)
    weight = table.detach().numpy()
    number = weight.dtype.type
    with threads_for(len(order) * table.shape[1], ROW_WORK) as threads:
        cuts = cut(starts.numpy(), threads, PER_ROW)
        index = (rows.long().numpy(), terms, bag_of, scale, order.numpy(), starts.numpy(), cuts)
        if optimizer == "sgd":
            _sgd(weight, number(lr), *index)
        else:
            _rowwise_adagrad(weight, state.detach().numpy(), number(lr), number(eps), *index)


@kernel
def _sgd(table, lr, rows, terms, bag_of, scale, order, starts, cuts):
    dim = table.shape[1]
    for t in prange(len(cuts) - 1):
        grad = np.empty(dim, table.dtype)
        for u in range(cuts[t], cuts[t + 1]):
            if u + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(table, rows[u + ROWS_AHEAD])
            sum_segment(grad, terms, bag_of, scale, order, starts[u], starts[u + 1])
            row = rows[u]
            for j in range(dim):
                table[row, j] -= lr * grad[j]


@kernel
def _rowwise_adagrad(table, state, lr, eps, rows, terms, bag_of, scale, order, starts, cuts):
    dim = table.shape[1]
    for t in prange(len(cuts) - 1):
        grad = np.empty(dim, table.dtype)
        for u in range(cuts[t], cuts[t + 1]):
            if u + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(table, rows[u + ROWS_AHEAD])
                prefetch_row(state, rows[u + ROWS_AHEAD])
            sum_segment(grad, terms, bag_of, scale, order, starts[u], starts[u + 1])
            row = rows[u]
            state[row] += dot(grad, grad) / dim
            step = lr / (np.sqrt(state[row]) + eps)
            for j in range(dim):
                table[row, j] -= step * grad[j]
