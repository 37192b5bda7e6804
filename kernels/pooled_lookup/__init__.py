"""Gather rows of a table and reduce them bag by bag: the forward of an embedding bag.

    out[b] = reduce over i in offsets[b] .. offsets[b + 1] - 1 of  weights[i] * value(ids[i])
    value(r) = table[r], or for rows of bytes  scale_bias[r, 0] * table[r] + scale_bias[r, 1]

| argument | shape, dtype | |
|---|---|---|
| table | [rows, dim] float64, float32, float16, bfloat16, uint8 | contiguous, dim >= 1; up to 2^33 rows (addresses are 64-bit); tables of one width are stacked, ids are global rows |
| ids | [N] int32, int64 | 0 <= id < rows; not checked here, see `kernels.bags.check_ids` |
| offsets | [bags + 1] int64 | first 0, last N, non-decreasing |
| weights | [N] float32 (float64 for a float64 table), or None | only with `sum` and `none`: with others an error, as in torch |
| pooling | `sum`, `mean`, `max`, `none` | an empty bag gives zeros in all; `none`: no reduction, one row per position |
| scale_bias | [rows, 2] float32, or None | with uint8 tables, and only with them ("int8" of other libraries) |
| out_dtype | float32, float16, bfloat16 | None: the table's, float32 for uint8; a float64 table gives float64 only |
| sparse_grad | bool | the gradient of `table` is a sparse tensor, one entry a touched row, ascending |
| out | [bags, dim] of out_dtype; [N, dim] with `none` | |

Accumulates in float32 (float64 for float64 tables), in order of position within the bag, for `mean` dividing the sum
once at the end, and rounds to `out_dtype` once, to nearest, ties to even. So the result does not depend on the grid,
the thread count or the other bags. Two backends may differ by the rounding of an fma: before the last rounding,
|error| <= (n + 1) * eps * sum |w_i * value_i| for a bag of n ids (standard bound of recursive summation), with
|scale * q| + |bias| for |value| of a row of bytes.
`max` is exact: of equal numbers the first position wins, and `pooled_max` says which. A NaN wins only where it is first.
Bytes q of 0 .. 255: a signed byte s is q = s + 128 with bias - 128 * scale.

Differentiable in `weights`, and in a floating `table`: the gradient comes in `out_dtype`, is summed by `segment_grads` in
float32 and rounded to the table's dtype once; dense, for tests and small tables, or sparse; training uses
`sparse_update`. With `max` a column's gradient goes to the winner's row alone.

Bytes: N * dim * itemsize read at random + N ids + bags * dim * itemsize written. Bound by memory everywhere.

Errors: ValueError with the expected and the given for a wrong shape, dtype, pooling or layout.
Source: torch.nn.functional.embedding_bag is the same function on one table; for rows of bytes FBGEMM's row-wise int8
(torch.ops.quantized.embedding_bag_byte_rowwise_offsets), with scale and bias beside the table.
"""  # noqa: E501 (a table)

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backend
from ..bags import accumulator
from ..segment_grads import segment_grads
from ..unique_ids import unique_ids

POOLINGS = ("sum", "mean", "max", "none")
TABLES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)
OUTPUTS = (torch.float32, torch.float16, torch.bfloat16)


class PooledMax(NamedTuple):
    """`out` [bags, dim] and `winner` [bags, dim] int64, the position in `ids` it came from, -1 in an empty bag."""

    out: Tensor
    winner: Tensor


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None = None,
    pooling: str = "sum",
    backend: str | None = None,
    scale_bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sparse_grad: bool = False,
) -> Tensor:
    """Pooled rows [bags, dim]. See the module's docstring for the contract."""
    if pooling == "max":
        if weights is not None:
            raise ValueError("weights: expected none with pooling 'max' (as in torch), or pooling 'sum'")
        return pooled_max(table, ids, offsets, backend, scale_bias, out_dtype, sparse_grad).out
    out_dtype = _check(table, ids, offsets, weights, pooling, scale_bias, out_dtype)
    name = _backend.resolve(backend, table.device)
    if pooling == "none":  # a row is the sum over a bag of one id
        offsets, pooling = torch.arange(len(ids) + 1, device=ids.device), "sum"
    if _backend.plain(table, ids, offsets, weights, scale_bias):
        run = _backend.load("pooled_lookup", name).pooled_lookup
        return run(table, ids, offsets, weights, pooling, scale_bias, out_dtype)
    return _pooled_lookup(table, ids, offsets, weights, pooling, scale_bias, out_dtype, sparse_grad, name)


