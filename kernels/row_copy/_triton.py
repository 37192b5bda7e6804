"""row_copy on a GPU: a program holds ITEMS whole rows as float32 numbers, [ITEMS, COLS].

Between equal formats a row is a string of words, as wide as its length and address allow. bfloat16 is rounded by
integer arithmetic (`to_nearest`), in the interpreter and compiled alike. The quotient is rounded by adding 2^23, where
the next float32 is 1 away. Fusing multiplications with additions is off.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import LANES, LOAD_BYTES, REALS, Variant, divide, row_tile, to_nearest
from . import FORMATS, dim_of

TYPES = {**REALS, torch.int64: "i64"}
"""Triton's names of what rows are made of."""


def config(dim: int, dtype: torch.dtype, lanes: int = LANES) -> dict[str, int]:
    """Launch parameters for rows of `dim` elements read as `dtype`."""
    return row_tile(dim, dtype, whole_row=True, lanes=lanes)


@triton.jit
def load_scale(at, exists):
    # A float32 from four bytes: a packed row begins at any address. The first byte is the lowest.
    bits = tl.load(at, mask=exists, other=0).to(tl.uint32)
    for byte in tl.static_range(1, 4):
        bits |= tl.load(at + byte, mask=exists, other=0).to(tl.uint32) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_scale(at, value, exists):
    bits = value.to(tl.uint32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(at + byte, ((bits >> (8 * byte)) & 0xFF).to(tl.uint8), mask=exists)


@triton.jit
def row_copy_kernel(
    dst,  # [rows', dim], or [rows', dim + 8] bytes if TO is int8
    src,  # [rows, dim], or [rows, dim + 8] bytes if GIVEN is int8
    dst_rows,  # [n], or anything if not SCATTER
    src_rows,  # [n], or anything if not GATHER
    n,
    dim,
    GIVEN: tl.constexpr,
    TO: tl.constexpr,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.arange(0, COLS)  # [COLS]
    exists = item < n
    src_row = item
    dst_row = item
    if GATHER:
        src_row = tl.load(src_rows + item, mask=exists, other=-1).to(tl.int64)
    if SCATTER:
        dst_row = tl.load(dst_rows + item, mask=exists, other=-1).to(tl.int64)
    exists &= (src_row >= 0) & (dst_row >= 0)
    in_row = exists[:, None] & (column < dim)[None, :]
    src_stride = dim
    if GIVEN == "int8":
        src_stride = dim + 8
    dst_stride = dim
    if TO == "int8":
        dst_stride = dim + 8
    from_row = src + src_row * src_stride  # [ITEMS]
    to_row = dst + dst_row * dst_stride  # [ITEMS]
    value = tl.load(from_row[:, None] + column[None, :], mask=in_row, other=0)  # [ITEMS, COLS]
    to = to_row[:, None] + column[None, :]
    if GIVEN == TO:  # words
        tl.store(to, value, mask=in_row)
    else:
        number = value.to(tl.float32)
        if GIVEN == "int8":
            scale = load_scale(from_row + dim, exists)
            bias = load_scale(from_row + dim + 4, exists)
            number = number * scale[:, None] + bias[:, None]
        if TO == "int8":
            low = tl.min(tl.where(in_row, number, float("inf")), axis=1)  # [ITEMS]
            high = tl.max(tl.where(in_row, number, float("-inf")), axis=1)
            low = tl.where(exists, low, 0.0)
            high = tl.where(exists, high, 0.0)
            nan = tl.max(((number != number) & in_row).to(tl.int32), axis=1) > 0
            bias = low + 0.0
            scale = divide(high - low, tl.full([ITEMS], 255.0, tl.float32))
            known = (scale < float("inf")) & (nan == 0)  # an infinity gives inf or, from inf - inf, NaN
            spread = known & (scale > 0)
            quotient = divide(number - bias[:, None], tl.where(spread, scale, 1.0)[:, None])
            quotient = tl.where(spread[:, None] & in_row, quotient, 0.0)
            quotient = tl.minimum((quotient + 8388608.0) - 8388608.0, 255.0)
            tl.store(to, quotient.to(tl.uint8), mask=in_row)
            store_scale(to_row + dim, tl.where(known, scale, float("nan")), exists)
            store_scale(to_row + dim + 4, tl.where(known, bias, float("nan")), exists)
        else:
            tl.store(to, to_nearest(number, dst.dtype.element_ty), mask=in_row)


def row_copy(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None) -> None:
    n, dim = len(src) if src_rows is None else len(src_rows), dim_of(src)
    given, to = FORMATS[src.dtype], FORMATS[dst.dtype]
    if given == to:
        word = word_of(src, dst)
        src, dst = src.view(word), dst.view(word)
        dim = src.shape[1]
        given = to = "words"
    launch = config(dim, src.dtype)
    if n:
        with torch.cuda.device_of(dst if dst.is_cuda else src):
            row_copy_kernel[(triton.cdiv(n, launch["ITEMS"]),)](
                dst,
                src,
                dst if dst_rows is None else dst_rows,
                src if src_rows is None else src_rows,
                n,
                dim,
                GIVEN=given,
                TO=to,
                GATHER=src_rows is not None,
                SCATTER=dst_rows is not None,
                enable_fp_fusion=False,
                **launch,
            )


def word_of(src: Tensor, dst: Tensor) -> torch.dtype:
    """The widest integer that cuts the rows of both into words: it divides lengths and addresses."""
    bytes_ = [src.shape[1] * src.itemsize, src.data_ptr(), dst.data_ptr()]
    bytes_ += [x * rows.itemsize for rows in (src, dst) for x in (rows.storage_offset(), rows.stride(0))]
    fitting = (w for w in (torch.int64, torch.int32, torch.int16) if all(x % w.itemsize == 0 for x in bytes_))
    return next(fitting, torch.uint8)


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    compiled = []
    for given, to, dim in (
        (torch.int64, torch.int64, 64),  # words
        (torch.float32, torch.float16, 128),
        (torch.bfloat16, torch.float32, 128),
        (torch.float32, torch.bfloat16, 33),
        (torch.float32, torch.uint8, 128),
        (torch.uint8, torch.float32, 128),
    ):
        pointers = {"dst": f"*{TYPES[to]}", "src": f"*{TYPES[given]}", "dst_rows": "*i64", "src_rows": "*i64"}
        formats = {"GIVEN": FORMATS.get(given, "words"), "TO": FORMATS.get(to, "words")}
        launch = config(dim, given, lanes)
        warps = launch.pop("num_warps")
        wide = dim % 16 == 0 and given != torch.uint8  # a packed row of dim + 8 bytes begins at a multiple of 8
        compiled.append(
            Variant(
                f"row_copy-{formats['GIVEN']}-{formats['TO']}-{dim}",
                row_copy_kernel,
                {**pointers, "n": "i32", "dim": "i32"},
                {**formats, "GATHER": True, "SCATTER": True, **launch},
                (*pointers, *(["dim"] if dim % 16 == 0 else [])),
                LOAD_BYTES if wide else 0,
                warps,
            )
        )
    return compiled
