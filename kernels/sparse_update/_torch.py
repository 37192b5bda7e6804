"""The truth of sparse_update: plain torch."""

from torch import Tensor

from ..segment_grads._torch import segment_grads


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
    grads = segment_grads(grad_out, offsets, weights, pooling, order, starts)
    rows = rows.long()
    if optimizer == "sgd":
        table[rows] -= lr * grads
        return
    assert state is not None
    state[rows] += grads.square().mean(1)
    table[rows] -= lr / (state[rows].sqrt() + eps)[:, None] * grads
