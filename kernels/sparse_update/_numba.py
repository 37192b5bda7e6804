"""sparse_update in Numba CUDA, to be read: gradients, the state (a thread a row), the table (a thread an element)."""

import math

from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ..segment_grads._numba import segment_grads


@cuda.jit
def accumulate_kernel(state, rows, grads):
    segment = cuda.grid(1)
    if segment < rows.shape[0]:
        squares = grads.dtype.type(0)
        for column in range(grads.shape[1]):
            squares += grads[segment, column] * grads[segment, column]
        state[rows[segment]] += squares / grads.dtype.type(grads.shape[1])


@cuda.jit
def sgd_kernel(table, rows, grads, lr):
    segments, dim = grads.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        table[rows[segment], column] -= table.dtype.type(lr) * grads[segment, column]


@cuda.jit
def adagrad_kernel(table, state, rows, grads, lr, eps):
    segments, dim = grads.shape
    element = cuda.grid(1)
    if element < segments * dim:
        segment, column = element // dim, element % dim
        real = table.dtype.type
        rate = real(lr) / (real(math.sqrt(state[rows[segment]])) + real(eps))
        table[rows[segment], column] -= rate * grads[segment, column]


def sparse_update(
    table: Tensor,
    state: Tensor | None,
    rows: Tensor,
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    optimizer: str,
    lr: float,
    eps: float,
) -> None:
    grads = segment_grads(grad_out, offsets, weights, pooling, order, starts)
    if optimizer == "sgd":
        launch(sgd_kernel, grads.numel(), table, rows, grads, lr)
    else:
        launch(accumulate_kernel, len(rows), state, rows, grads)
        launch(adagrad_kernel, grads.numel(), table, state, rows, grads, lr, eps)
