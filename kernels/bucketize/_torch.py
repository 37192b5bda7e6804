"""The truth of bucketize: plain torch."""

import torch
from torch import Tensor


def bucketize(
    ids: Tensor,
    table_starts: Tensor,
    parts: Tensor,
    span: Tensor,
    first: Tensor,
    owner: Tensor,
    base: Tensor,
    world: int,
) -> tuple[Tensor, Tensor, Tensor]:
    tables = torch.repeat_interleave(table_starts.diff())  # [N], the table of each position
    ids = ids.long()
    by_range = span[tables] > 0
    divisor = torch.where(by_range, span[tables], parts[tables])
    quotient, remainder = ids // divisor, ids % divisor
    cells = first[tables] + torch.where(by_range, quotient, remainder)
    rows = base[cells] + torch.where(by_range, remainder, quotient)
    owners = owner[cells]
    order = torch.argsort(owners, stable=True)
    return order, torch.bincount(owners, minlength=world), rows[order]
