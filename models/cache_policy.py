"""What the stamps of a cache's lines are under each policy: the lowest in a set goes first, unless it is locked."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Policy = Literal["lru", "lfu", "static", "lookahead"]
POLICIES: tuple[str, ...] = get_args(Policy)
KNOWN = 1 << 62
"""Above every step number: KNOWN - b is the stamp of a row that batch b is known to need next."""


def stamps_of(rows: Tensor, tick: int, coming: Sequence[Tensor]) -> Tensor:
    """Stamps [n] of `rows`, which batch `tick` uses: by the nearest of the `coming` batches that needs the row again,
    else by `tick`.

    `coming[k]` [m] are the distinct rows, ascending, of batch tick + 1 + k. So the row that is needed furthest ahead
    goes first among those of the window (Belady, "A study of replacement algorithms for a virtual-storage computer",
    IBM Systems Journal 1966), after all that the window does not need, the least recently used of them first.
    """
    stamps = torch.full_like(rows, tick)
    for k in reversed(range(len(coming))):
        stamps[is_in(rows, coming[k])] = KNOWN - (tick + 1 + k)
    return stamps


def is_in(rows: Tensor, ascending: Tensor) -> Tensor:
    """Whether each of `rows` [n] is among `ascending` [m]: [n] bool."""
    if not len(ascending):
        return torch.zeros_like(rows, dtype=torch.bool)
    at = torch.searchsorted(ascending, rows).clamp(max=len(ascending) - 1)
    return ascending[at] == rows
