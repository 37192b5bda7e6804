"""pooled_lookup with Numba on the CPU: a thread takes whole bags and sums blocks of columns in registers."""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, cut, kernel, prefetch_row, threads_for
from .._numba_formats import bits_of
from .._numba_sums import dot, sum_rows
from ..bags import accumulator
from ._cpu_formats import FORMATS, dot_rows, pool, pool_max

NO_FACTORS = {torch.float32: np.empty(0, np.float32), torch.float64: np.empty(0, np.float64)}
NO_SCALES = np.empty((0, 2), np.float32)


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    real = accumulator(table.dtype)
    out = table.new_empty(len(offsets) - 1, table.shape[1], dtype=out_dtype)
    factors = NO_FACTORS[real] if weights is None else weights.detach().numpy()
    index = (ids.long().numpy(), offsets.numpy(), factors, pooling == "mean")
    with threads_for(len(ids) * table.shape[1], ROW_WORK) as threads:
        cuts = cut(offsets.numpy(), threads, per_segment=1)
        if table.dtype == out_dtype == real:
            _pool(out.numpy(), table.detach().numpy(), *index, cuts)
        else:
            pool(*_bytes_of(out), bits_of(table), _scales(scale_bias), *index, cuts)
    return out


def pooled_max(
    table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    out = table.new_empty(len(offsets) - 1, table.shape[1], dtype=accumulator(table.dtype))
    winner = torch.empty_like(out, dtype=torch.int64)
    index = (ids.long().numpy(), offsets.numpy())
    with threads_for(len(ids) * table.shape[1], ROW_WORK) as threads:
        cuts = cut(offsets.numpy(), threads, per_segment=1)
        pool_max(out.numpy(), winner.numpy(), *_bytes_of(table), _scales(scale_bias), *index, cuts)
    return out.to(out_dtype), winner


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None) -> Tensor:
    out = grad_out.new_empty(len(ids))
    index = (ids.long().numpy(), offsets.numpy())
    with threads_for(len(ids) * table.shape[1], ROW_WORK) as threads:
        cuts = cut(offsets.numpy(), threads, per_segment=1)
        if table.dtype == grad_out.dtype:
            _dot(out.numpy(), grad_out.detach().numpy(), table.detach().numpy(), *index, cuts)
        else:
            given = (grad_out.detach().numpy(), *_bytes_of(table), _scales(scale_bias))
            dot_rows(out.numpy(), *given, *index, cuts)
    return out


def _bytes_of(rows: Tensor) -> tuple[int, np.ndarray]:
    """The number of the format of `rows`, and its bytes, [rows, dim * itemsize]."""
    return [*FORMATS].index(rows.dtype), rows.detach().view(torch.uint8).numpy()


def _scales(scale_bias: Tensor | None) -> np.ndarray:
    """Scale and bias of each row, [0, 2] if there are none."""
    return NO_SCALES if scale_bias is None else scale_bias.detach().numpy()


@kernel
def _pool(out, table, ids, offsets, weights, mean, cuts):
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            low, high = offsets[bag], offsets[bag + 1]
            sum_rows(out, bag, table, ids, weights, low, high, last)
            if mean and high > low:
                for j in range(table.shape[1]):
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
