"""pooled_lookup in Numba CUDA, to be read: one thread per output element."""

from numba import cuda
from torch import Tensor

from .._numba_common import launch


@cuda.jit
def pooled_lookup_kernel(out, table, ids, offsets, weights, weighted, mean):
    bags, dim = out.shape
    element = cuda.grid(1)
    if element < bags * dim:
        bag, column = element // dim, element % dim
        begin, end = offsets[bag], offsets[bag + 1]
        total = table.dtype.type(0)
        for position in range(begin, end):
            value = table[ids[position], column]
            if weighted:
                value *= weights[position]
            total += value
        if mean and end > begin:
            total /= table.dtype.type(end - begin)
        out[bag, column] = total


@cuda.jit
def weights_grad_kernel(grad_weights, grad_out, table, ids, offsets):
    position = cuda.grid(1)
    if position < ids.shape[0]:
        bag = bag_of(offsets, position)
        total = table.dtype.type(0)
        for column in range(table.shape[1]):
            total += grad_out[bag, column] * table[ids[position], column]
        grad_weights[position] = total


@cuda.jit(device=True)
def bag_of(offsets, position):
    # The last bag that begins at or before `position`.
    low, high = 0, offsets.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle] <= position:
            low = middle
        else:
            high = middle
    return low


def pooled_lookup(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str) -> Tensor:
    out = table.new_empty(len(offsets) - 1, table.shape[1])
    weighted = weights is not None
    some = weights if weighted else table.new_empty(1)
    launch(pooled_lookup_kernel, out.numel(), out, table, ids, offsets, some, weighted, pooling == "mean")
    return out


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    grad_weights = table.new_empty(len(ids))
    launch(weights_grad_kernel, len(ids), grad_weights, grad_out, table, ids, offsets)
    return grad_weights
