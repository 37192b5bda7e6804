"""One optimizer step on the rows that a batch touched, fused with `segment_grads`: no dense gradient, no atomics.

For each distinct row r = rows[u], w = table[r] and its states, in this order:

    g = grad_scale * segment_grads(grad_out, offsets, weights, pooling, order, starts)[u]
    clip_row_norm c    g *= min(1, c / |g|)                 L2 decay d    g += d * w
    decoupled decay d  w -= lr * d * w                      then the rule:

    sgd               w -= lr * g
    adagrad           h += g^2;                  w -= lr * g / (sqrt(h) + eps)
    rowwise_adagrad   h += mean over columns of g^2, one h a row;   w -= lr / (sqrt(h) + eps) * g
    adam              m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2;
                      w -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
    rowwise_adam      as adam, with v one number a row, fed by the mean of g^2

    table[r] = w, rounded to nearest even, or stochastically (`rounding.py`)

Everything is lazy: a row that no id names keeps its weights and states bit for bit, whatever its momentum or decay, and
Adam's bias correction goes by the global `step`, not by how often a row was touched (as torch.optim.SparseAdam).

| argument | shape, dtype | |
|---|---|---|
| table | [rows, dim] float64, float32, float16, bfloat16 | contiguous; changed in place |
| states | [rows, dim] or [rows] each, as `state_like(table, optimizer)` makes them | changed in place |
| rows | [U] int32, int64 | distinct (two equal rows race) |
| grad_out, offsets, weights, pooling, order, starts, winner | | as in `segment_grads` |
| lr, step, grad_scale | run-time values, step from 1 | new ones compile nothing |
| row_keys | [U] int64 or None (then `rows`) | what stochastic rounding knows a row by |

Arithmetic, gradients and states are float32 (float64 tables: float64). Where rows are slots, or tables are stacked, let
`row_keys` number (table, row): then a weight's random bits do not depend on where it lies.

Rows that already have their gradient (from an exchange, say) are the case of one id a bag: `update_rows` builds that
index. To sum the gradients of W ranks in rank order, concatenate them in that order and pass the index of
`unique_ids`, which is stable. To clip by the global norm, give the `grad_square_sum` of every table (and rank) to
`clip_scale`, and what it returns as `grad_scale`. With pooling `max` the row gradients are summed in memory first.

The sum is the one of `segment_grads`, bit for bit within a backend, and every row is written by one program: two runs,
and any number of threads, agree bit for bit. Untouched rows and their states are not read.

Bytes: as `segment_grads`, then U rows of the table and their states read and written.
Errors: ValueError with the expected and the given for a wrong shape, dtype, pooling, layout or step.
Sources: row-wise Adagrad as FBGEMM's EXACT_ROWWISE_ADAGRAD (the mean of squares), row-wise Adam as its
PARTIAL_ROWWISE_ADAM; Adam as torch.optim.Adam, decoupled as torch.optim.AdamW.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .. import _backend
from ..segment_grads import check as _check_segments
from ..segment_grads import segment_grads
from .norm import clip_scale, grad_square_sum
from .optimizer import RULES, Numbers, Optimizer, check_states, compute_dtype, numbers_of, state_like
from .rounding import MANTISSA_BITS, row_bits

__all__ = [
    "RULES",
    "Optimizer",
    "clip_scale",
    "grad_square_sum",
    "numbers_of",
    "sparse_update",
    "state_like",
    "update_rows",
]

TABLE_DTYPES = (torch.float64, torch.float32, *MANTISSA_BITS)


def sparse_update(
    table: Tensor,
    states: Sequence[Tensor],
    rows: Tensor,
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    optimizer: Optimizer,
    lr: float,
    step: int = 1,
    grad_scale: float = 1.0,
    row_keys: Tensor | None = None,
    winner: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Update `rows` of `table` and `states` in place. See the module's docstring for the contract."""
    if winner is not None:  # a column's gradient goes to one position of its bag: summed first, in memory
        grads = segment_grads(grad_out, offsets, weights, pooling, order, starts, backend, winner)
        update_rows(table, states, rows, grads, optimizer, lr, step, grad_scale, row_keys, backend)
        return
    _check_segments(grad_out, offsets, weights, pooling, order, starts)
    _check(table, rows, row_keys, grad_out, starts)
    check_states(table, states, optimizer.name)
    numbers = numbers_of(optimizer, lr, step, grad_scale)
    bits = None
    if optimizer.stochastic_rounding and table.dtype in MANTISSA_BITS:
        bits = row_bits(optimizer.seed, step, rows.long() if row_keys is None else row_keys)
    name = _backend.resolve(backend, table.device)
    segments = (grad_out, offsets, weights, pooling, order, starts)
    given = (table, states, rows, bits, *segments, optimizer.name, optimizer.decay)
    if _backend.plain(table, *states, rows, bits, grad_out, offsets, weights, order, starts):
        _backend.load("sparse_update", name).sparse_update(*given, numbers)
        increment_version([table, *states])  # autograd must see that they changed, as the dispatcher would tell it
        return
    _sparse_update(*given, numbers, name)


def update_rows(
    table: Tensor,
    states: Sequence[Tensor],
    rows: Tensor,
    grads: Tensor,
    optimizer: Optimizer,
    lr: float,
    step: int = 1,
    grad_scale: float = 1.0,
    row_keys: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """`sparse_update` when `grads` [U, dim] already holds one gradient per distinct row of `rows` [U]."""
    index = torch.arange(len(rows) + 1, device=rows.device)
    segments = (grads, index, None, "sum", index[:-1], index)
    sparse_update(table, states, rows, *segments, optimizer, lr, step, grad_scale, row_keys, backend=backend)


def _check(table: Tensor, rows: Tensor, row_keys: Tensor | None, grad_out: Tensor, starts: Tensor) -> None:
    if (
        table.ndim != 2
        or not table.is_contiguous()
        or table.dtype not in TABLE_DTYPES
        or table.shape[1] != grad_out.shape[1]
    ):
        raise ValueError(
            f"table: expected contiguous [rows, {grad_out.shape[1]}] like grad_out, of "
            f"{', '.join(str(dtype) for dtype in TABLE_DTYPES)}, "
            f"given {table.dtype} {tuple(table.shape)} with strides {table.stride()}"
        )
    if grad_out.dtype != compute_dtype(table.dtype):
        raise ValueError(
            f"grad_out: expected {compute_dtype(table.dtype)} for a table of {table.dtype}, given {grad_out.dtype}"
        )
    if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64) or len(rows) != len(starts) - 1:
        raise ValueError(f"rows: expected int32 or int64 [{len(starts) - 1}], given {rows.dtype} {tuple(rows.shape)}")
    if row_keys is not None and (row_keys.dtype != torch.int64 or row_keys.shape != rows.shape):
        raise ValueError(f"row_keys: expected int64 [{len(rows)}], given {row_keys.dtype} {tuple(row_keys.shape)}")


@torch.library.custom_op(f"{_backend.NAMESPACE}::sparse_update", mutates_args=("table", "states"))
def _sparse_update(
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
    numbers: Sequence[float],
    backend: str,
) -> None:
    _backend.load("sparse_update", backend).sparse_update(
        table, states, rows, bits, grad_out, offsets, weights, pooling, order, starts, rule, decay, Numbers(*numbers)
    )


@_sparse_update.register_fake
def _(
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
    numbers: Sequence[float],
    backend: str,
) -> None:
    return None
