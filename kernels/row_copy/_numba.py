"""row_copy in Numba CUDA, to be read: to float32 numbers, a thread an element, then from them to the format.

bfloat16 has no type here: it is the upper half of a float32, so these kernels see its bits (int16) and a float32's
(int32). The packed form is written by a thread a row, which needs its minimum and maximum first.
"""

import numpy as np
import torch
from numba import cuda
from torch import Tensor

from .._numba_common import launch
from . import dim_of


@cuda.jit
def gather_kernel(out, src, src_rows):
    # Also converts between the number types that Numba knows: an assignment rounds to nearest even.
    element = cuda.grid(1)
    n, dim = out.shape
    if element < n * dim and src_rows[element // dim] >= 0:
        out[element // dim, element % dim] = src[src_rows[element // dim], element % dim]


@cuda.jit
def scatter_kernel(dst, rows, dst_rows, src_rows):
    element = cuda.grid(1)
    n, dim = rows.shape
    if element < n * dim:
        i, column = element // dim, element % dim
        if src_rows[i] >= 0 and dst_rows[i] >= 0:
            dst[dst_rows[i], column] = rows[i, column]


@cuda.jit
def widen_bfloat16_kernel(bits, halves):
    element = cuda.grid(1)
    n, dim = bits.shape
    if element < n * dim:
        bits[element // dim, element % dim] = np.int32(halves[element // dim, element % dim]) << np.int32(16)


@cuda.jit
def round_bfloat16_kernel(halves, bits):
    # Adding just under half a unit, and one more where the kept bits are odd, carries exactly when it must.
    element = cuda.grid(1)
    n, dim = bits.shape
    if element < n * dim:
        word = np.int64(bits[element // dim, element % dim])
        rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
        if (word & 0x7FFFFFFF) > 0x7F800000:
            rounded = np.int64(0x7FC0)  # NaN
        halves[element // dim, element % dim] = rounded


@cuda.jit
def unpack_kernel(numbers, packed, tail):
    # q * scale is exact in float64; rounding it before the sum keeps the compiler from making one fma of both.
    element = cuda.grid(1)
    n, dim = numbers.shape
    if element < n * dim:
        i, column = element // dim, element % dim
        product = np.float32(np.float64(packed[i, column]) * np.float64(tail[i, 0]))
        numbers[i, column] = product + tail[i, 1]


@cuda.jit
def pack_kernel(packed, tail, numbers):
    i = cuda.grid(1)
    n, dim = numbers.shape
    if i < n:
        low = high = numbers[i, 0]
        nan = False
        for column in range(dim):
            number = numbers[i, column]
            low = number if number < low else low
            high = number if number > high else high
            nan |= number != number
        # float64 and back is the float32 result for -, / and +: 53 bits are more than twice 24 and 2.
        scale = np.float32(np.float32(np.float64(high) - np.float64(low)) / np.float64(255))
        known = scale < np.inf and not nan
        bias = low + np.float32(0)
        tail[i, 0] = scale if known else np.float32(np.nan)
        tail[i, 1] = bias if known else np.float32(np.nan)
        for column in range(dim):
            quotient = 0
            if known and scale > 0:
                above = np.float32(np.float64(numbers[i, column]) - np.float64(bias))
                quotient = min(round(np.float32(np.float64(above) / np.float64(scale))), 255)
            packed[i, column] = quotient


def row_copy(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None) -> None:
    n = len(src) if src_rows is None else len(src_rows)
    everything = torch.arange(n, device=dst.device)
    src_rows = everything if src_rows is None else src_rows
    dst_rows = everything if dst_rows is None else dst_rows
    if src.dtype == dst.dtype:
        src, dst = (rows.view(torch.uint8) for rows in (src, dst))  # bits, whatever they mean
        rows = src.new_zeros(n, src.shape[1])
        launch(gather_kernel, rows.numel(), rows, src, src_rows)
    else:
        rows = narrow(widen(src, src_rows), dst)
        dst = dst.view(torch.int16) if dst.dtype == torch.bfloat16 else dst
    launch(scatter_kernel, rows.numel(), dst, rows, dst_rows, src_rows)


def widen(src: Tensor, src_rows: Tensor) -> Tensor:
    """Rows of `src` as float32 [n, dim]."""
    n, dim = len(src_rows), dim_of(src)
    numbers = torch.zeros(n, dim, device=src.device)
    if src.dtype == torch.uint8:
        packed = src.new_zeros(n, src.shape[1])
        launch(gather_kernel, packed.numel(), packed, src, src_rows)
        tail = packed[:, dim:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        launch(unpack_kernel, n * dim, numbers, packed, tail)
    elif src.dtype == torch.bfloat16:
        halves = torch.zeros(n, dim, dtype=torch.int16, device=src.device)
        launch(gather_kernel, n * dim, halves, src.view(torch.int16), src_rows)
        launch(widen_bfloat16_kernel, n * dim, numbers.view(torch.int32), halves)
    else:
        launch(gather_kernel, n * dim, numbers, src, src_rows)
    return numbers


def narrow(numbers: Tensor, dst: Tensor) -> Tensor:
    """`numbers` [n, dim] in the format of `dst`; bfloat16 as its bits."""
    n, dim = numbers.shape
    if dst.dtype == torch.uint8:
        packed = dst.new_zeros(n, dim)
        tail = torch.zeros(n, 2, device=dst.device)
        launch(pack_kernel, n, packed, tail, numbers)
        return torch.cat([packed, tail.view(torch.uint8)], 1)
    if dst.dtype == torch.bfloat16:
        halves = torch.zeros(n, dim, dtype=torch.int16, device=dst.device)
        launch(round_bfloat16_kernel, n * dim, halves, numbers.view(torch.int32))
        return halves
    return numbers
