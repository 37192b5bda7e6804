"""sparse_update with Numba on the CPU: one pass over a row while it is hot; its weights and states are fetched ahead.

The gradient of a row stays in the first-level cache, where the rule turns it into the step; then the weights are read,
moved and rounded in one loop.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, cut, inlined, kernel, prefetch_row, threads_for
from .._numba_formats import VIEWS, bits_of, float_bits, float_of_bits, narrow, widen
from .._numba_sums import dot, sum_rows
from ..segment_grads._cpu import terms_of
from .optimizer import RULES, STATES, Numbers
from .rounding import LOWEST_EXPONENT, MANTISSA_BITS, MULTIPLIER_1, MULTIPLIER_2, STEP

PER_ROW = 4
"""What a row costs (its weights come from memory and go back), in positions (their gradients come from the cache)."""

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, ROWWISE_ADAM = range(len(RULES))
NONE, L2, DECOUPLED = range(3)
DECAYS = {"none": NONE, "l2": L2, "decoupled": DECOUPLED}


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
    numbers: Numbers,
) -> None:
    terms, bags, factors = terms_of(grad_out, offsets, weights, pooling, order)
    random = rows.new_empty(0).long() if bits is None else bits
    constants = np.array(numbers, terms.dtype)
    with threads_for(len(order) * table.shape[1], ROW_WORK) as threads:
        cuts = cut(starts.numpy(), threads, PER_ROW * (1 + STATES[rule].count("cell")))
        index = (rows.long().numpy(), terms, bags, factors, starts.numpy(), cuts)
        if rule == "sgd" and _is_plain(table, decay, numbers):
            _sgd(table.detach().numpy(), constants, *index)
        elif rule == "rowwise_adagrad" and _is_plain(table, decay, numbers):
            _rowwise_adagrad(table.detach().numpy(), states[0].detach().numpy(), constants, *index)
        else:
            kept = _by_kind(table, states, rule)
            _update(bits_of(table), *kept, random.numpy(), RULES.index(rule), DECAYS[decay], constants, *index)


def _is_plain(table: Tensor, decay: str, numbers: Numbers) -> bool:
    return table.dtype not in VIEWS and decay == "none" and numbers.clip == np.inf and numbers.grad_scale == 1


def _by_kind(table: Tensor, states: Sequence[Tensor], rule: str) -> list[np.ndarray]:
    """Two states of cells and one of rows; empty where the rule has none."""
    kinds = {"cell": [], "row": []}
    for state, kind in zip(states, STATES[rule], strict=True):
        kinds[kind].append(state.detach().numpy())
    dtype = np.float64 if table.dtype == torch.float64 else np.float32
    cells = kinds["cell"] + [np.empty((0, table.shape[1]), dtype)] * (2 - len(kinds["cell"]))
    return [*cells, *(kinds["row"] or [np.empty(0, dtype)])]


@kernel
def _sgd(table, numbers, rows, terms, bags, factors, starts, cuts):
    """`_update` for the most common choices, without its branches: faster where rows are short."""
    dim, rate = table.shape[1], numbers[0]
    for t in prange(len(cuts) - 1):
        last = starts[cuts[t + 1]]
        sums = np.empty((1, dim), table.dtype)
        grad = sums[0]
        for u in range(cuts[t], cuts[t + 1]):
            if u + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(table, rows[u + ROWS_AHEAD])
            sum_rows(sums, 0, terms, bags, factors, starts[u], starts[u + 1], last)
            row = rows[u]
            for j in range(dim):
                table[row, j] -= rate * grad[j]


@kernel
def _rowwise_adagrad(table, state, numbers, rows, terms, bags, factors, starts, cuts):
    """Likewise."""
    dim, rate, eps = table.shape[1], numbers[0], numbers[1]
    for t in prange(len(cuts) - 1):
        last = starts[cuts[t + 1]]
        sums = np.empty((1, dim), table.dtype)
        grad = sums[0]
        for u in range(cuts[t], cuts[t + 1]):
            if u + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(table, rows[u + ROWS_AHEAD])
                prefetch_row(state, rows[u + ROWS_AHEAD])
            sum_rows(sums, 0, terms, bags, factors, starts[u], starts[u + 1], last)
            row = rows[u]
            state[row] += dot(grad, grad) / dim
            step = rate / (np.sqrt(state[row]) + eps)
            for j in range(dim):
                table[row, j] -= step * grad[j]


@kernel
def _update(table, cell1, cell2, per_row, random, rule, decay, numbers, rows, terms, bags, factors, starts, cuts):
    dim = table.shape[1]
    rate, eps, beta1, rest1, beta2 = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    rest2, unbias, decay_rate, clip, grad_scale = numbers[5], numbers[6], numbers[7], numbers[8], numbers[9]
    shrink = decay_rate if decay == DECOUPLED else numbers.dtype.type(0)
    for t in prange(len(cuts) - 1):
        last = starts[cuts[t + 1]]
        sums = np.empty((1, dim), terms.dtype)
        step = sums[0]
        for u in range(cuts[t], cuts[t + 1]):
            if u + ROWS_AHEAD < cuts[t + 1]:
                ahead = rows[u + ROWS_AHEAD]
                prefetch_row(table, ahead)
                if len(per_row):
                    prefetch_row(per_row, ahead)
                if len(cell1):
                    prefetch_row(cell1, ahead)
                    if len(cell2):
                        prefetch_row(cell2, ahead)
            row = rows[u]
            sum_rows(sums, 0, terms, bags, factors, starts[u], starts[u + 1], last)
            _scale(step, grad_scale)
            if clip < np.inf:
                norm = np.sqrt(dot(step, step))
                if norm > clip:
                    _scale(step, clip / norm)
            if decay == L2:
                for j in range(dim):
                    step[j] += decay_rate * widen(table[row, j])
            speed = rate
            if rule == ROWWISE_ADAGRAD:
                per_row[row] += dot(step, step) / dim
                speed = rate / (np.sqrt(per_row[row]) + eps)
            elif rule == ADAGRAD:
                for j in range(dim):
                    cell1[row, j] += step[j] * step[j]
                    step[j] /= np.sqrt(cell1[row, j]) + eps
            elif rule == ADAM:
                for j in range(dim):
                    cell1[row, j] = beta1 * cell1[row, j] + rest1 * step[j]
                    cell2[row, j] = beta2 * cell2[row, j] + rest2 * (step[j] * step[j])
                    step[j] = cell1[row, j] / (np.sqrt(cell2[row, j]) * unbias + eps)
            elif rule == ROWWISE_ADAM:
                per_row[row] = beta2 * per_row[row] + rest2 * (dot(step, step) / dim)
                speed = rate / (np.sqrt(per_row[row]) * unbias + eps)
                for j in range(dim):
                    cell1[row, j] = beta1 * cell1[row, j] + rest1 * step[j]
                    step[j] = cell1[row, j]
            if len(random):
                for j in range(dim):
                    weight = widen(table[row, j])
                    weight = (weight - shrink * weight) - speed * step[j]
                    table[row, j] = _stochastic(weight, _cell_bits(random[u], j), table[row, j])
            else:
                for j in range(dim):
                    weight = widen(table[row, j])  # minus 0 times itself is exact
                    table[row, j] = narrow((weight - shrink * weight) - speed * step[j], table[row, j])


@inlined
def _scale(row, factor):
    for j in range(len(row)):
        row[j] *= factor


@inlined
def _cell_bits(of_row, column):
    """As `rounding.cell_bits`."""
    low, high = np.uint32(of_row & 0xFFFFFFFF), np.uint32((of_row >> 32) & 0xFFFFFFFF)
    return _mix32(_mix32(np.uint32(low + np.uint32(np.uint32(column + 1) * np.uint32(STEP)))) ^ high)


@inlined
def _mix32(z):
    z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(MULTIPLIER_1))
    z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(MULTIPLIER_2))
    return np.uint32(z ^ (z >> np.uint32(15)))


def _stochastic(x, bits, like):
    """As `rounding.rounded`, in the format that `like` stands for: int16 float16, uint16 bfloat16."""
    raise NotImplementedError("compiled code only")


@overload(_stochastic, jit_options={"error_model": "numpy"})
def _stochastic_in(x, bits, like):
    if isinstance(like, types.Float):  # has nothing to round: `random` is empty
        return lambda x, bits, like: x
    format_ = next(dtype for dtype, view in VIEWS.items() if str(view).endswith(f".{like}"))
    lowest = np.uint32(127 + LOWEST_EXPONENT[format_] << 23)  # as the exponent of a float32 is stored
    scale, unscale = np.float32(2 ** MANTISSA_BITS[format_]), np.float32(2.0 ** -MANTISSA_BITS[format_])

    def stochastic(x, bits, like):
        power = float_of_bits(max(float_bits(x) & np.uint32(0x7F800000), lowest))
        units = x / power * scale  # exact
        below = np.floor(units)
        up = np.float32(bits >> np.uint32(8)) * np.float32(2.0**-24) < units - below
        return narrow((below + np.float32(up)) * unscale * power, like)

    return stochastic