def pooled_max(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    backend: str | None = None,
    scale_bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sparse_grad: bool = False,
) -> PooledMax:
    """`pooled_lookup` with `max`, and where each number came from: what `segment_grads` needs for its gradient.

    Rows of bytes whose numbers differ by less than rounding may have another winner on another backend.
    """
    out_dtype = _check(table, ids, offsets, None, "max", scale_bias, out_dtype)
    name = _backend.resolve(backend, table.device)
    return PooledMax(*_pooled_max(table, ids, offsets, scale_bias, out_dtype, sparse_grad, name))


def _check(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.dtype:
    """Hold the arguments to the contract; return the dtype of the result."""
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
    if table.ndim != 2 or not table.is_contiguous() or table.dtype not in TABLES:
        raise ValueError(
            f"table: expected a contiguous 2-D {_names(TABLES)} tensor, given {table.dtype} {tuple(table.shape)} "
            f"with strides {table.stride()}"
        )
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids: expected a contiguous 1-D int32 or int64 tensor, given {ids.dtype} {tuple(ids.shape)}")
    if offsets.ndim != 1 or offsets.dtype != torch.int64 or not offsets.is_contiguous():
        raise ValueError(
            f"offsets: expected a contiguous 1-D int64 tensor, given {offsets.dtype} {tuple(offsets.shape)}"
        )
    if weights is not None:
        if pooling not in ("sum", "none"):
            raise ValueError(f"weights: expected none with pooling {pooling!r} (as in torch), or pooling 'sum'")
        real = accumulator(table.dtype)
        if weights.shape != ids.shape or weights.dtype != real or not weights.is_contiguous():
            raise ValueError(
                f"weights: expected contiguous {real} {tuple(ids.shape)} for a {table.dtype} table, "
                f"given {weights.dtype} {tuple(weights.shape)}"
            )
    _check_scale_bias(table, scale_bias)
    for name, tensor in (("ids", ids), ("offsets", offsets), ("weights", weights), ("scale_bias", scale_bias)):
        if tensor is not None and tensor.device != table.device:
            raise ValueError(f"{name}: expected a tensor on {table.device} as the table, given {tensor.device}")
    choices = (torch.float64,) if table.dtype == torch.float64 else OUTPUTS
    chosen = out_dtype or (torch.float32 if table.dtype == torch.uint8 else table.dtype)
    if chosen not in choices:
        raise ValueError(f"out_dtype: expected one of {_names(choices)} for a {table.dtype} table, given {chosen}")
    return chosen


def _check_scale_bias(table: Tensor, scale_bias: Tensor | None) -> None:
    if table.dtype != torch.uint8:
        if scale_bias is not None:
            raise ValueError(f"scale_bias: expected None for a {table.dtype} table (only uint8 rows have one)")
        return
    expected = (len(table), 2)
    if (
        scale_bias is None
        or scale_bias.shape != expected
        or scale_bias.dtype != torch.float32
        or not scale_bias.is_contiguous()
    ):
        given = "None" if scale_bias is None else f"{scale_bias.dtype} {tuple(scale_bias.shape)}"
        raise ValueError(
            f"scale_bias: expected contiguous torch.float32 {expected} for a uint8 table (value = scale * q + bias), "
            f"given {given}"
        )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


@torch.library.custom_op(f"{_backend.NAMESPACE}::pooled_lookup", mutates_args=())
def _pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
    sparse_grad: bool,
    backend: str,
) -> Tensor:
    return _backend.load("pooled_lookup", backend).pooled_lookup(
        table, ids, offsets, weights, pooling, scale_bias, out_dtype
    )


