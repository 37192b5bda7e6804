"""The truth of unique_ids: plain torch."""

import torch
from torch import Tensor


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, inverse, counts = torch.unique(ids, sorted=True, return_inverse=True, return_counts=True)
    order = torch.argsort(ids, stable=True)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return rows, inverse, order, starts
