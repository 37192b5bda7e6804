"""Miss curves: how many of a batch's rows a cache of any size misses, from one pass over a stream.

LRU has the inclusion property, so an access hits in every cache larger than its stack distance: the number of other
rows touched since this row's last use (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage
hierarchies", IBM Systems Journal 1970). An access is one *distinct* row of a batch, since a cache is asked for a batch
at once. That is also why distances are taken to the start of the batch: its rows are looked up before any of them
moves another out. First touches have no distance and are kept apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.floating]

FIRST = -1
"""In place of the stack distance of a first touch."""


@dataclass(frozen=True)
class MissCurve:
    """Of one table. A cache of `sizes` [K] rows, ascending from 0, misses `misses` [K] rows a batch that were used
    before, never more for a larger cache; linear between sizes, constant beyond. `first` rows a batch are new to the
    stream, `accesses` are distinct rows a batch, the two kinds of misses and the hits together.
    """

    sizes: Floats
    misses: Floats
    first: float
    accesses: float

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that do not ascend from 0, misses that grow, or more misses than accesses."""
        if self.sizes.shape != self.misses.shape or self.sizes.ndim != 1 or not len(self.sizes):
            raise ValueError(f"expected as many sizes as misses, given {self.sizes.shape} and {self.misses.shape}")
        if self.sizes[0] != 0 or (np.diff(self.sizes) <= 0).any():
            raise ValueError("expected sizes that ascend from 0")
        slack = 1e-9 * max(self.accesses, 1.0)
        if (np.diff(self.misses) > slack).any() or self.misses[0] + self.first > self.accesses + slack:
            raise ValueError("expected misses that fall with size, first touches and they at most the accesses")

    def at(self, rows: float | Floats, first: bool = True) -> Floats:
        """Misses a batch of a cache of `rows`, with first touches or without."""
        return np.asarray(np.interp(rows, self.sizes, self.misses)) + (self.first if first else 0.0)

    def rate(self, rows: float | Floats, first: bool = True) -> Floats:
        """Misses an access; 0 for a table that is never accessed."""
        return self.at(rows, first) / self.accesses if self.accesses else 0.0 * np.asarray(rows)

    def cacheability(self, rows: float) -> float:
        """Area under the miss rate over load factors 0 to 1 of a table of `rows`: 0 easy, 1 hard; no first touches."""
        clf = np.linspace(0.0, 1.0, 257)
        return float(np.trapezoid(self.rate(clf * rows, first=False), clf))

    def part(self, parts: int) -> "MissCurve":
        """Of one of `parts` equal shards of the table by rows: its share of the accesses, in its share of the cache."""
        return MissCurve(self.sizes / parts, self.misses / parts, self.first / parts, self.accesses / parts)

    def resized(self, factor: float) -> "MissCurve":
        """Of the table with `factor` times the rows: the same reuse, spread over as many more."""
        return replace(self, sizes=self.sizes * factor)

    def hull(self) -> "MissCurve":
        """The largest convex curve below: what a cache reaches that is split between two of the curve's points."""
        kept = lower_hull(self.sizes, self.misses)
        return replace(self, sizes=self.sizes[kept], misses=self.misses[kept])


