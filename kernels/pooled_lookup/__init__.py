"""Gather rows of a table and reduce them bag by bag: the forward of an embedding bag.

    out[b] = reduce over i in offsets[b] .. offsets[b + 1] - 1 of  weights[i] * table[ids[i]]

| argument | shape, dtype | |
|---|---|---|
| table | [rows, dim] float32, float64 | contiguous, dim >= 1; tables of one width are stacked, ids are global rows |
| ids | [N] int32, int64 | 0 <= id < rows; not checked here, see `kernels.bags.check_ids` |
| offsets | [bags + 1] int64 | first 0, last N, non-decreasing |
| weights | [N] of the table's dtype, or None | only with `sum`, as in torch |
| pooling | `sum`, `mean` | an empty bag gives zeros in both |
| out | [bags, dim] of the table's dtype | |

Accumulates in the table's dtype, in order of position within the bag, for `mean` dividing the sum once at the end; so
the result does not depend on the grid, the thread count or the other bags. Two backends may differ by the rounding of
an fma: |error| <= (n + 1) * eps * sum |w_i * row_i| for a bag of n ids (standard bound of recursive summation).
Differentiable in `table` (dense gradient, for tests and small tables; training uses `sparse_update`) and in `weights`.

Bytes: N * dim * itemsize read at random + N ids + bags * dim * itemsize written. Bound by memory everywhere.

Errors: ValueError with the expected and the given for a wrong shape, dtype, pooling or layout.
Source: torch.nn.functional.embedding_bag is the same function on one table.
"""

import torch
from torch import Tensor

from .. import _backend
from ..segment_grads import segment_grads
from ..unique_ids import unique_ids

POOLINGS = ("sum", "mean")


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None = None,
    pooling: str = "sum",
    backend: str | None = None,
) -> Tensor:
    """Pooled rows [bags, dim]. See the module's docstring for the contract."""
    _check(table, ids, offsets, weights, pooling)
    return _pooled_lookup(table, ids, offsets, weights, pooling, _backend.resolve(backend, table.device))


def _check(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str) -> None:
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
    if table.ndim != 2 or not table.is_contiguous() or table.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"table: expected a contiguous 2-D float32 or float64 tensor, given {table.dtype} {tuple(table.shape)} "
            f"with strides {table.stride()}"
        )
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids: expected a contiguous 1-D int32 or int64 tensor, given {ids.dtype} {tuple(ids.shape)}")
    if offsets.ndim != 1 or offsets.dtype != torch.int64 or not offsets.is_contiguous():
        raise ValueError(
            f"offsets: expected a contiguous 1-D int64 tensor, given {offsets.dtype} {tuple(offsets.shape)}"
        )
    if weights is not None:
        if pooling != "sum":
            raise ValueError(f"weights: expected none with pooling {pooling!r} (as in torch), or pooling 'sum'")
        if weights.shape != ids.shape or weights.dtype != table.dtype or not weights.is_contiguous():
            raise ValueError(
                f"weights: expected contiguous {table.dtype} {tuple(ids.shape)}, "
                f"given {weights.dtype} {tuple(weights.shape)}"
            )


@torch.library.custom_op(f"{_backend.NAMESPACE}::pooled_lookup", mutates_args=())
def _pooled_lookup(
    table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, backend: str
) -> Tensor:
    return _backend.load("pooled_lookup", backend).pooled_lookup(table, ids, offsets, weights, pooling)


@torch.library.custom_op(f"{_backend.NAMESPACE}::pooled_lookup_weights_grad", mutates_args=())
def _weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, backend: str) -> Tensor:
    """d weights[i] = <grad_out[bag of i], table[ids[i]]>, [N]."""
    return _backend.load("pooled_lookup", backend).weights_grad(grad_out, table, ids, offsets)


@_pooled_lookup.register_fake
def _(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, backend: str) -> Tensor:
    return table.new_empty((offsets.shape[0] - 1, table.shape[1]))


@_weights_grad.register_fake
def _(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, backend: str) -> Tensor:
    return table.new_empty((ids.shape[0],))


def _setup_context(ctx, inputs, output) -> None:  # noqa: ANN001 (torch.library calls it)
    table, ids, offsets, weights, ctx.pooling, ctx.backend = inputs
    ctx.save_for_backward(table, ids, offsets, weights)


def _backward(ctx, grad_out: Tensor):  # noqa: ANN001, ANN202 (torch.library calls it)
    table, ids, offsets, weights = ctx.saved_tensors
    grad_table = grad_weights = None
    grad_out = grad_out.contiguous()
    if ctx.needs_input_grad[0]:
        unique = unique_ids(ids, ctx.backend)
        grads = segment_grads(grad_out, offsets, weights, ctx.pooling, unique.order, unique.starts, ctx.backend)
        grad_table = torch.zeros_like(table).index_copy(0, unique.rows.long(), grads)
    if weights is not None and ctx.needs_input_grad[3]:
        grad_weights = _weights_grad(grad_out, table, ids, offsets, ctx.backend)
    return grad_table, None, None, grad_weights, None, None


_pooled_lookup.register_autograd(_backward, setup_context=_setup_context)
