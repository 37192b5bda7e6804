"""The truth of sparse_update: plain torch."""

import math
from collections.abc import Sequence

from torch import Tensor

from ..segment_grads._torch import segment_grads
from .optimizer import Numbers
from .rounding import rounded


def sparse_update(
    table: Tensor,
    states: Sequence[Tensor],
    rows: Tensor,
    bits: Tensor | None,
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    rule: str,
    decay: str,
    n: Numbers,
) -> None:
    rows = rows.long()
    grad = n.grad_scale * segment_grads(grad_out, offsets, weights, pooling, order, starts)
    weight = table[rows].to(grad.dtype)
    if n.clip < math.inf:
        grad = grad * (n.clip / grad.square().sum(1, keepdim=True).sqrt()).clamp(max=1)
    if decay == "l2":
        grad = grad + n.decay * weight
    if decay == "decoupled":
        weight = weight - n.decay * weight

    if rule == "sgd":
        step = grad
    elif rule == "adagrad":
        states[0][rows] += grad.square()
        step = grad / (states[0][rows].sqrt() + n.eps)
    elif rule == "rowwise_adagrad":
        states[0][rows] += grad.square().mean(1)
        step = grad / (states[0][rows].sqrt() + n.eps)[:, None]
    else:
        squares = grad.square() if rule == "adam" else grad.square().mean(1)
        states[0][rows] = n.beta1 * states[0][rows] + n.rest1 * grad
        states[1][rows] = n.beta2 * states[1][rows] + n.rest2 * squares
        root = states[1][rows].sqrt() * n.unbias + n.eps
        step = states[0][rows] / (root if rule == "adam" else root[:, None])
    table[rows] = rounded(weight - n.rate * step, table.dtype, bits)
