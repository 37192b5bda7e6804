"""row_copy with Numba on the CPU: a row at a time, through float32 numbers in the first-level cache.

Tensors come as bytes, so that one compiled loop serves every pair of formats; `load` and `store` know the number types.
"""

import numpy as np
import torch
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from .._numba_cpu import ROW_WORK, ROWS_AHEAD, cut_evenly, inlined, kernel, prefetch_row, threads_for
from .._numba_formats import float_of_bits, narrow, widen
from . import FORMATS, dim_of

CODES = {dtype: code for code, dtype in enumerate(FORMATS)}
FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INT8 = range(5)
INFINITY = 0x7F800000
"""The bits of float32's infinity, and its place in the order of `_ordered`; minus infinity is at -1 - INFINITY."""


@intrinsic
def load(typingctx, array, offset, like):
    """The number at byte `offset` of `array`, of the type of `like`, at any address."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), context.get_value_type(like).as_pointer())
        return builder.load(address, align=1)

    return like(array, types.intp, like), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Write `value` to byte `offset` of `array`."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), context.get_value_type(value).as_pointer())
        builder.store(args[2], address, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def copy_row(typingctx, dst, dst_row, src, src_row):
    """Copy the bytes of `src[src_row]` to `dst[dst_row]`, rows of one length: the C library's memcpy."""

    def codegen(context, builder, signature, args):
        to, given = (context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2))
        row = builder.extract_value(given.shape, 1)
        to_address = builder.gep(to.data, [builder.mul(args[1], row)])
        cgutils.raw_memcpy(builder, to_address, builder.gep(given.data, [builder.mul(args[3], row)]), row, 1)
        return context.get_dummy_value()

    return types.void(dst, types.intp, src, types.intp), codegen


def row_copy(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None) -> None:
    n, dim = len(src) if src_rows is None else len(src_rows), dim_of(src)
    everything = np.arange(n)
    index = [everything if rows is None else rows.long().numpy() for rows in (dst_rows, src_rows)]
    given = (dst.detach().view(torch.uint8).numpy(), src.detach().view(torch.uint8).numpy(), *index)
    with threads_for(n * dim, ROW_WORK) as threads:
        cuts = cut_evenly(n, threads)
        if src.dtype == dst.dtype:
            _copy(*given, cuts)
        else:
            _convert(*given, CODES[dst.dtype], CODES[src.dtype], dim, cuts)


@kernel
def _copy(dst, src, dst_rows, src_rows, cuts):
    for t in prange(len(cuts) - 1):
        for i in range(cuts[t], cuts[t + 1]):
            if i + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(src, src_rows[i + ROWS_AHEAD])
            if src_rows[i] >= 0 and dst_rows[i] >= 0:
                copy_row(dst, dst_rows[i], src, src_rows[i])


@kernel
def _convert(dst, src, dst_rows, src_rows, to, given, dim, cuts):
    for t in prange(len(cuts) - 1):
        numbers = np.empty(dim, np.float32)
        for i in range(cuts[t], cuts[t + 1]):
            if i + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(src, src_rows[i + ROWS_AHEAD])
            if src_rows[i] >= 0 and dst_rows[i] >= 0:
                _unpack(numbers, src, src_rows[i] * src.shape[1], given)
                _pack(dst, dst_rows[i] * dst.shape[1], to, numbers)


@inlined
def _unpack(numbers, src, first, given):
    dim = len(numbers)
    if given == FLOAT64:
        for j in range(dim):
            numbers[j] = load(src, first + 8 * j, np.float64(0))
    elif given == FLOAT32:
        for j in range(dim):
            numbers[j] = load(src, first + 4 * j, np.float32(0))
    elif given == FLOAT16:
        for j in range(dim):
            numbers[j] = widen(load(src, first + 2 * j, np.int16(0)))
    elif given == BFLOAT16:
        for j in range(dim):
            numbers[j] = widen(load(src, first + 2 * j, np.uint16(0)))
    else:
        scale, bias = load(src, first + dim, np.float32(0)), load(src, first + dim + 4, np.float32(0))
        row = src.reshape(-1)[first : first + dim]
        for j in range(dim):
            numbers[j] = np.float32(row[j]) * scale + bias


@inlined
def _pack(dst, first, to, numbers):
    dim = len(numbers)
    if to == FLOAT64:
        for j in range(dim):
            store(dst, first + 8 * j, np.float64(numbers[j]))
    elif to == FLOAT32:
        for j in range(dim):
            store(dst, first + 4 * j, numbers[j])
    elif to == FLOAT16:
        for j in range(dim):
            store(dst, first + 2 * j, narrow(numbers[j], np.int16(0)))
    elif to == BFLOAT16:
        for j in range(dim):
            store(dst, first + 2 * j, narrow(numbers[j], np.uint16(0)))
    else:
        _quantize(dst, first, numbers)


@inlined
def _ordered(bits):
    """A float32's bits to a whole number of the same order, and back; NaNs lie beyond the infinities."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@inlined
def _quantize(dst, first, numbers):
    dim = len(numbers)
    bits = numbers.view(np.int32)
    low_key = high_key = _ordered(np.int64(bits[0]))
    for j in range(1, dim):  # whole numbers, because a compiler may not reorder comparisons of floats
        key = _ordered(np.int64(bits[j]))
        low_key, high_key = min(low_key, key), max(high_key, key)
    low, high = float_of_bits(np.uint32(_ordered(low_key))), float_of_bits(np.uint32(_ordered(high_key)))
    bias = low + np.float32(0)
    scale = (high - low) / np.float32(255)
    known = -1 - INFINITY < low_key and high_key < INFINITY and np.isfinite(scale)
    row = dst.reshape(-1)[first : first + dim]
    if known and scale > 0:
        for j in range(dim):
            quotient = np.rint((numbers[j] - bias) / scale)
            row[j] = np.uint8(min(quotient, np.float32(255)))
    else:
        row[:] = 0
    store(dst, first + dim, scale if known else np.float32(np.nan))
    store(dst, first + dim + 4, bias if known else np.float32(np.nan))
