"""The truth of segment_grads: plain torch."""

import torch
from torch import Tensor


def segment_grads(
    grad_out: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: str,
    order: Tensor,
    starts: Tensor,
    winner: Tensor | None = None,
) -> Tensor:
    lengths = offsets.diff()
    bags = torch.repeat_interleave(lengths)[order]  # [N], the bag of each position, grouped by row
    terms = grad_out[bags]
    if weights is not None:
        terms = terms * weights[order, None]
    if pooling == "mean":
        terms = terms / lengths[bags, None]
    if winner is not None:
        terms = torch.where(winner[bags] == order[:, None], terms, 0)
    segments = torch.repeat_interleave(starts.diff())
    return grad_out.new_zeros(len(starts) - 1, grad_out.shape[1]).index_add_(0, segments, terms)
