"""pooled_lookup on a GPU: a program owns ITEMS bags, keeps their sums in registers and walks them position by position.

UNROLL rows are in flight per bag: their loads do not depend on the sum, so the compiler issues them together. The sum
itself runs in order of position, so nothing depends on the grid. A bag shorter than its program's longest waits, with
its loads masked off.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import LANES, Variant, divide, row_tile, row_variant


def config(dim: int, dtype: torch.dtype, lanes: int = LANES) -> dict[str, int]:
    return {**row_tile(dim, dtype, lanes=lanes), "UNROLL": 4}


@triton.jit
def pooled_lookup_kernel(
    out,  # [bags, dim]
    table,  # [rows, dim]
    ids,  # [N]
    offsets,  # [bags + 1]
    weights,  # [N], or anything if not WEIGHTED
    bags,
    dim,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)  # [COLS]
    bag_exists = bag < bags
    column_exists = column < dim
    begin = tl.load(offsets + bag, mask=bag_exists, other=0)
    length = tl.load(offsets + bag + 1, mask=bag_exists, other=0) - begin
    total = tl.zeros([ITEMS, COLS], table.dtype.element_ty)
    for step in range(0, tl.max(length, axis=0), UNROLL):
        for ahead in tl.static_range(UNROLL):
            in_bag = step + ahead < length  # [ITEMS]
            position = begin + step + ahead
            row = tl.load(ids + position, mask=in_bag, other=0).to(tl.int64)
            in_row = in_bag[:, None] & column_exists[None, :]
            value = tl.load(table + row[:, None] * dim + column[None, :], mask=in_row, other=0.0)  # [ITEMS, COLS]
            if WEIGHTED:
                value *= tl.load(weights + position, mask=in_bag, other=0.0)[:, None]
            total += value
    if MEAN:
        total = divide(total, tl.maximum(length, 1).to(total.dtype)[:, None])
    tl.store(out + bag[:, None] * dim + column[None, :], total, mask=bag_exists[:, None] & column_exists[None, :])


@triton.jit
def weights_grad_kernel(
    grad_weights,  # [N]
    grad_out,  # [bags, dim]
    table,  # [rows, dim]
    ids,  # [N]
    offsets,  # [bags + 1]
    bags,
    dim,
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
        product = tl.zeros([ITEMS, COLS], table.dtype.element_ty)
        for first in range(0, dim, COLS):
            column = first + tl.arange(0, COLS)  # [COLS]
            in_row = in_bag[:, None] & (column < dim)[None, :]
            grad = tl.load(grad_out + bag[:, None] * dim + column[None, :], mask=in_row, other=0.0)
            product += grad * tl.load(table + row[:, None] * dim + column[None, :], mask=in_row, other=0.0)
        tl.store(grad_weights + begin + step, tl.sum(product, axis=1), mask=in_bag)


def pooled_lookup(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str) -> Tensor:
    bags, dim = len(offsets) - 1, table.shape[1]
    out = table.new_empty(bags, dim)
    launch = config(dim, table.dtype)
    grid = (triton.cdiv(bags, launch["ITEMS"]), triton.cdiv(dim, launch["COLS"]))
    if bags:
        with torch.cuda.device_of(table):
            pooled_lookup_kernel[grid](
                out,
                table,
                ids,
                offsets,
                out if weights is None else weights,
                bags,
                dim,
                WEIGHTED=weights is not None,
                MEAN=pooling == "mean",
                **launch,
            )
    return out


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    bags, dim = grad_out.shape
    grad_weights = table.new_empty(len(ids))
    launch = row_tile(dim, table.dtype)
    if bags:
        with torch.cuda.device_of(table):
            grid = (triton.cdiv(bags, launch["ITEMS"]),)
            weights_grad_kernel[grid](grad_weights, grad_out, table, ids, offsets, bags, dim, **launch)
    return grad_weights


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    pointers = {"out": "*real", "table": "*real", "ids": "*i64", "offsets": "*i64", "weights": "*real"}
    lookup = [
        row_variant(
            f"pooled_lookup-{name}",
            pooled_lookup_kernel,
            dim,
            dtype,
            {**pointers, "bags": "i32", "dim": "i32"},
            {"WEIGHTED": name == "weighted", "MEAN": name == "mean"},
            config(dim, dtype, lanes),
        )
        for name, dim, dtype in (
            ("sum", 128, torch.float32),
            ("mean", 32, torch.float32),
            ("weighted", 128, torch.float64),
            ("sum", 33, torch.float32),
        )
    ]
    pointers = {"grad_weights": "*real", "grad_out": "*real", "table": "*real", "ids": "*i64", "offsets": "*i64"}
    signature = {**pointers, "bags": "i32", "dim": "i32"}
    tile = row_tile(128, torch.float32, lanes=lanes)
    return [*lookup, row_variant("weights_grad", weights_grad_kernel, 128, torch.float32, signature, {}, tile)]