def lower_hull(x: Floats, y: Floats) -> list[int]:
    """Places of the corners of the lower convex hull of points whose x ascend, the first and the last among them."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept


def measure(batches: Iterable[Ids], sample: float = 1.0, points: int = 4096, skip: int = 0) -> MissCurve:
    """The curve of a stream of distinct ids [U] by batch, exact at every size if it has at most `points`.

    `sample`: the share of ids, chosen by hash, that is followed; distances and counts are scaled up (SHARDS,
    Waldspurger, Park, Garthwaite, Ahmad, FAST 2015, with its correction: the accesses that the sample has too few or
    too many of count as hits at any size). `skip`: leading batches that warm up and are not counted.

    Raises ValueError for a `sample` outside (0, 1], or no batch to count.
    """
    if not 0.0 < sample <= 1.0:
        raise ValueError(f"sample: expected a share in (0, 1], given {sample}")
    everything = [np.asarray(ids, np.int64) for ids in batches]
    counted = len(everything) - skip
    if counted < 1:
        raise ValueError(f"expected more than {skip} batches (those skipped), given {len(everything)}")
    followed = [ids[chosen(ids, sample)] for ids in everything] if sample < 1.0 else everything
    distances = stack_distances(followed)
    warm = sum(map(len, followed[:skip]))
    distances = distances[warm:]
    accesses = sum(map(len, everything[skip:]))
    reused = np.sort(distances[distances != FIRST])
    first = (len(distances) - len(reused)) / sample
    # what the sample lacks of the true number of accesses are hits at any size, so they are left out of the misses
    return _curve(reused, sample, counted, min(first, accesses) / counted, accesses / counted, points)


def _curve(reused: Ids, sample: float, batches: int, first: float, accesses: float, points: int) -> MissCurve:
    """From ascending distances of the followed accesses."""
    distinct, starts = np.unique(reused, return_index=True)
    # a cache of d rows misses an access of distance d, one of d + 1 rows does not
    sizes = np.unique(np.concatenate([[0], distinct, distinct + 1]))
    if len(sizes) > points:
        near = np.unique(np.geomspace(1, sizes[-1], points // 2).astype(np.int64))
        even = np.linspace(0, sizes[-1], points - len(near)).astype(np.int64)
        sizes = np.unique(np.concatenate([near, even]))
    left = len(reused) - np.concatenate([starts, [len(reused)]])[np.searchsorted(distinct, sizes)]
    misses = np.minimum(left / sample / batches, accesses - first)
    return MissCurve(sizes / sample, misses, first, accesses)


def chosen(ids: Ids, sample: float) -> NDArray[np.bool_]:
    """Whether each of `ids` is in a sample of that share: a function of the id alone (splitmix64's finaliser)."""
    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) < np.uint64(int(sample * (2**64 - 1)))


def stack_distances(batches: Iterable[Ids]) -> Ids:
    """The stack distance of every access, in order, [N] int64, FIRST for a first touch: the number of other rows used
    since its last use and before its batch. Of rows last used in one batch the later ones count as used later.

    O(N log N): a Fenwick tree over accesses counts those that are still their row's latest.
    """
    batches = list(batches)
    ends = np.cumsum([len(ids) for ids in batches], dtype=np.int64)
    ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
    _, dense = np.unique(ids, return_inverse=True)
    return _distances(dense.astype(np.int64), ends, int(dense.max()) + 1 if len(dense) else 0)


@njit(cache=True)
def _distances(ids, ends, rows):  # noqa: ANN001, ANN202 (Numba types)
    n = len(ids)
    tree = np.zeros(n + 1, np.int32)
    last = np.full(rows, -1, np.int64)
    found = np.empty(n, np.int64)
    begin, live = 0, 0
    for end in ends:
        for i in range(begin, end):
            used = last[ids[i]]
            if used < 0:
                found[i] = -1
                continue
            older, j = 0, used + 1  # latest uses at or before `used`, its own among them
            while j > 0:
                older += tree[j]
                j -= j & -j
            found[i] = live - older
        for i in range(begin, end):
            used = last[ids[i]]
            if used >= 0:
                j = used + 1
                while j <= n:
                    tree[j] -= 1
                    j += j & -j
                live -= 1
            last[ids[i]] = i
            j = i + 1
            while j <= n:
                tree[j] += 1
                j += j & -j
            live += 1
        begin = end
    return found


def rate_of_histogram(histogram: Floats, rows: int, cached: float) -> float:
    """Miss rate of a cache of `cached` rows from a published kind of histogram: accesses by LRU distance in equal bins
    over [0, rows]. A bin counts whole; 1 for no cache, 0 beyond the last bin and where nothing was counted.

    Source: TorchRec's `EmbeddingOffloadStats`, whose values at known sizes are the tests.
    """
    total = float(np.sum(histogram))
    if not total:
        return 0.0
    if cached <= 0:
        return 1.0
    edges = np.linspace(0.0, rows, len(histogram) + 1)
    place = int(np.searchsorted(edges, cached - 1, side="right")) - 1
    return 0.0 if place >= len(histogram) else 1.0 - float(np.sum(histogram[: place + 1])) / total
