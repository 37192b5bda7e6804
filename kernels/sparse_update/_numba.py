"""sparse_update in Numba CUDA, to be read: gradients, norms and states of rows, then weights (a thread an element).

Half-precision weights are widened before and rounded after by torch (`rounding.py`), which has them as types.
"""

import math
from collections.abc import Sequence

from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ..segment_grads._numba import segment_grads
from .optimizer import STATES, Numbers
from .rounding import rounded


@cuda.jit
def clip_kernel(grads, scale, clip):
    segment = cuda.grid(1)
    if segment < grads.shape[0]:
        real = grads.dtype.type
        squares = real(0)
        for column in range(grads.shape[1]):
            grads[segment, column] *= real(scale)
            squares += grads[segment, column] * grads[segment, column]
        norm = real(math.sqrt(squares))
        if norm > clip:
            for column in range(grads.shape[1]):
                grads[segment, column] *= real(clip) / norm


@cuda.jit
def decay_kernel(grads, weights, decay, decoupled):
    segments, dim = grads.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        term = grads.dtype.type(decay) * weights[segment, column]
        if decoupled:
            weights[segment, column] -= term
        else:
            grads[segment, column] += term


@cuda.jit
def row_kernel(state, rows, grads, keep, add):
    """state[row] = keep * state[row] + add * mean of squares."""
    segment = cuda.grid(1)
    if segment < rows.shape[0]:
        real = grads.dtype.type
        squares = real(0)
        for column in range(grads.shape[1]):
            squares += grads[segment, column] * grads[segment, column]
        mean = squares / real(grads.shape[1])
        state[rows[segment]] = real(keep) * state[rows[segment]] + real(add) * mean


@cuda.jit
def cell_kernel(state, rows, grads, keep, add, squared):
    """state[row, column] = keep * state[row, column] + add * gradient, or its square."""
    segments, dim = grads.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        real = grads.dtype.type
        grad = grads[segment, column]
        term = grad * grad if squared else grad
        row = rows[segment]
        state[row, column] = real(keep) * state[row, column] + real(add) * term


@cuda.jit
def sgd_kernel(weights, grads, rate):
    segments, dim = grads.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        weights[segment, column] -= weights.dtype.type(rate) * grads[segment, column]


@cuda.jit
def divided_kernel(weights, steps, rows, cells, by_row, whole_row, rate, unbias, eps):
    """weight -= rate * step / (sqrt(state) * unbias + eps), with the state of the cell or of the row."""
    segments, dim = steps.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        real = weights.dtype.type
        row = rows[segment]
        state = by_row[row] if whole_row else cells[row, column]
        root = real(math.sqrt(state)) * real(unbias) + real(eps)
        weights[segment, column] -= real(rate) * (steps[segment, column] / root)


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
    grads = segment_grads(grad_out, offsets, weights, pooling, order, starts)
    index = rows.long()
    touched = table.detach()[index].to(grads.dtype)
    launch(clip_kernel, len(rows), grads, n.grad_scale, n.clip)
    if decay != "none":
        launch(decay_kernel, grads.numel(), grads, touched, n.decay, decay == "decoupled")
    if rule == "sgd":
        launch(sgd_kernel, grads.numel(), touched, grads, n.rate)
    else:
        keep, add = (n.beta2, n.rest2) if rule.endswith("adam") else (1.0, 1.0)
        whole_row = STATES[rule][-1] == "row"
        if whole_row:
            launch(row_kernel, len(rows), states[-1], rows, grads, keep, add)
        else:
            launch(cell_kernel, grads.numel(), states[-1], rows, grads, keep, add, True)
        steps = grads
        if rule.endswith("adam"):
            launch(cell_kernel, grads.numel(), states[0], rows, grads, n.beta1, n.rest1, False)
            steps = states[0][index]
        cells, by_row = (grads, states[-1]) if whole_row else (states[-1], grads.view(-1))  # the other is not read
        last = (n.rate, n.unbias, n.eps)
        launch(divided_kernel, grads.numel(), touched, steps, rows, cells, by_row, whole_row, *last)
    table.detach()[index] = rounded(touched, table.dtype, bits)
