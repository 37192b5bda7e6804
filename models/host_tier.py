"""Rows in the memory of the host, full precision or narrower."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import new_rows, row_copy

from .memory import require_memory
from .tier import StoreSpec, state_bytes

CHUNK_ROWS = 1 << 16
"""Rows that are initialised at once: a few ten MB of temporaries."""


class HostTier:
    """See `Tier`. Rows in the format of `dtype` (`kernels.row_copy`'s, by default the spec's own); states in full.

    Pages that no row was written to take no memory; `eager` writes every row's initial values at once instead, after
    checking that they fit. Raises MemoryError with the needed and the available bytes.
    """

    def __init__(
        self, spec: StoreSpec, dtype: torch.dtype | None = None, eager: bool = False, backend: str | None = None
    ) -> None:
        self.spec, self.backend = spec, backend
        values = new_rows(1, spec.dim, dtype or spec.dtype)
        self.row_bytes = values.nbytes + state_bytes(spec)
        require_memory(spec.rows * (self.row_bytes + 1), f"host tier of {spec.label!r}", touched=eager)
        self.values = new_rows(spec.rows, spec.dim, dtype or spec.dtype)
        empty = torch.empty(0, spec.dim, dtype=spec.dtype)
        self.states = tuple(
            torch.empty(spec.rows, *state.shape[1:], dtype=state.dtype) for state in spec.states_of(empty)
        )
        self.written = torch.zeros(spec.rows, dtype=torch.bool)
        for begin in range(0, spec.rows if eager else 0, CHUNK_ROWS):
            rows = torch.arange(begin, min(begin + CHUNK_ROWS, spec.rows))
            first = spec.initial(rows)
            self.write(rows, (first, *spec.states_of(first)), torch.arange(len(rows)))

    def read(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        for theirs, mine in zip(lines, (self.values, *self.states), strict=True):
            row_copy(_as_rows(mine), _as_rows(theirs), rows, slots, self.backend)

    def write(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        for theirs, mine in zip(lines, (self.values, *self.states), strict=True):
            row_copy(_as_rows(theirs), _as_rows(mine), slots, rows, self.backend)
        self.written[rows] = True

    def close(self) -> None:
        """Memory goes with the object."""


def _as_rows(array: Tensor) -> Tensor:
    """A state of one number a row as rows of one."""
    return array if array.ndim == 2 else array[:, None]
