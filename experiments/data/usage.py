"""What a log asks of each table, in one pass and bounded memory: the numbers that planners need.

Counts of values are exact until a table shows more than `HELD` of them. From then on its distinct values are estimated
from those whose hash is below a falling threshold (adaptive sampling: Flajolet, "On adaptive sampling", Computing,
1990), and its popular values from the counters that were largest whenever the table was cut back.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from comm.planner.miss_curve import chosen, measure
from experiments.data.hashing import key_of, mix_all
from experiments.data.rows import MISSING_VALUE

HELD = 1 << 18
BATCHES = (512, 4096, 32_768)
"""Sizes of batch whose distinct values are counted; the middle one is that of overlaps and miss rates."""
CACHES = (1, 5, 20)
"""Sizes of cache whose misses are told, in per cent of the table's rows."""


@dataclass
class Distinct:
    """How many different values there were: exact up to `HELD`, then an estimate whose standard error is about
    1.2 / sqrt(HELD), 0.2 % (ibid.).
    """

    key: np.uint64
    halvings: int = 0
    held: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, values: NDArray[np.int64]) -> None:
        """Values [n], without repeats."""
        hashes = mix_all(values, self.key)
        self.held = np.union1d(self.held, self._kept(hashes))
        while len(self.held) > HELD:
            self.halvings += 1
            self.held = self._kept(self.held)

    def _kept(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes >> np.uint64(64 - self.halvings) == 0] if self.halvings else hashes

    @property
    def count(self) -> int:
        """Distinct values so far."""
        return len(self.held) << self.halvings


@dataclass
class Popular:
    """Counts of the most popular values: exact while `cut` is 0; a count is short by at most `cut`."""

    cut: int = 0
    values: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Values [n], without repeats, and how often each came."""
        both = np.concatenate([self.values, values])
        self.values, inverse = np.unique(both, return_inverse=True)
        self.counts = np.bincount(inverse, np.concatenate([self.counts, counts])).astype(np.int64)
        if len(self.values) > HELD:
            keep = np.argpartition(self.counts, -HELD // 2)[-HELD // 2 :]
            dropped = np.ones(len(self.counts), bool)
            dropped[keep] = False
            self.cut += int(self.counts[dropped].max())
            keep.sort()
            self.values, self.counts = self.values[keep], self.counts[keep]

    def lookups(self, values: int) -> float:
        """Lookups that went to the `values` most popular ones."""
        largest = np.sort(self.counts)[::-1][:values]
        return float(largest.sum())


@dataclass
class Reuse:
    """Distinct values of consecutive batches, of the share `sample` of values that is followed: at most `HELD` / 2
    accesses are held, a longer stream is followed in half as many values, again and again.
    """

    sample: float = 1.0
    batches: list[NDArray[np.int64]] = field(default_factory=list)
    held: int = 0

    def add(self, values: NDArray[np.int64]) -> None:
        """The values of one batch."""
        followed = np.unique(values[chosen(values, self.sample)] if self.sample < 1 else values)
        self.batches.append(followed)
        self.held += len(followed)
        while self.held > HELD // 2:
            self.sample /= 2
            self.batches = [batch[chosen(batch, self.sample)] for batch in self.batches]
            self.held = sum(map(len, self.batches))

    def misses(self, rows: int) -> dict[str, float]:
        """Of a batch's distinct values, the share that an LRU cache misses, by its share of `rows`; and the share that
        is new to the log, which every cache misses.
        """
        curve = measure(self.batches)
        shares = {f"miss_{share}": float(curve.rate(share / 100 * rows * self.sample)) for share in CACHES}
        return shares | {"first": curve.first / curve.accesses}


class TableUsage:
    """One table's part of a pass. Values are int64, `MISSING_VALUE` counts as a value of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lookups = self.missing = 0
        self.distinct, self.popular = Distinct(key_of(0, name, "usage")), Popular()
        self._unique = {size: [0, 0] for size in BATCHES}  # distinct values in batches of that size, and batches
        self.reuse = Reuse()
        self._overlap = [0, 0]  # distinct values of a batch, and those of them that the one before had too

    def add(self, values: NDArray[np.int64]) -> None:
        """The values of consecutive samples."""
        self.lookups += len(values)
        self.missing += int((values == MISSING_VALUE).sum())
        for size in BATCHES:
            for begin in range(0, len(values) - size + 1, max(size, len(values) // 4)):
                self._unique[size][0] += len(np.unique(values[begin : begin + size]))
                self._unique[size][1] += 1
        middle = BATCHES[1]
        if len(values) >= 2 * middle:
            first, second = np.unique(values[:middle]), np.unique(values[middle : 2 * middle])
            self._overlap[0] += len(second)
            self._overlap[1] += len(np.intersect1d(first, second, assume_unique=True))
        for begin in range(0, len(values) - middle + 1, middle):
            self.reuse.add(values[begin : begin + middle])
        found, counts = np.unique(values, return_counts=True)
        self.distinct.add(found)
        self.popular.add(found, counts)

    def result(self) -> dict[str, float]:
        """Shares and ratios of the pass; a ratio is left out where the log was too short for it."""
        rows = self.distinct.count
        found = {
            "rows": float(rows),
            "missing": self.missing / self.lookups,
            "top_share": self.popular.lookups(max(1, rows // 100)) / self.lookups,
        }
        for size, (distinct, batches) in self._unique.items():
            if batches:
                found[f"unique_{size}"] = distinct / (batches * size)
        if self._overlap[0]:
            found["overlap"] = self._overlap[1] / self._overlap[0]
        if len(self.reuse.batches) > 1 and self.reuse.held:
            found |= self.reuse.misses(rows)
        return found
