"""segment_grads with Numba on the CPU: a thread takes whole rows, so nothing is added to by two of them."""

import numpy as np
from numba import prange
from torch import Tensor

from .._numba_cpu import INDEX_WORK, ROW_WORK, ROWS_AHEAD, cut, kernel, prefetch_row, threads_for
from .._numba_sums import sum_rows


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> Tensor:
    terms, bags, factors = terms_of(grad_out, offsets, weights, pooling, order)
    out = grad_out.new_empty(len(starts) - 1, grad_out.shape[1])
    with threads_for(len(order) * grad_out.shape[1], ROW_WORK) as threads:
        cuts = cut(starts.numpy(), threads, per_segment=1)
        if winner is None:
            _sum(out.numpy(), terms, bags, factors, starts.numpy(), cuts)
        else:
            _sum_won(out.numpy(), terms, winner.numpy(), bags, order.numpy(), starts.numpy(), cuts)
    return out


def terms_of(
    grad_out: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, order: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the positions add to their rows, as sum_rows takes it.

    (terms [bags, dim], the bag of each position in the order of `order` [N] int64, its factor [N] or [0])
    """
    grad_out = grad_out.detach()
    if pooling == "mean":
        grad_out = grad_out / offsets.diff()[:, None]  # no position uses the nan of an empty bag
    factors = grad_out.new_empty(0) if weights is None else weights.detach()
    with threads_for(len(order), INDEX_WORK):
        return grad_out.numpy(), *_in_order(offsets.numpy(), factors.numpy(), order.numpy())


@kernel
def _in_order(offsets, factors, order):
    bag_of = np.empty(len(order), np.int32)
    for bag in prange(len(offsets) - 1):
        for position in range(offsets[bag], offsets[bag + 1]):
            bag_of[position] = bag
    bags, ordered = np.empty(len(order), np.int64), np.empty_like(factors)
    for i in prange(len(order)):
        bags[i] = bag_of[order[i]]
        if len(factors):
            ordered[i] = factors[order[i]]
    return bags, ordered


@kernel
def _sum(out, terms, bags, factors, starts, cuts):
    for t in prange(len(cuts) - 1):
        last = starts[cuts[t + 1]]
        for u in range(cuts[t], cuts[t + 1]):
            sum_rows(out, u, terms, bags, factors, starts[u], starts[u + 1], last)


@kernel
def _sum_won(out, grad_out, winner, bags, order, starts, cuts):
    dim = out.shape[1]
    for t in prange(len(cuts) - 1):
        for u in range(cuts[t], cuts[t + 1]):
            for j in range(dim):
                out[u, j] = 0
            for i in range(starts[u], starts[u + 1]):
                if i + ROWS_AHEAD < len(order):
                    prefetch_row(grad_out, bags[i + ROWS_AHEAD])
                    prefetch_row(winner, bags[i + ROWS_AHEAD])
                bag = bags[i]
                for j in range(dim):
                    out[u, j] += grad_out[bag, j] if winner[bag, j] == order[i] else 0
