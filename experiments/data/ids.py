"""From the log's categorical values to rows of a table: hashed, or indexed by a counting pass."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from experiments.data.batch import TABLES
from experiments.data.hashing import at, key_of
from experiments.data.rows import MISSING_VALUE

UNKNOWN, RARE = 0, 1  # rows of an indexed table: missing or never counted; counted fewer than min_count times
_MERGE = 1 << 20  # values held before they are merged into a table's sorted vocabulary


class IdMap(Protocol):
    """Values to ids."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each of the 26 tables."""
        ...

    def ids(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids [26, n] int64 of `values` [n, 26] int64 (MISSING_VALUE = missing)."""
        ...


@njit(cache=True)
def _hash_column(values: NDArray[np.int64], rows: int, key: np.uint64, out: NDArray[np.int64]) -> None:
    for i in range(len(values)):
        if values[i] == MISSING_VALUE:
            out[i] = 0
        else:
            out[i] = 1 + np.int64(at(key, values[i]) % np.uint64(rows - 1))


@dataclass(frozen=True)
class Hashed:
    """id = 1 + hash(value, table) mod (rows - 1); a missing value is row 0. The same on every machine."""

    rows: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.rows) != len(TABLES) or min(self.rows) < 2:
            raise ValueError(f"rows: expected {len(TABLES)} numbers of at least 2, given {self.rows}")

    @staticmethod
    def uniform(rows: int, seed: int = 0) -> "Hashed":
        """The same number of rows for every table."""
        return Hashed((rows,) * len(TABLES), seed)

    def ids(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """See IdMap."""
        out = np.empty((len(TABLES), len(values)), np.int64)
        for t, name in enumerate(TABLES):
            _hash_column(values[:, t], self.rows[t], key_of(self.seed, name, "hash"), out[t])
        return out


@dataclass(frozen=True)
class Indexed:
    """A vocabulary per table: row 0 is missing or unknown, row 1 holds all rare values, the rest one row each.

    `values` and `index`, one array per table: the kept and rare values in increasing order, and their rows. Kept values
    are numbered by falling count (ties by value), so a low row is a frequent one.
    """

    values: tuple[NDArray[np.int64], ...]
    index: tuple[NDArray[np.int64], ...]
    rows: tuple[int, ...]

    @staticmethod
    def count(chunks: Iterable[NDArray[np.int64]], min_count: int = 1) -> "Indexed":
        """Count `chunks` of values [n, 26]; a value seen fewer than `min_count` times is rare. Memory: the distinct
        values.
        """
        counters = [_Counter() for _ in TABLES]
        for chunk in chunks:
            for t, counter in enumerate(counters):
                counter.add(chunk[:, t])
        values, index, rows = [], [], []
        for counter in counters:
            distinct, counts = counter.result()
            order = np.lexsort((distinct, -counts))
            kept = int((counts >= min_count).sum())
            row = np.empty(len(distinct), np.int64)
            row[order] = np.where(np.arange(len(distinct)) < kept, np.arange(len(distinct)) + RARE + 1, RARE)
            values.append(distinct)
            index.append(row)
            rows.append(kept + RARE + 1)
        return Indexed(tuple(values), tuple(index), tuple(rows))

    def ids(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """See IdMap."""
        out = np.zeros((len(TABLES), len(values)), np.int64)  # UNKNOWN
        for t, (known, index) in enumerate(zip(self.values, self.index, strict=True)):
            if len(known):
                place = np.minimum(np.searchsorted(known, values[:, t]), len(known) - 1)
                found = known[place] == values[:, t]
                out[t, found] = index[place[found]]
        return out


class _Counter:
    """Distinct values and their counts, merged in batches."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._pending: list[NDArray[np.int64]] = []
        self._held = 0

    def add(self, values: NDArray[np.int64]) -> None:
        self._pending.append(values[values != MISSING_VALUE])
        self._held += len(values)
        # Growing with the vocabulary keeps the merges' total cost linear in the values counted.
        if self._held >= max(_MERGE, len(self._values)):
            self._merge()

    def _merge(self) -> None:
        new, counts = np.unique(np.concatenate([*self._pending, self._values[:0]]), return_counts=True)
        together = _sum_by_value((self._values, new), (self._counts, counts))
        self._values, self._counts = together
        self._pending, self._held = [], 0

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._merge()
        return self._values, self._counts


def _sum_by_value(
    values: Sequence[NDArray[np.int64]], counts: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    distinct, inverse = np.unique(np.concatenate(values), return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, inverse, np.concatenate(counts))
    return distinct, total
