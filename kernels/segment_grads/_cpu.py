"""segment_grads with Numba on the CPU: a thread takes whole rows, so nothing is added to by two of them."""

import numpy as np
from numba import prange
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, bag_of_position, cut, kernel, prefetch_row, sum_segment, threads_for


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> Tensor:
    terms, bag_of, scale = terms_of(grad_out, offsets, weights, pooling)
    out = grad_out.new_empty(len(starts) - 1, grad_out.shape[1])
    with threads_for(len(order) * grad_out.shape[1], ROW_WORK) as threads:
        cuts = cut(starts.numpy(), threads, per_segment=1)
        if winner is None:
            _sum(out.numpy(), terms, bag_of, scale, order.numpy(), starts.numpy(), cuts)
        else:
            _sum_won(out.numpy(), terms, winner.numpy(), bag_of, order.numpy(), starts.numpy(), cuts)
    return out


def terms_of(
    grad_out: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a position adds to its row: (terms [bags, dim], bag of each position [N] int32, its factor [N] or [0])."""
    grad_out = grad_out.detach()
    if pooling == "mean":
        grad_out = grad_out / offsets.diff()[:, None]  # no position uses the nan of an empty bag
    scale = grad_out.new_empty(0) if weights is None else weights.detach()
    return grad_out.numpy(), bag_of_position(offsets.numpy()), scale.numpy()


@kernel
def _sum(out, terms, bag_of, scale, order, starts, cuts):
    for t in prange(len(cuts) - 1):
        for u in range(cuts[t], cuts[t + 1]):
            sum_segment(out[u], terms, bag_of, scale, order, starts[u], starts[u + 1])


@kernel
def _sum_won(out, grad_out, winner, bag_of, order, starts, cuts):
    dim = out.shape[1]
    for t in prange(len(cuts) - 1):
        for u in range(cuts[t], cuts[t + 1]):
            for j in range(dim):
                out[u, j] = 0
            for i in range(starts[u], starts[u + 1]):
                if i + ROWS_AHEAD < len(order):
                    prefetch_row(grad_out, bag_of[order[i + ROWS_AHEAD]])
                    prefetch_row(winner, bag_of[order[i + ROWS_AHEAD]])
                bag = bag_of[order[i]]
                for j in range(dim):
                    out[u, j] += grad_out[bag, j] if winner[bag, j] == order[i] else 0
