"""pooled_lookup with Numba on the CPU: a thread takes whole bags; rows are prefetched ahead of the sum."""

from numba import prange
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, cut, dot, kernel, prefetch_row, threads_for


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
    dim = table.shape[1]
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for i in range(offsets[cuts[t]], min(offsets[cuts[t]] + ROWS_AHEAD, last)):
            prefetch_row(table, ids[i])
        for bag in range(cuts[t], cuts[t + 1]):
            for j in range(dim):
                out[bag, j] = 0
            low, high = offsets[bag], offsets[bag + 1]
            i = low
            while (
                i + 4 <= high
            ):  # four rows at a time: `out` is read and written once for all, added to in the same order
                for k in range(i + ROWS_AHEAD, min(i + ROWS_AHEAD + 4, last)):
                    prefetch_row(table, ids[k])
                a, b, c, d = ids[i], ids[i + 1], ids[i + 2], ids[i + 3]
                if len(weights):
                    p, q, r, s = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
                    for j in range(dim):
                        out[bag, j] = (
                            (out[bag, j] + p * table[a, j]) + q * table[b, j] + r * table[c, j] + s * table[d, j]
                        )
                else:
                    for j in range(dim):
                        out[bag, j] = out[bag, j] + table[a, j] + table[b, j] + table[c, j] + table[d, j]
                i += 4
            while i < high:
                if i + ROWS_AHEAD < last:
                    prefetch_row(table, ids[i + ROWS_AHEAD])
                a = ids[i]
                p = weights[i] if len(weights) else table.dtype.type(1)  # times 1 is exact
                for j in range(dim):
                    out[bag, j] += p * table[a, j]
                i += 1
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
