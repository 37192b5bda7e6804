"""pooled_lookup with Numba on the CPU: a thread takes whole bags and sums blocks of columns in registers."""

from numba import prange
from torch import Tensor

from .._numba_cpu import (
    ROW_WORK,
    ROWS_AHEAD,
    cut,
    dot,
    kernel,
    prefetch_row,
    sum_eight_lines,
    sum_one_line,
    threads_for,
    weigh_eight_lines,
    weigh_one_line,
)


def pooled_lookup(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str) -> Tensor:
    out = table.new_empty(len(offsets) - 1, table.shape[1])
    factors = table.new_empty(0) if weights is None else weights.detach()
    given = (table.detach().numpy(), ids.long().numpy(), offsets.numpy(), factors.numpy())
    with threads_for(len(ids) * table.shape[1], ROW_WORK) as threads:
        _pool(out.numpy(), *given, pooling == "mean", cut(offsets.numpy(), threads, per_segment=1))
    return out


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    out = table.new_empty(len(ids))
    given = (grad_out.detach().numpy(), table.detach().numpy(), ids.long().numpy(), offsets.numpy())
    with threads_for(len(ids) * table.shape[1], ROW_WORK) as threads:
        _dot(out.numpy(), *given, cut(offsets.numpy(), threads, per_segment=1))
    return out


@kernel
def _pool(out, table, ids, offsets, weights, mean, cuts):
    dim, line = table.shape[1], 64 // table.itemsize
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            low, high = offsets[bag], offsets[bag + 1]
            column = 0
            while column + 8 * line <= dim:
                if len(weights):
                    weigh_eight_lines(out, bag, table, ids, weights, low, high, last, column)
                else:
                    sum_eight_lines(out, bag, table, ids, weights, low, high, last, column)
                column += 8 * line
            while column + line <= dim:
                if len(weights):
                    weigh_one_line(out, bag, table, ids, weights, low, high, last, column)
                else:
                    sum_one_line(out, bag, table, ids, weights, low, high, last, column)
                column += line
            for j in range(column, dim):
                out[bag, j] = 0
            for i in range(low, high):
                weight = weights[i] if len(weights) else table.dtype.type(1)  # times 1 is exact
                for j in range(column, dim):
                    out[bag, j] += weight * table[ids[i], j]
            if mean and high > low:
                for j in range(dim):
                    out[bag, j] /= high - low


@kernel
def _dot(out, grad_out, table, ids, offsets, cuts):
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            for i in range(offsets[bag], offsets[bag + 1]):
                if i + ROWS_AHEAD < last:
                    prefetch_row(table, ids[i + ROWS_AHEAD])
                out[i] = dot(grad_out[bag], table[ids[i]])
