"""Rows in the memory of the host, full precision or narrower."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels import new_rows, row_copy

from .memory import require_memory
from .tier import StoreSpec, state_bytes

CHUNK_ROWS = 1 << 16
"""Rows that are initialised at once: a few ten MB of temporaries."""


class HostTier:
    """See `Tier`. Rows in the format of `dtype` (`kernels.row_copy`'s, by default the spec's own); states in full.

    A row takes its place when it is first written, the next free one: rows that never change take no memory but the 4
    bytes that say so, and those of a batch lie side by side. `eager` writes every row's initial values at once instead,
    after checking that they fit: row r is then at place r. Raises MemoryError with the needed and the available bytes.
    """

    def __init__(
        self, spec: StoreSpec, dtype: torch.dtype | None = None, eager: bool = False, backend: str | None = None
    ) -> None:
        self.spec, self.backend, self.eager = spec, backend, eager
        one = new_rows(1, spec.dim, dtype or spec.dtype)
        self.row_bytes = one.nbytes + state_bytes(spec)
        require_memory(spec.rows * (self.row_bytes + 4), f"host tier of {spec.label!r}", touched=eager)
        self.values = _untouched(spec.rows, one)
        self.states = tuple(
            _untouched(spec.rows, state) for state in spec.states_of(one.new_empty(1, spec.dim, dtype=spec.dtype))
        )
        self.places = torch.full((spec.rows,), -1, dtype=torch.int32)
        self.used = 0
        if eager:
            self._fill()

    def _fill(self) -> None:
        for begin in range(0, self.spec.rows, CHUNK_ROWS):
            rows = torch.arange(begin, min(begin + CHUNK_ROWS, self.spec.rows))
            first = self.spec.initial(rows)
            self.write(rows, (first, *self.spec.states_of(first)), torch.arange(len(rows)))

    def is_written(self, rows: Tensor) -> Tensor:
        """See `Tier`."""
        return self.places[rows] >= 0

    def read(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        places = self.places[rows]
        for theirs, mine in zip(lines, (self.values, *self.states), strict=True):
            row_copy(_as_rows(mine), _as_rows(theirs), places, slots, self.backend)

    def write(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        places = self.places[rows]
        new = torch.nonzero(places < 0).flatten()
        places[new] = torch.arange(self.used, self.used + len(new), dtype=torch.int32)
        self.used += len(new)
        self.places[rows[new]] = places[new]
        for theirs, mine in zip(lines, (self.values, *self.states), strict=True):
            row_copy(_as_rows(theirs), _as_rows(mine), slots, places, self.backend)

    def clear(self) -> None:
        """See `Tier`."""
        self.places.fill_(-1)
        self.used = 0
        if self.eager:
            self._fill()

    def close(self) -> None:
        """Memory goes with the object."""


def _untouched(rows: int, like: Tensor) -> Tensor:
    """[rows, ...] of the type of `like` [1, ...], whose pages are taken when written; large ones, where the system has
    them (numpy asks for them, torch does not): with small ones most of a scattered write is page faults.
    """
    bytes_ = np.empty(rows * like.nbytes, np.uint8)
    return torch.from_numpy(bytes_).view(like.dtype).view(rows, *like.shape[1:])


def _as_rows(array: Tensor) -> Tensor:
    """A state of one number a row as rows of one."""
    return array if array.ndim == 2 else array[:, None]
