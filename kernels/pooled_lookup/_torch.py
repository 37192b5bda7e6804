"""The truth of pooled_lookup: plain torch."""

import torch
from torch import Tensor

from ..bags import accumulator


def pooled_lookup(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    scale_bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if pooling == "max":
        return pooled_max(table, ids, offsets, scale_bias, out_dtype)[0]
    rows = numbers(table, ids, scale_bias)
    if weights is not None:
        rows = rows * weights[:, None]
    if pooling == "none":
        return rows.to(out_dtype or table.dtype)
    lengths = offsets.diff()
    bags = torch.repeat_interleave(lengths)  # [N], the bag of each position
    out = rows.new_zeros(len(lengths), table.shape[1]).index_add_(0, bags, rows)
    if pooling == "mean":
        out = out / lengths.clamp(min=1)[:, None]
    return out.to(out_dtype or table.dtype)


def pooled_max(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    rows = numbers(table, ids, scale_bias)
    lengths = offsets.diff()
    best = rows.new_zeros(len(lengths), table.shape[1])
    winner = torch.full_like(best, -1, dtype=torch.int64)
    for step in range(int(lengths.max()) if len(lengths) else 0):
        position = (offsets[:-1] + step).clamp(max=len(ids) - 1)
        value = rows[position]
        better = (step < lengths)[:, None] & ((winner < 0) | (value > best))
        best = torch.where(better, value, best)
        winner = torch.where(better, position[:, None], winner)
    return best.to(out_dtype or table.dtype), winner


def weights_grad(
    grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, scale_bias: Tensor | None = None
) -> Tensor:
    bags = torch.repeat_interleave(offsets.diff())
    return (grad_out[bags] * numbers(table, ids, scale_bias)).sum(1)


def numbers(table: Tensor, ids: Tensor, scale_bias: Tensor | None) -> Tensor:
    """The rows of `ids` in the dtype of the sums, [N, dim]."""
    rows = table[ids].to(accumulator(table.dtype))
    if scale_bias is not None:
        scale, bias = scale_bias[ids].unbind(1)
        rows = scale[:, None] * rows + bias[:, None]
    return rows
