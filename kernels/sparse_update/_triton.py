"""sparse_update on a GPU: a program owns ITEMS distinct rows; their gradients and weights never leave its registers.

The sum is `segment_sum` of segment_grads. Each row is read and written by one program: no atomics.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import REALS, Variant, as_dtype, divide, root, row_variant, to_nearest
from ..segment_grads._triton import SUM_SIGNATURE, bag_of_position, config, segment_sum
from .optimizer import STATES, Numbers, compute_dtype
from .rounding import LOWEST_EXPONENT, MANTISSA_BITS, MULTIPLIER_1, MULTIPLIER_2, STEP

WORD_STEP, WORD_MULTIPLIER_1, WORD_MULTIPLIER_2 = map(tl.constexpr, (STEP, MULTIPLIER_1, MULTIPLIER_2))


@triton.jit
def mix32(z):
    z = (z ^ (z >> 16)) * WORD_MULTIPLIER_1
    z = (z ^ (z >> 15)) * WORD_MULTIPLIER_2
    return z ^ (z >> 15)


@triton.jit
def stochastic(x, of_row, column, lowest: tl.constexpr, mantissa: tl.constexpr, unit: tl.constexpr):
    # rounding.rounded before the change of dtype: a float32 that the format can hold. `lowest` is its lowest exponent
    # as a float32 stores it, `mantissa` 2^(bits of its mantissa), `unit` the inverse.
    low, high = of_row.to(tl.uint32), (of_row >> 32).to(tl.uint32)  # [ITEMS]
    step = (column + 1).to(tl.uint32) * WORD_STEP  # [COLS]
    bits = mix32(mix32(low[:, None] + step[None, :]) ^ high[:, None])  # [ITEMS, COLS]
    power = tl.maximum(x.to(tl.int32, bitcast=True) & 0x7F800000, lowest).to(tl.float32, bitcast=True)
    units = divide(x, power) * mantissa  # exact
    below = tl.floor(units)
    uniform = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    return (below + tl.where(uniform < units - below, 1.0, 0.0)) * unit * power


@triton.jit
def sparse_update_kernel(
    table,  # [rows, dim], changed in place
    cells1,  # [rows, dim], changed in place by ADAGRAD (sums of squares) and ADAM, ROWWISE_ADAM (means of gradients)
    cells2,  # [rows, dim], changed in place by ADAM (means of squares)
    per_row,  # [rows], changed in place by the row-wise rules
    rows,  # [U]
    random,  # [U], or anything if not STOCHASTIC
    grad_out,  # [bags, dim]
    offsets,  # [bags + 1]
    weights,  # [N], or anything if not WEIGHTED
    bag_of,  # [N], the bag of each position
    order,  # [N]
    starts,  # [U + 1]
    segments,
    dim,
    rate: "fp64",  # noqa: F821 (Triton's name of a type)
    eps: "fp64",  # noqa: F821
    beta1: "fp64",  # noqa: F821
    rest1: "fp64",  # noqa: F821
    beta2: "fp64",  # noqa: F821
    rest2: "fp64",  # noqa: F821
    unbias: "fp64",  # noqa: F821
    decay: "fp64",  # noqa: F821
    clip: "fp64",  # noqa: F821
    grad_scale: "fp64",  # noqa: F821
    RULE: tl.constexpr,
    DECAY: tl.constexpr,
    CLIPPED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    LOWEST: tl.constexpr,
    MANTISSA: tl.constexpr,
    UNIT: tl.constexpr,
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
    real: tl.constexpr = grad.dtype
    grad *= as_dtype(grad_scale, real)[:, None]
    cell = row[:, None] * dim + column[None, :]
    in_row = exists[:, None] & (column < dim)[None, :]
    weight = tl.load(table + cell, mask=in_row, other=0.0).to(real)
    if CLIPPED:
        norm = root(tl.sum(grad * grad, axis=1))  # [ITEMS]
        limit = as_dtype(clip, real)
        grad *= tl.where(norm > limit, divide(limit, tl.where(norm > limit, norm, limit)), 1.0).to(real)[:, None]
    if DECAY == "l2":
        grad += as_dtype(decay, real)[:, None] * weight
    if DECAY == "decoupled":
        weight -= as_dtype(decay, real)[:, None] * weight
    if RULE == "rowwise_adagrad" or RULE == "rowwise_adam":
        mean = divide(tl.sum(grad * grad, axis=1), tl.full([1], 0, real) + dim)  # [ITEMS]
        state = tl.load(per_row + row, mask=exists, other=0.0)
        if RULE == "rowwise_adam":
            state = as_dtype(beta2, real) * state + as_dtype(rest2, real) * mean
        else:
            state += mean
        tl.store(per_row + row, state, mask=exists)
        below = (root(state) * as_dtype(unbias, real) + as_dtype(eps, real))[:, None]  # [ITEMS, 1]
    if RULE == "adam":
        squares = tl.load(cells2 + cell, mask=in_row, other=0.0)
        squares = as_dtype(beta2, real)[:, None] * squares + as_dtype(rest2, real)[:, None] * (grad * grad)
        tl.store(cells2 + cell, squares, mask=in_row)
        below = root(squares) * as_dtype(unbias, real)[:, None] + as_dtype(eps, real)[:, None]
    if RULE == "adagrad":
        squares = tl.load(cells1 + cell, mask=in_row, other=0.0) + grad * grad
        tl.store(cells1 + cell, squares, mask=in_row)
        below = root(squares) + as_dtype(eps, real)[:, None]
    if RULE == "adam" or RULE == "rowwise_adam":
        mean = tl.load(cells1 + cell, mask=in_row, other=0.0)
        grad = as_dtype(beta1, real)[:, None] * mean + as_dtype(rest1, real)[:, None] * grad
        tl.store(cells1 + cell, grad, mask=in_row)
    speed = as_dtype(rate, real)[:, None]  # [1, 1]
    if RULE == "sgd":
        weight -= speed * grad
    elif RULE == "rowwise_adagrad" or RULE == "rowwise_adam":
        weight -= divide(speed, below) * grad
    else:
        weight -= speed * divide(grad, below)
    if STOCHASTIC:
        of_row = tl.load(random + segment, mask=exists, other=0)
        weight = stochastic(weight, of_row, column, LOWEST, MANTISSA, UNIT)
    tl.store(table + cell, to_nearest(weight, table.dtype.element_ty), mask=in_row)


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
    segments, dim = len(rows), table.shape[1]
    launch = config(dim, grad_out.dtype, whole_row=True)
    cells = [state for state, kind in zip(states, STATES[rule], strict=True) if kind == "cell"]
    per_row = [state for state, kind in zip(states, STATES[rule], strict=True) if kind == "row"]
    cells += [grad_out] * (2 - len(cells))
    if segments:
        with torch.cuda.device_of(table):
            sparse_update_kernel[(triton.cdiv(segments, launch["ITEMS"]),)](
                table,
                *cells,
                *(per_row or [grad_out]),
                rows,
                rows if bits is None else bits,
                grad_out,
                offsets,
                grad_out if weights is None else weights,
                bag_of_position(offsets, len(order)),
                order,
                starts,
                segments,
                dim,
                *numbers,
                **_choices(table.dtype, rule, decay, numbers.clip < math.inf, bits is not None),
                WEIGHTED=weights is not None,
                MEAN=pooling == "mean",
                **launch,
            )


def _choices(dtype: torch.dtype, rule: str, decay: str, clipped: bool, random: bool) -> dict:
    """What a step compiles for; for other formats the last three stand for nothing."""
    mantissa = MANTISSA_BITS.get(dtype, 0)
    return {
        "RULE": rule,
        "DECAY": decay,
        "CLIPPED": clipped,
        "STOCHASTIC": random,
        "LOWEST": 127 + LOWEST_EXPONENT.get(dtype, 0) << 23,
        "MANTISSA": 2.0**mantissa,
        "UNIT": 2.0**-mantissa,
    }


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles for a GPU with warps of `lanes`."""
    pointers = {"table": "*real", "cells1": "*grad", "cells2": "*grad", "per_row": "*grad", "rows": "*i64"}
    found = []
    for rule, pooling, dim, dtype, decay, clipped, random in (
        ("sgd", "sum", 128, torch.float32, "none", False, False),
        ("rowwise_adagrad", "mean", 128, torch.float32, "none", False, False),
        ("rowwise_adagrad", "sum", 32, torch.float64, "none", False, False),
        ("adagrad", "sum", 128, torch.float32, "l2", True, False),
        ("adam", "sum", 128, torch.float32, "decoupled", False, False),
        ("rowwise_adam", "sum", 128, torch.float16, "none", False, True),
        ("sgd", "sum", 128, torch.bfloat16, "none", False, True),
    ):
        signature = {**pointers, "random": "*i64", **SUM_SIGNATURE, "grad_out": "*grad", "weights": "*grad"}
        signature |= dict.fromkeys(Numbers._fields, "fp64")
        grad = REALS[compute_dtype(dtype)]
        found.append(
            row_variant(
                f"sparse_update-{rule}-{pooling}-{decay}" + ("-stochastic" if random else ""),
                sparse_update_kernel,
                dim,
                dtype,
                {argument: kind.replace("grad", grad) for argument, kind in signature.items()},
                {**_choices(dtype, rule, decay, clipped, random), "WEIGHTED": False, "MEAN": pooling == "mean"},
                config(dim, compute_dtype(dtype), whole_row=True, lanes=lanes),
            )
        )
    return found
