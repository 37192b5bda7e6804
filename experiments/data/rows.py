"""What the parsers of the log's formats hand over: parsed rows, bad lines beside them, in blocks that know their
positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MISSING_INTEGER = np.iinfo(np.int64).min
MISSING_VALUE = -1  # a categorical value is a non-negative hexadecimal number


@dataclass(frozen=True)
class BadLine:
    """A line that is not a sample: its number in the file (from 1) and why, expected and given."""

    line: int
    why: str


@dataclass(frozen=True)
class Rows:
    """n good rows: `label` [n] float32, `integers` [n, 13] and `values` [n, 26] int64; the bad lines between them."""

    label: NDArray[np.float32]
    integers: NDArray[np.int64]
    values: NDArray[np.int64]
    bad: tuple[BadLine, ...]


class Block(Protocol):
    """Consecutive lines of a log, parsed on demand."""

    def __len__(self) -> int:
        """Number of lines, good or bad."""
        ...

    def rows(self, low: int, high: int) -> Rows:
        """Parse lines [low, high) of the block."""
        ...


class RowSource(Protocol):
    """A log file. A position is a line's number from 0, whether or not the line is good."""

    def count(self) -> int:
        """Lines in the file: one pass for text, free for Parquet."""
        ...

    def blocks(self, size: int, first: int, stop: int | None) -> Iterator[Block]:
        """Lines [first, stop) (None: to the end) in blocks of `size`, fewer in the last. Holds a block and a chunk."""
        ...
