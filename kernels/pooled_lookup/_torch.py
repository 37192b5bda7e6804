"""The truth of pooled_lookup: plain torch."""

import torch
from torch import Tensor


def pooled_lookup(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str) -> Tensor:
    lengths = offsets.diff()
    bags = torch.repeat_interleave(lengths)  # [N], the bag of each position
    rows = table[ids]
    if weights is not None:
        rows = rows * weights[:, None]
    out = table.new_zeros(len(lengths), table.shape[1]).index_add_(0, bags, rows)
    return out / lengths.clamp(min=1)[:, None] if pooling == "mean" else out


def weights_grad(grad_out: Tensor, table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    bags = torch.repeat_interleave(offsets.diff())
    return (grad_out[bags] * table[ids]).sum(1)
