"""The norm of all row gradients, for clipping by it: one pass before the update, which then takes a `grad_scale`."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ..segment_grads import segment_grads


def grad_square_sum(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    backend: str | None = None,
    winner: Tensor | None = None,
) -> Tensor:
    """Sum of squares of the summed row gradients, a float64 scalar on the device; arguments as in `segment_grads`.

    Squares in float64; rows are added in a fixed tree: the same bits for any number of threads.
    """
    grads = segment_grads(grad_out, offsets, weights, pooling, order, starts, backend, winner)
    return _tree_sum(grads.double().square().sum(1))


def clip_scale(square_sums: Sequence[Tensor], max_norm: float) -> float:
    """`grad_scale` that makes the norm of all gradients at most `max_norm`; `square_sums` of every table, on one rank.

    min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. Waits for the device.

    Raises ValueError for a norm that is not finite: no scale makes such gradients good.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm: expected > 0, given {max_norm}")
    norm = sum(float(square_sum) for square_sum in square_sums) ** 0.5
    if not math.isfinite(norm):
        raise ValueError(f"gradients: expected a finite norm, given {norm}: skip the step or look for the overflow")
    return min(1.0, max_norm / (norm + 1e-6))


def _tree_sum(x: Tensor) -> Tensor:
    """Sum of [n] to a scalar: the first half plus the second, until one is left; elementwise, so in this order."""
    if len(x) == 0:
        return x.new_zeros(())
    while len(x) > 1:
        half = (len(x) + 1) // 2
        x = x[:half] + F.pad(x[half:], (0, 2 * half - len(x)))
    return x[0]
