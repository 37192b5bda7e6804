"""How long ago each row that an owner holds was last asked for: what says whether a row may travel early.

Keys of a batch reach the owners of its rows from all ranks, so what an owner notes here is global: no collective. Two
ways to note it: `Stamps`, a number a row (4 bytes of every row held, nothing to clear between batches), and `KeySets`,
the sorted rows of the last few batches (8 bytes of every row asked for, a search a batch), for arrays too large to
stamp.
"""

from collections import deque
from typing import Protocol

import torch
from torch import Tensor


class LastTouch(Protocol):
    """Batches are counted in the order in which `touch` is called."""

    def touch(self, rows: Tensor) -> Tensor:
        """Count one more batch, which asks for `rows` [N] int64 (repeats allowed).

        Returns [N] int64: how many batches ago each was asked for before, 1 for the batch just before; `depth + 1` or
        more if not within the last `depth` batches.
        """
        ...

    def in_latest(self, rows: Tensor) -> Tensor:
        """Whether the batch counted last asked for each of `rows` [N], bool."""
        ...


class Stamps:
    """The number of the last batch that asked for each of `rows` rows, int32. Zeroed pages are the system's: rows that
    nobody asks for take no memory.
    """

    def __init__(self, rows: int, depth: int) -> None:
        self.last = torch.zeros(rows, dtype=torch.int32)
        self.now = depth  # so that a row never touched is depth + 1 ago for the first batch

    def touch(self, rows: Tensor) -> Tensor:
        """See `LastTouch`."""
        self.now += 1
        ages = self.now - self.last[rows].long()
        self.last[rows] = self.now
        return ages

    def in_latest(self, rows: Tensor) -> Tensor:
        """See `LastTouch`."""
        return self.last[rows] == self.now


class KeySets:
    """The distinct rows of the last `depth` batches, and of the latest, each sorted."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.sets: deque[Tensor] = deque(maxlen=depth)

    def touch(self, rows: Tensor) -> Tensor:
        """See `LastTouch`."""
        ages = torch.full(rows.shape, self.depth + 1)
        for ago, before in zip(range(len(self.sets), 0, -1), self.sets, strict=True):
            ages[_among(rows, before)] = ago
        self.sets.append(torch.unique(rows))
        return ages

    def in_latest(self, rows: Tensor) -> Tensor:
        """See `LastTouch`."""
        return _among(rows, self.sets[-1])


def _among(rows: Tensor, ascending: Tensor) -> Tensor:
    if not len(ascending):
        return torch.zeros(len(rows), dtype=torch.bool)
    return ascending[torch.searchsorted(ascending, rows).clamp(max=len(ascending) - 1)] == rows
