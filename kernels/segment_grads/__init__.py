"""Gradients of bags -> one gradient per distinct row, deterministic: the backward of an embedding bag.

    grads[u] = sum over p in order[starts[u] : starts[u + 1]] of  scale[p] * grad_out[bag of p]

with scale 1 for `sum`, `weights[p]` for weighted `sum`, and 1 / (length of p's bag) for `mean`; for `max`, where only
the winner of a column moves its bag's maximum,

    grads[u, j] = sum over the same p with winner[bag of p, j] == p of  grad_out[bag of p, j]

| argument | shape, dtype | |
|---|---|---|
| grad_out | [bags, dim] float32, float64 | contiguous; for half-precision tables, float32 |
| offsets | [bags + 1] int64 | of the bags |
| weights | [N] like grad_out, or None | only with `sum` |
| pooling | `sum`, `mean`, `max` | unpooled rows are bags of one id: `sum` with offsets 0, 1 .. N |
| order, starts | [N], [U + 1] int64 | from `unique_ids` |
| winner | [bags, dim] int64, or None | with `max` only: from `kernels.pooled_max` |
| out | [U, dim] like grad_out | |

Sums one position after another in the order given (ascending positions, if it comes from `unique_ids`), in the dtype
of `grad_out`: no atomics, so two runs and any number of threads agree bit for bit. For `mean`, each term is
`grad_out / length`. Two backends may differ by the rounding of an fma: |error| <= (n + 1) * eps * sum |terms|.

Bytes: N rows of grad_out (and of winner) read (repeats come from cache) + U rows written + the index.
Errors: ValueError with the expected and the given for a wrong shape, dtype, pooling or layout.
"""

import torch
from torch import Tensor

from .. import _backend

POOLINGS = ("sum", "mean", "max")


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    backend: str | None = None,
    winner: Tensor | None = None,
) -> Tensor:
    """One summed gradient per distinct row, [U, dim]. See the module's docstring for the contract."""
    check(grad_out, offsets, weights, pooling, order, starts, winner)
    name = _backend.resolve(backend, grad_out.device)
    return _segment_grads(grad_out, offsets, weights, pooling, order, starts, winner, name)


def check(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> None:
    """Hold the arguments that `segment_grads` and `sparse_update` share to their contract."""
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
    if grad_out.ndim != 2 or not grad_out.is_contiguous() or grad_out.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            "grad_out: expected a contiguous 2-D float32 or float64 tensor, "
            f"given {grad_out.dtype} {tuple(grad_out.shape)}"
        )
    for name, index in (("offsets", offsets), ("order", order), ("starts", starts)):
        if index.ndim != 1 or index.dtype != torch.int64 or not index.is_contiguous():
            raise ValueError(
                f"{name}: expected a contiguous 1-D int64 tensor, given {index.dtype} {tuple(index.shape)}"
            )
    if len(offsets) != len(grad_out) + 1:
        raise ValueError(f"offsets: expected {len(grad_out) + 1} numbers (bags + 1), given {len(offsets)}")
    if weights is not None:
        if pooling != "sum":
            raise ValueError(f"weights: expected none with pooling {pooling!r}, or pooling 'sum'")
        if weights.shape != order.shape or weights.dtype != grad_out.dtype or not weights.is_contiguous():
            raise ValueError(
                f"weights: expected contiguous {grad_out.dtype} {tuple(order.shape)}, "
                f"given {weights.dtype} {tuple(weights.shape)}"
            )
    _check_winner(winner, grad_out, pooling)


def _check_winner(winner: Tensor | None, grad_out: Tensor, pooling: str) -> None:
    if pooling != "max":
        if winner is not None:
            raise ValueError(f"winner: expected None with pooling {pooling!r} (only 'max' has one)")
        return
    if winner is None or winner.shape != grad_out.shape or winner.dtype != torch.int64 or not winner.is_contiguous():
        given = "None" if winner is None else f"{winner.dtype} {tuple(winner.shape)}"
        raise ValueError(
            f"winner: expected contiguous torch.int64 {tuple(grad_out.shape)} with pooling 'max' "
            f"(kernels.pooled_max gives it), given {given}"
        )


@torch.library.custom_op(f"{_backend.NAMESPACE}::segment_grads", mutates_args=())
def _segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None,
    backend: str,
) -> Tensor:
    return _backend.load("segment_grads", backend).segment_grads(
        grad_out, offsets, weights, pooling, order, starts, winner
    )


@_segment_grads.register_fake
def _(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None,
    backend: str,
) -> Tensor:
    return grad_out.new_empty((starts.shape[0] - 1, grad_out.shape[1]))
