"""segment_grads on a GPU: a program owns ITEMS distinct rows and walks the positions of each, in the order given.

No atomics: a row belongs to one program and its terms are added one after another, UNROLL loads in flight. A very
popular row is therefore one long walk; the other programs do not wait for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import LANES, Variant, divide, row_tile, row_variant

SUM_SIGNATURE = {
    "grad_out": "*real",
    "offsets": "*i64",
    "weights": "*real",
    "bag_of": "*i64",
    "order": "*i64",
    "starts": "*i64",
    "segments": "i32",
    "dim": "i32",
}


def config(dim: int, dtype: torch.dtype, whole_row: bool = False, lanes: int = LANES) -> dict[str, int]:
    return {**row_tile(dim, dtype, whole_row, lanes), "UNROLL": 4}


@triton.jit
def segment_sum(
    grad_out,
    offsets,
    weights,
    bag_of,
    order,
    begin,  # [ITEMS], first index into `order`
    length,  # [ITEMS]
    column,  # [COLS]
    dim,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    # The gradient of each row, [ITEMS, COLS]. sparse_update calls the same function, so its sums have the same bits.
    column_exists = column < dim
    total = tl.zeros([ITEMS, COLS], grad_out.dtype.element_ty)
    for step in range(0, tl.max(length, axis=0), UNROLL):
        for ahead in tl.static_range(UNROLL):
            in_segment = step + ahead < length
            position = tl.load(order + begin + step + ahead, mask=in_segment, other=0)
            bag = tl.load(bag_of + position, mask=in_segment, other=0)
            in_row = in_segment[:, None] & column_exists[None, :]
            value = tl.load(grad_out + bag[:, None] * dim + column[None, :], mask=in_row, other=0.0)  # [ITEMS, COLS]
            if WEIGHTED:
                value *= tl.load(weights + position, mask=in_segment, other=0.0)[:, None]
            if MEAN:
                bag_end = tl.load(offsets + bag + 1, mask=in_segment, other=1)
                bag_length = bag_end - tl.load(offsets + bag, mask=in_segment, other=0)
                value = divide(value, bag_length.to(value.dtype)[:, None])
            total += value
    return total


@triton.jit
def segment_grads_kernel(
    out,  # [U, dim]
    grad_out,  # [bags, dim]
    offsets,  # [bags + 1]
    weights,  # [N], or anything if not WEIGHTED
    bag_of,  # [N], the bag of each position
    order,  # [N]
    starts,  # [U + 1]
    segments,
    dim,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)  # [COLS]
    exists = segment < segments
    begin = tl.load(starts + segment, mask=exists, other=0)
    length = tl.load(starts + segment + 1, mask=exists, other=0) - begin
    total = segment_sum(
        grad_out, offsets, weights, bag_of, order, begin, length, column, dim, WEIGHTED, MEAN, ITEMS, COLS, UNROLL
    )
    tl.store(out + segment[:, None] * dim + column[None, :], total, mask=exists[:, None] & (column < dim)[None, :])


@triton.jit
def won_grads_kernel(
    out,  # [U, dim]
    grad_out,  # [bags, dim]
    winner,  # [bags, dim]
    bag_of,  # [N], the bag of each position
    order,  # [N]
    starts,  # [U + 1]
    segments,
    dim,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)  # [COLS]
    exists = segment < segments
    column_exists = column < dim
    begin = tl.load(starts + segment, mask=exists, other=0)
    length = tl.load(starts + segment + 1, mask=exists, other=0) - begin
    total = tl.zeros([ITEMS, COLS], grad_out.dtype.element_ty)
    for step in range(0, tl.max(length, axis=0), UNROLL):
        for ahead in tl.static_range(UNROLL):
            in_segment = step + ahead < length
            position = tl.load(order + begin + step + ahead, mask=in_segment, other=0)
            bag = tl.load(bag_of + position, mask=in_segment, other=0)
            in_row = in_segment[:, None] & column_exists[None, :]
            cell = bag[:, None] * dim + column[None, :]  # [ITEMS, COLS]
            won = tl.load(winner + cell, mask=in_row, other=-1) == position[:, None]
            total += tl.load(grad_out + cell, mask=in_row & won, other=0.0)
    tl.store(out + segment[:, None] * dim + column[None, :], total, mask=exists[:, None] & column_exists[None, :])


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> Tensor:
    segments, dim = len(starts) - 1, grad_out.shape[1]
    out = grad_out.new_empty(segments, dim)
    launch = config(dim, grad_out.dtype)
    grid = (triton.cdiv(segments, launch["ITEMS"]), triton.cdiv(dim, launch["COLS"]))
    if segments and winner is not None:
        bag_of = bag_of_position(offsets, len(order))
        with torch.cuda.device_of(grad_out):
            won_grads_kernel[grid](out, grad_out, winner, bag_of, order, starts, segments, dim, **launch)
    elif segments:
        with torch.cuda.device_of(grad_out):
            segment_grads_kernel[grid](
                out,
                grad_out,
                offsets,
                out if weights is None else weights,
                bag_of_position(offsets, len(order)),
                order,
                starts,
                segments,
                dim,
                WEIGHTED=weights is not None,
                MEAN=pooling == "mean",
                **launch,
            )
    return out


def bag_of_position(offsets: Tensor, n: int) -> Tensor:
    # A library primitive; the size is given so that the device is not waited for.
    return torch.repeat_interleave(offsets.diff(), output_size=n)


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    sums = [
        row_variant(
            f"segment_grads-{name}",
            segment_grads_kernel,
            dim,
            dtype,
            {"out": "*real", **SUM_SIGNATURE},
            {"WEIGHTED": name == "weighted", "MEAN": name == "mean"},
            config(dim, dtype, lanes=lanes),
        )
        for name, dim, dtype in (
            ("sum", 128, torch.float32),
            ("mean", 32, torch.float32),
            ("weighted", 128, torch.float64),
        )
    ]
    signature = {"out": "*real", "winner": "*i64"}
    signature |= {name: SUM_SIGNATURE[name] for name in SUM_SIGNATURE if name not in ("offsets", "weights")}
    tile = config(128, torch.float32, lanes=lanes)
    won = row_variant("segment_grads-max", won_grads_kernel, 128, torch.float32, signature, {}, tile)
    return [*sums, won]
