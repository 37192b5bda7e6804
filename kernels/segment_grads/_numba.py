"""segment_grads in Numba CUDA, to be read: one thread per output element."""

from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ..pooled_lookup._numba import bag_of


@cuda.jit
def segment_grads_kernel(out, grad_out, offsets, weights, order, starts, winner, weighted, mean, won):
    segments, dim = out.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        total = grad_out.dtype.type(0)
        for k in range(starts[segment], starts[segment + 1]):
            position = order[k]
            bag = bag_of(offsets, position)
            value = grad_out[bag, column]
            if won and winner[bag, column] != position:
                value = grad_out.dtype.type(0)
            if weighted:
                value *= weights[position]
            if mean:
                value /= grad_out.dtype.type(offsets[bag + 1] - offsets[bag])
            total += value
        out[segment, column] = total


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> Tensor:
    out = grad_out.new_empty(len(starts) - 1, grad_out.shape[1])
    weighted = weights is not None
    some = weights if weighted else grad_out.new_empty(1)
    mean, won = pooling == "mean", winner is not None
    winners = winner if won else order[None, :]
    launch(
        segment_grads_kernel,
        out.numel(),
        out,
        grad_out,
        offsets,
        some,
        order,
        starts,
        winners,
        weighted,
        mean,
        won,
    )
    return out