@torch.library.custom_op(f"{_backend.NAMESPACE}::pooled_max", mutates_args=())
def _pooled_max(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
    sparse_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return _backend.load("pooled_lookup", backend).pooled_max(table, ids, offsets, scale_bias, out_dtype)


@torch.library.custom_op(f"{_backend.NAMESPACE}::pooled_lookup_weights_grad", mutates_args=())
def _weights_grad(
    grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None, backend: str
) -> Tensor:
    """d weights[i] = <grad_out[bag of i], value(ids[i])>, [N]; `grad_out` in the dtype of the sums."""
    return _backend.load("pooled_lookup", backend).weights_grad(grad_out, table, ids, offsets, scale_bias)


@_pooled_lookup.register_fake
def _(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
    sparse_grad: bool,
    backend: str,
) -> Tensor:
    return table.new_empty((offsets.shape[0] - 1, table.shape[1]), dtype=out_dtype)


@_pooled_max.register_fake
def _(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_bias: Tensor | None,
    out_dtype: torch.dtype,
    sparse_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, table.shape[1])
    return table.new_empty(shape, dtype=out_dtype), table.new_empty(shape, dtype=torch.int64)


@_weights_grad.register_fake
def _(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None, backend: str) -> Tensor:
    return grad_out.new_empty((ids.shape[0],))


def _table_grad(
    grad_out: Tensor,
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    winner: Tensor | None,
    sparse: bool,
    backend: str,
) -> Tensor:
    unique = unique_ids(ids, backend)
    index = (offsets, weights, pooling, unique.order, unique.starts)
    grads = segment_grads(grad_out, *index, backend, winner).to(table.dtype)
    rows = unique.rows.long()
    if sparse:
        return torch.sparse_coo_tensor(rows[None], grads, table.shape, check_invariants=False, is_coalesced=True)
    return torch.zeros_like(table).index_copy(0, rows, grads)


def _setup_context(ctx, inputs, output) -> None:  # noqa: ANN001 (torch.library calls it)
    table, ids, offsets, weights, ctx.pooling, scale_bias, _, ctx.sparse, ctx.backend = inputs
    ctx.save_for_backward(table, ids, offsets, weights, scale_bias)


def _backward(ctx, grad_out: Tensor):  # noqa: ANN001, ANN202 (torch.library calls it)
    table, ids, offsets, weights, scale_bias = ctx.saved_tensors
    grad_table = grad_weights = None
    grad_out = grad_out.to(accumulator(table.dtype)).contiguous()
    if ctx.needs_input_grad[0]:
        grad_table = _table_grad(grad_out, table, ids, offsets, weights, ctx.pooling, None, ctx.sparse, ctx.backend)
    if weights is not None and ctx.needs_input_grad[3]:
        grad_weights = _weights_grad(grad_out, table, ids, offsets, scale_bias, ctx.backend)
    return grad_table, None, None, grad_weights, None, None, None, None, None


def _setup_max_context(ctx, inputs, output) -> None:  # noqa: ANN001 (torch.library calls it)
    table, ids, offsets, _, _, ctx.sparse, ctx.backend = inputs
    ctx.save_for_backward(table, ids, offsets, output[1])


def _max_backward(ctx, grad_out: Tensor, _):  # noqa: ANN001, ANN202 (torch.library calls it)
    table, ids, offsets, winner = ctx.saved_tensors
    grad_table = None
    if ctx.needs_input_grad[0]:
        grad_out = grad_out.to(accumulator(table.dtype)).contiguous()
        grad_table = _table_grad(grad_out, table, ids, offsets, None, "max", winner, ctx.sparse, ctx.backend)
    return grad_table, None, None, None, None, None, None


_pooled_lookup.register_autograd(_backward, setup_context=_setup_context)
_pooled_max.register_autograd(_max_backward, setup_context=_setup_max_context)
