"""sparse_update on a GPU: a program owns ITEMS distinct rows; their gradients never leave its registers.

The sum is `segment_sum` of segment_grads. Each row is read and written by one program: no atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import Variant, as_dtype, divide, root, row_variant
from ..segment_grads._triton import SUM_SIGNATURE, bag_of_position, config, segment_sum


@triton.jit
def sparse_update_kernel(
    table,  # [rows, dim], changed in place
    state,  # [rows], changed in place; or anything if not ADAGRAD
    rows,  # [U]
    grad_out,  # [bags, dim]
    offsets,  # [bags + 1]
    weights,  # [N], or anything if not WEIGHTED
    bag_of,  # [N], the bag of each position
    order,  # [N]
    starts,  # [U + 1]
    segments,
    dim,
    lr: "fp64",  # noqa: F821 (Triton's name of a type)
    eps: "fp64",  # noqa: F821
    ADAGRAD: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    ITEMS: tl.constexpr,
    COLS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    column = tl.arange(0, COLS)  # [COLS]
    exists = segment < segments
    begin = tl.load(starts + segment, mask=exists, other=0)
    length = tl.load(starts + segment + 1, mask=exists, other=0) - begin
    row = tl.load(rows + segment, mask=exists, other=0).to(tl.int64)
    grad = segment_sum(
        grad_out, offsets, weights, bag_of, order, begin, length, column, dim, WEIGHTED, MEAN, ITEMS, COLS, UNROLL
    )  # [ITEMS, COLS], 0 beyond dim
    rate = as_dtype(lr, grad.dtype)  # [1]
    if ADAGRAD:
        squares = tl.sum(grad * grad, axis=1)  # [ITEMS]
        columns = tl.full([1], 0, grad.dtype) + dim
        accumulated = tl.load(state + row, mask=exists, other=0.0) + divide(squares, columns)
        tl.store(state + row, accumulated, mask=exists)
        rate = divide(rate, root(accumulated) + as_dtype(eps, grad.dtype))  # [ITEMS]
    cell = table + row[:, None] * dim + column[None, :]
    in_row = exists[:, None] & (column < dim)[None, :]
    tl.store(cell, tl.load(cell, mask=in_row, other=0.0) - rate[:, None] * grad, mask=in_row)


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
    segments, dim = len(rows), table.shape[1]
    launch = config(dim, table.dtype, whole_row=True)
    if segments:
        with torch.cuda.device_of(table):
            sparse_update_kernel[(triton.cdiv(segments, launch["ITEMS"]),)](
                table,
                table if state is None else state,
                rows,
                grad_out,
                offsets,
                table if weights is None else weights,
                bag_of_position(offsets, len(order)),
                order,
                starts,
                segments,
                dim,
                lr,
                eps,
                ADAGRAD=optimizer == "rowwise_adagrad",
                WEIGHTED=weights is not None,
                MEAN=pooling == "mean",
                **launch,
            )


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    pointers = {"table": "*real", "state": "*real", "rows": "*i64"}
    return [
        row_variant(
            f"sparse_update-{optimizer}-{pooling}",
            sparse_update_kernel,
            dim,
            dtype,
            {**pointers, **SUM_SIGNATURE, "lr": "fp64", "eps": "fp64"},
            {"ADAGRAD": optimizer == "rowwise_adagrad", "WEIGHTED": False, "MEAN": pooling == "mean"},
            config(dim, dtype, whole_row=True, lanes=lanes),
        )
        for optimizer, pooling, dim, dtype in (
            ("sgd", "sum", 128, torch.float32),
            ("rowwise_adagrad", "mean", 128, torch.float32),
            ("rowwise_adagrad", "sum", 32, torch.float64),
        )
    ]
