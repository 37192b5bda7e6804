"""The counting pass: how often rows are read, and whether neighbouring batches read them too.

What the boundary between tiers is chosen from (`comm.planner.boundary`), and what a hot set's age is told by.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from comm.planner.boundary import RowUse
from experiments.data.batch import ClickStream
from kernels import Bags, TableSpec


def count_use(
    stream: ClickStream,
    batch: int,
    world: int,
    batches: int,
    start: int = 0,
    progress: Callable[[int], object] = lambda batches: None,
) -> RowUse:
    """Count `batches` global batches of `batch` samples from the `start`-th on, each cut over `world` ranks.

    `progress` is called with 1 after each. Memory: the distinct keys of the pass.

    Raises ValueError for a stream that has not two whole batches from there on: an empty log, or one too short.
    """
    if batches < 2:
        raise ValueError(f"counting: expected 2 batches or more, given {batches}")
    ranks = zip(*(stream.batches(batch, rank, world, start) for rank in range(world)), strict=True)
    bags = ([part.bags for part in parts] for parts in islice(ranks, batches) if sum(map(len, parts)) == batch)
    return count_bags(stream.tables, bags, progress, f"{stream.samples} samples in batches of {batch} from {start} on")


def count_bags(
    tables: Sequence[TableSpec],
    batches: Iterator[list[Bags]],
    progress: Callable[[int], object] = lambda batches: None,
    given: str = "fewer",
) -> RowUse:
    """The same of global batches as they come: table-major bags of every rank."""
    first = np.array([0, *accumulate(table.rows for table in tables)])
    seen = _Seen()
    for ranks in batches:
        seen.add([_keys(bags, first) for bags in ranks])
        progress(1)
    if seen.batches < 2:
        raise ValueError(f"counting: expected a log of 2 whole batches or more, given {given}")
    return seen.use()


class _Seen:
    """Keys of the pass so far, with one code for each kind of event; the batch before, to compare with."""

    def __init__(self) -> None:
        self.batches, self.world = 0, 0
        self._before: list[NDArray[np.int64]] = []  # distinct keys of each rank of the batch before
        self._everything = np.empty(0, np.int64)  # of all ranks of it
        self._events: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("touches", "follows", "precedes")}
        self._lookups: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, ranks: list[NDArray[np.int64]]) -> None:
        found = [np.unique(keys, return_counts=True) for keys in ranks]
        distinct = [keys for keys, _ in found]
        everything = np.unique(np.concatenate(distinct))
        if self.batches:
            self._events["follows"] += [keys[_in(keys, self._everything)] for keys in distinct]
            self._events["precedes"] += [keys[_in(keys, everything)] for keys in self._before]
        self._events["touches"] += distinct
        self._lookups += found
        self._before, self._everything = distinct, everything
        self.batches, self.world = self.batches + 1, len(ranks)

    def use(self) -> RowUse:
        keys, touches = np.unique(np.concatenate(self._events["touches"]), return_counts=True)

        def counted(events: list[NDArray[np.int64]]) -> NDArray[np.int64]:
            return np.bincount(np.searchsorted(keys, np.concatenate(events)), minlength=len(keys))

        every = np.concatenate([keys for keys, _ in self._lookups])
        weights = np.concatenate([counts for _, counts in self._lookups])
        # sums of small integers in float64 are exact
        lookups = np.bincount(np.searchsorted(keys, every), weights, len(keys)).astype(np.int64)
        order = np.lexsort((keys, -touches))
        return RowUse(
            keys=keys[order],
            lookups=lookups[order],
            touches=touches[order],
            follows=counted(self._events["follows"])[order],
            precedes=counted(self._events["precedes"])[order],
            world=self.world,
            batches=self.batches,
        )


def _in(keys: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `keys` are in `among`, both ascending."""
    at = np.minimum(np.searchsorted(among, keys), max(len(among) - 1, 0))
    return among[at] == keys if len(among) else np.zeros(len(keys), bool)


def keys_of_tables(bags: Bags, tables: Sequence[TableSpec]) -> NDArray[np.int64]:
    """Ids of table-major bags in one key space over `tables`, table after table."""
    return _keys(bags, np.array([0, *accumulate(table.rows for table in tables)]))


def _keys(bags: Bags, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids of table-major bags in one key space."""
    tables = len(first) - 1
    starts = bags.offsets.numpy()[np.arange(tables + 1) * (len(bags) // tables)]
    return bags.ids.numpy().astype(np.int64) + np.repeat(first[:-1], np.diff(starts))
