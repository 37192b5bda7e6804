"""One optimizer step on the rows that a batch touched, fused with `segment_grads`: no dense gradient, no atomics.

    g = segment_grads(grad_out, offsets, weights, pooling, order, starts)[u]      for each distinct row r = rows[u]

    sgd               table[r] -= lr * g
    rowwise_adagrad   state[r] += mean over columns of g^2;   table[r] -= lr / (sqrt(state[r]) + eps) * g

| argument | shape, dtype | |
|---|---|---|
| table | [rows, dim] float32, float64 | changed in place |
| state | [rows] like table, or None | changed in place; only `rowwise_adagrad` has one |
| rows | [U] int32, int64 | distinct (two equal rows race) |
| grad_out, offsets, weights, pooling, order, starts | | as in `segment_grads` |
| lr, eps | runtime values | a new learning rate compiles nothing |

Rows that already have their gradient (from an exchange, say) are the case of one id a bag: `update_rows` builds that
index. To sum the gradients of W ranks in rank order, concatenate them in that order and pass the index of
`unique_ids`, which is stable.

The sum is the one of `segment_grads`, bit for bit within a backend, and every row is written by one program: two runs
agree bit for bit. Untouched rows and their state are not read.

Bytes: as `segment_grads`, then U rows of the table and their state read and written.
Errors: ValueError with the expected and the given for a wrong shape, dtype, pooling, layout or optimizer.
Source: row-wise Adagrad as in FBGEMM's EXACT_ROWWISE_ADAGRAD (one accumulator a row, the mean of squares).
"""

import torch
from torch import Tensor

from .. import _backend
from ..segment_grads import check as _check_segments

OPTIMIZERS = ("sgd", "rowwise_adagrad")


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
    eps: float = 1e-8,
    backend: str | None = None,
) -> None:
    """Update `rows` of `table` and `state` in place. See the module's docstring for the contract."""
    _check_segments(grad_out, offsets, weights, pooling, order, starts)
    _check(table, state, rows, grad_out, starts, optimizer)
    name = _backend.resolve(backend, table.device)
    _sparse_update(table, state, rows, grad_out, offsets, weights, pooling, order, starts, optimizer, lr, eps, name)


def update_rows(
    table: Tensor,
    state: Tensor | None,
    rows: Tensor,
    grads: Tensor,
    optimizer: str,
    lr: float,
    eps: float = 1e-8,
    backend: str | None = None,
) -> None:
    """`sparse_update` when `grads` [U, dim] already holds one gradient per distinct row of `rows` [U]."""
    index = torch.arange(len(rows) + 1, device=rows.device)
    sparse_update(table, state, rows, grads, index, None, "sum", index[:-1], index, optimizer, lr, eps, backend)


def _check(table: Tensor, state: Tensor | None, rows: Tensor, grad_out: Tensor, starts: Tensor, optimizer: str) -> None:
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {optimizer!r}: choose one of {', '.join(OPTIMIZERS)}")
    if (
        table.ndim != 2
        or not table.is_contiguous()
        or table.dtype != grad_out.dtype
        or table.shape[1] != grad_out.shape[1]
    ):
        raise ValueError(
            f"table: expected contiguous {grad_out.dtype} [rows, {grad_out.shape[1]}] like grad_out, "
            f"given {table.dtype} {tuple(table.shape)} with strides {table.stride()}"
        )
    if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64) or len(rows) != len(starts) - 1:
        raise ValueError(f"rows: expected int32 or int64 [{len(starts) - 1}], given {rows.dtype} {tuple(rows.shape)}")
    if optimizer == "sgd" and state is not None:
        raise ValueError(f"state: expected None for sgd, given {tuple(state.shape)}")
    if optimizer != "sgd" and (state is None or state.shape != table.shape[:1] or state.dtype != table.dtype):
        given = "None" if state is None else f"{state.dtype} {tuple(state.shape)}"
        raise ValueError(f"state: expected {table.dtype} [{len(table)}] for {optimizer}, given {given}")


@torch.library.custom_op(f"{_backend.NAMESPACE}::sparse_update", mutates_args=("table", "state"))
def _sparse_update(
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
    backend: str,
) -> None:
    _backend.load("sparse_update", backend).sparse_update(
        table, state, rows, grad_out, offsets, weights, pooling, order, starts, optimizer, lr, eps
    )


@_sparse_update.register_fake
def _(
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
    backend: str,
) -> None:
    return None
