"""Overflow lines: where rows are that found no line in their set, for as long as a batch uses them."""

import torch
from torch import Tensor

FREE, VACATED = -1, -2
"""Instead of a row: nothing is in the line; what was in it moved to a line of the cache while a batch reads it here."""


class Overflow:
    """Which row is in which of `lines` lines, whose slots begin at `first`. Any row may be in any line."""

    def __init__(self, first: int, lines: int, label: str) -> None:
        self.first, self.label = first, label
        self.rows = torch.full((lines,), FREE, dtype=torch.int64)
        self.used = 0

    def find(self, rows: Tensor) -> Tensor:
        """The slot of each of `rows` [n], or -1."""
        if not self.used:
            return torch.full_like(rows, -1)
        lines = torch.nonzero(self.rows >= 0).flatten()
        held, order = self.rows[lines].sort()
        at = torch.searchsorted(held, rows).clamp(max=max(len(held) - 1, 0))
        found = held[at] == rows if len(held) else torch.zeros_like(rows, dtype=torch.bool)
        return torch.where(found, self.first + lines[order[at]] if len(held) else -1, -1)

    def lines(self) -> tuple[Tensor, Tensor]:
        """Slots that are not free, and the row in each (or VACATED)."""
        lines = torch.nonzero(self.rows != FREE).flatten() if self.used else self.rows[:0]
        return self.first + lines, self.rows[lines]

    def put(self, rows: Tensor) -> Tensor:
        """A free line for each of `rows`: its slot. Raises RuntimeError if there are too few."""
        if not len(rows):
            return rows
        free = torch.nonzero(self.rows == FREE).flatten()
        if len(free) < len(rows):
            raise RuntimeError(
                f"{self.label!r}: expected at most {len(free)} more rows without a line, given {len(rows)}: batch_rows "
                "must be at least the distinct rows of any batch on this rank"
            )
        lines = free[: len(rows)]
        self.rows[lines] = rows
        self.used += len(rows)
        return self.first + lines

    def vacate(self, slots: Tensor) -> None:
        """The rows of `slots` are elsewhere now; who holds the lines may still read them."""
        self.rows[slots - self.first] = VACATED

    def free(self, slots: Tensor) -> None:
        """Nobody needs `slots`."""
        self.rows[slots - self.first] = FREE
        self.used -= len(slots)
