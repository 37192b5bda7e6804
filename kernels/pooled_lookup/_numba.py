"""pooled_lookup in Numba CUDA, to be read: one thread per output element.

Numba knows no bfloat16, so float16 and bfloat16 tables come as their bits, and `number` spells out what those mean.
Sums leave the kernel in float32; torch rounds them to `out_dtype`.
"""

import math

import torch
from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ..bags import accumulator

FRACTION_BITS = {torch.float16: 10, torch.bfloat16: 7}
"""Of the formats that come as bits; the other 15 or less, but for the sign, hold the exponent."""


@cuda.jit(device=True)
def number(bits, fraction_bits):
    # sign | exponent | fraction, biased by half the exponent's range; exponent 0: no leading one; all ones: inf, NaN.
    bits = int(bits) & 0xFFFF
    top = (1 << (15 - fraction_bits)) - 1
    exponent = (bits >> fraction_bits) & top
    fraction = bits & ((1 << fraction_bits) - 1)
    if exponent == top:
        magnitude = math.nan if fraction else math.inf
    elif exponent == 0:
        magnitude = math.ldexp(float(fraction), 1 - top // 2 - fraction_bits)
    else:
        magnitude = math.ldexp(float(fraction + (1 << fraction_bits)), exponent - top // 2 - fraction_bits)
    return -magnitude if bits >> 15 else magnitude


@cuda.jit(device=True)
def value_of(real, table, scale_bias, row, column, fraction_bits, scaled):
    if fraction_bits:
        return real(number(table[row, column], fraction_bits))
    value = real(table[row, column])
    if scaled:
        value = scale_bias[row, 0] * value + scale_bias[row, 1]
    return value


@cuda.jit
def pooled_lookup_kernel(out, table, scale_bias, ids, offsets, weights, fraction_bits, scaled, weighted, mean):
    bags, dim = out.shape
    element = cuda.grid(1)
    if element < bags * dim:
        bag, column = element // dim, element % dim
        begin, end = offsets[bag], offsets[bag + 1]
        real = out.dtype.type
        total = real(0)
        for position in range(begin, end):
            value = value_of(real, table, scale_bias, ids[position], column, fraction_bits, scaled)
            if weighted:
                value *= weights[position]
            total += value
        if mean and end > begin:
            total /= real(end - begin)
        out[bag, column] = total


@cuda.jit
def pooled_max_kernel(out, winner, table, scale_bias, ids, offsets, fraction_bits, scaled):
    bags, dim = out.shape
    element = cuda.grid(1)
    if element < bags * dim:
        bag, column = element // dim, element % dim
        best, at = out.dtype.type(0), -1
        for position in range(offsets[bag], offsets[bag + 1]):
            value = value_of(out.dtype.type, table, scale_bias, ids[position], column, fraction_bits, scaled)
            if at < 0 or value > best:
                best, at = value, position
        out[bag, column] = best
        winner[bag, column] = at


@cuda.jit
def weights_grad_kernel(grad_weights, grad_out, table, scale_bias, ids, offsets, fraction_bits, scaled):
    position = cuda.grid(1)
    if position < ids.shape[0]:
        bag = bag_of(offsets, position)
        real = grad_out.dtype.type
        total = real(0)
        for column in range(table.shape[1]):
            value = value_of(real, table, scale_bias, ids[position], column, fraction_bits, scaled)
            total += grad_out[bag, column] * value
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


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    out = table.new_empty(len(offsets) - 1, table.shape[1], dtype=accumulator(table.dtype))
    given, fraction_bits, scaled = rows_of(table, scale_bias)
    weighted = weights is not None
    some = weights if weighted else out.new_empty(1)
    flags = (fraction_bits, scaled, weighted, pooling == "mean")
    launch(pooled_lookup_kernel, out.numel(), out, *given, ids, offsets, some, *flags)
    return out.to(out_dtype)


def pooled_max(
    table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    out = table.new_empty(len(offsets) - 1, table.shape[1], dtype=accumulator(table.dtype))
    winner = torch.empty_like(out, dtype=torch.int64)
    given, fraction_bits, scaled = rows_of(table, scale_bias)
    launch(pooled_max_kernel, out.numel(), out, winner, *given, ids, offsets, fraction_bits, scaled)
    return out.to(out_dtype), winner


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None) -> Tensor:
    grad_weights = grad_out.new_empty(len(ids))
    given, fraction_bits, scaled = rows_of(table, scale_bias)
    launch(weights_grad_kernel, len(ids), grad_weights, grad_out, *given, ids, offsets, fraction_bits, scaled)
    return grad_weights


def rows_of(table: Tensor, scale_bias: Tensor | None) -> tuple[tuple[Tensor, Tensor], int, bool]:
    """What the kernels take for a table: (it or its bits, scale and bias), fraction bits, whether it is scaled."""
    fraction_bits = FRACTION_BITS.get(table.dtype, 0)
    table = table.detach()
    scaled = scale_bias is not None
    some = scale_bias if scaled else table.new_empty(1, 2, dtype=torch.float32)
    return (table.view(torch.int16) if fraction_bits else table, some), fraction_bits, scaled
