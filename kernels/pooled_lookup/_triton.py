"""pooled_lookup on a GPU: a program owns ITEMS bags, keeps their sums in registers and walks them position by position.

UNROLL rows are in flight per bag: their loads do not depend on the sum, so the compiler issues them together. The sum
itself runs in order of position, so nothing depends on the grid. A bag shorter than its program's longest waits, with
its loads masked off. Rows are widened to float32 right after the load.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import LANES, Variant, divide, row_tile, row_variant, to_nearest, widen


def config(dim: int, dtype: torch.dtype, lanes: int = LANES) -> dict[str, int]:
    return {**row_tile(dim, dtype, lanes=lanes), "UNROLL": 4}


@triton.jit
def load_rows(
    table,
    scale_bias,
    row,  # [ITEMS] int64
    column,  # [COLS]
    exists,  # [ITEMS]
    dim,
    SCALED: tl.constexpr,
):
    # The numbers of a row each, [ITEMS, COLS], in the dtype of the sums; 0 where there is none.
    in_row = exists[:, None] & (column < dim)[None, :]
    value = widen(tl.load(table + row[:, None] * dim + column[None, :], mask=in_row, other=0))
    if SCALED:
        scale = tl.load(scale_bias + row * 2, mask=exists, other=0.0)[:, None]
        value = value * scale + tl.load(scale_bias + row * 2 + 1, mask=exists, other=0.0)[:, None]
    return value


@triton.jit
def pooled_lookup_kernel(
    out,  # [bags, dim]
    table,  # [rows, dim]
    scale_bias,  # [rows, 2], or anything if not SCALED
    ids,  # [N]
    offsets,  # [bags + 1]
    weights,  # [N], or anything if not WEIGHTED
    bags,
    dim,
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)  # [COLS]
    bag_exists = bag < bags
    begin = tl.load(offsets + bag, mask=bag_exists, other=0)
    length = tl.load(offsets + bag + 1, mask=bag_exists, other=0) - begin
    total = widen(tl.zeros([ITEMS, COLS], table.dtype.element_ty))
    for step in range(0, tl.max(length, axis=0), UNROLL):
        for ahead in tl.static_range(UNROLL):
            in_bag = step + ahead < length  # [ITEMS]
            position = begin + step + ahead
            row = tl.load(ids + position, mask=in_bag, other=0).to(tl.int64)
            value = load_rows(table, scale_bias, row, column, in_bag, dim, SCALED)  # [ITEMS, COLS]
            if WEIGHTED:
                value *= tl.load(weights + position, mask=in_bag, other=0.0)[:, None]
            total += value
    if MEAN:
        total = divide(total, tl.maximum(length, 1).to(total.dtype)[:, None])
    cell = out + bag[:, None] * dim + column[None, :]
    tl.store(cell, to_nearest(total, out.dtype.element_ty), mask=bag_exists[:, None] & (column < dim)[None, :])


@triton.jit
def pooled_max_kernel(
    out,  # [bags, dim]
    winner,  # [bags, dim]
    table,  # [rows, dim]
    scale_bias,  # [rows, 2], or anything if not SCALED
    ids,  # [N]
    offsets,  # [bags + 1]
    bags,
    dim,
    SCALED: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)  # [COLS]
    bag_exists = bag < bags
    begin = tl.load(offsets + bag, mask=bag_exists, other=0)
    length = tl.load(offsets + bag + 1, mask=bag_exists, other=0) - begin
    best = widen(tl.zeros([ITEMS, COLS], table.dtype.element_ty))
    best_step = tl.full([ITEMS, COLS], -1, tl.int32)
    for step in range(0, tl.max(length, axis=0).to(tl.int32), UNROLL):
        for ahead in tl.static_range(UNROLL):
            in_bag = step + ahead < length  # [ITEMS]
            row = tl.load(ids + begin + step + ahead, mask=in_bag, other=0).to(tl.int64)
            value = load_rows(table, scale_bias, row, column, in_bag, dim, SCALED)  # [ITEMS, COLS]
            better = in_bag[:, None] & ((value > best) | (best_step < 0))
            best = tl.where(better, value, best)
            best_step = tl.where(better, step + ahead, best_step)
    cell = bag[:, None] * dim + column[None, :]
    exists = bag_exists[:, None] & (column < dim)[None, :]
    tl.store(out + cell, to_nearest(best, out.dtype.element_ty), mask=exists)
    tl.store(winner + cell, tl.where(best_step < 0, -1, begin[:, None] + best_step), mask=exists)


@triton.jit
def weights_grad_kernel(
    grad_weights,  # [N]
    grad_out,  # [bags, dim]
    table,  # [rows, dim]
    scale_bias,  # [rows, 2], or anything if not SCALED
    ids,  # [N]
    offsets,  # [bags + 1]
    bags,
    dim,
    SCALED: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    bag_exists = bag < bags
    begin = tl.load(offsets + bag, mask=bag_exists, other=0)
    length = tl.load(offsets + bag + 1, mask=bag_exists, other=0) - begin
    for step in range(tl.max(length, axis=0)):
        in_bag = step < length
        row = tl.load(ids + begin + step, mask=in_bag, other=0).to(tl.int64)
        product = tl.zeros([ITEMS, COLS], grad_out.dtype.element_ty)
        for first in range(0, dim, COLS):
            column = first + tl.arange(0, COLS)  # [COLS]
            in_row = in_bag[:, None] & (column < dim)[None, :]
            grad = tl.load(grad_out + bag[:, None] * dim + column[None, :], mask=in_row, other=0.0)
            product += grad * load_rows(table, scale_bias, row, column, in_bag, dim, SCALED)
        tl.store(grad_weights + begin + step, tl.sum(product, axis=1), mask=in_bag)


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    bags, dim = len(offsets) - 1, table.shape[1]
    out = table.new_empty(bags, dim, dtype=out_dtype)
    launch = config(dim, table.dtype)
    grid = (triton.cdiv(bags, launch["ITEMS"]), triton.cdiv(dim, launch["COLS"]))
    if bags:
        with torch.cuda.device_of(table):
            pooled_lookup_kernel[grid](
                out,
                table,
                out if scale_bias is None else scale_bias,
                ids,
                offsets,
                out if weights is None else weights,
                bags,
                dim,
                SCALED=scale_bias is not None,
                WEIGHTED=weights is not None,
                MEAN=pooling == "mean",
                **launch,
            )
    return out


def pooled_max(
    table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    bags, dim = len(offsets) - 1, table.shape[1]
    out = table.new_empty(bags, dim, dtype=out_dtype)
    winner = table.new_empty(bags, dim, dtype=torch.int64)
    launch = config(dim, table.dtype)
    grid = (triton.cdiv(bags, launch["ITEMS"]), triton.cdiv(dim, launch["COLS"]))
    if bags:
        some = out if scale_bias is None else scale_bias
        with torch.cuda.device_of(table):
            pooled_max_kernel[grid](
                out, winner, table, some, ids, offsets, bags, dim, SCALED=scale_bias is not None, **launch
            )
    return out, winner


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None) -> Tensor:
    bags, dim = grad_out.shape
    grad_weights = grad_out.new_empty(len(ids))
    launch = row_tile(dim, grad_out.dtype)
    if bags:
        some = grad_out if scale_bias is None else scale_bias
        grid = (triton.cdiv(bags, launch["ITEMS"]),)
        with torch.cuda.device_of(table):
            weights_grad_kernel[grid](
                grad_weights, grad_out, table, some, ids, offsets, bags, dim, SCALED=scale_bias is not None, **launch
            )
    return grad_weights


POINTERS = {"table": "*real", "scale_bias": "*fp32", "ids": "*i64", "offsets": "*i64"}
SIZES = {"bags": "i32", "dim": "i32"}


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    lookups = [
        row_variant(
            f"pooled_lookup-{name}-to_{out}",
            pooled_lookup_kernel,
            dim,
            dtype,
            {**POINTERS, "out": f"*{out}", "weights": "*fp64" if dtype == torch.float64 else "*fp32", **SIZES},
            {"SCALED": dtype == torch.uint8, "WEIGHTED": name == "weighted", "MEAN": name == "mean"},
            config(dim, dtype, lanes),
        )
        for name, dim, dtype, out in (
            ("sum", 128, torch.float32, "fp32"),
            ("mean", 32, torch.float32, "fp32"),
            ("weighted", 128, torch.float64, "fp64"),
            ("sum", 33, torch.float32, "fp32"),
            ("sum", 128, torch.float16, "fp16"),
            ("sum", 128, torch.bfloat16, "bf16"),
            ("weighted", 128, torch.uint8, "fp32"),
        )
    ]
    pointers = {"out": "*real", "winner": "*i64", **POINTERS, **SIZES}
    tile = config(128, torch.float32, lanes)
    best = row_variant("pooled_max", pooled_max_kernel, 128, torch.float32, pointers, {"SCALED": False}, tile)
    pointers = {"grad_weights": "*real", "grad_out": "*real", **POINTERS, **SIZES}
    tile = row_tile(128, torch.float32, lanes=lanes)
    dots = row_variant("weights_grad", weights_grad_kernel, 128, torch.float32, pointers, {"SCALED": False}, tile)
    return [*lookups, best, dots]
