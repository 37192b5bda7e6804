"""The streams that this group's experiments train on, by a name: i.i.d. Zipf over Kaggle's tables, the calibrated
generator in one of its orders, or a log.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from experiments.data.batch import (
    DENSE,
    TABLES,
    ClickBatch,
    ClickStream,
    check_batching,
    click_batch,
    rank_slice,
    split_at,
)
from experiments.data.columns import FITS
from experiments.data.criteo import CriteoLog
from experiments.data.generator import generate
from experiments.data.hashing import key_of, permute_all, uniforms, unit
from experiments.data.ids import Hashed
from experiments.data.marginals import Marginal, draw, marginal
from experiments.data.order import ORDERS
from kernels import TableSpec

CLICKS = 0.215
"""Share of clicks, as in the Criteo Kaggle log."""
CAP = 1_000_000
"""Rows of a table into which the generator's columns are cut and a log's values hashed, unless a cell has fewer."""


@dataclass(frozen=True)
class ZipfClicks:
    """Positions [first, stop) of a stream whose ids are i.i.d. Zipf(`alpha`) in each of Kaggle's 26 tables, labels
    chance; a ClickStream. `max_rows` caps every table (0: none). A position's sample depends on (seed, position) alone.

    The log drifts by epochs: at each of the first `epoch` ones, a share `moved` of the ranks of popularity, popular or
    not, passed to other rows.
    """

    samples_in_all: int
    alpha: float = 1.0
    max_rows: int = 0
    dim: int = 64
    seed: int = 0
    epoch: int = 0
    moved: float = 0.0
    first: int = 0
    stop: int | None = None

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """C1..C26 with the cardinalities of the Criteo Kaggle log."""
        return self._tables

    @cached_property
    def _tables(self) -> tuple[TableSpec, ...]:
        fits = json.loads(FITS.read_text(encoding="utf-8"))
        rows = [min(fits[name]["rows"], self.max_rows or fits[name]["rows"]) for name in TABLES]
        return tuple(TableSpec(name, n, self.dim) for name, n in zip(TABLES, rows, strict=True))

    @cached_property
    def laws(self) -> tuple[Marginal, ...]:
        """How often each rank of each table is read."""
        return tuple(marginal(table.rows, self.alpha) for table in self.tables)

    @property
    def _stop(self) -> int:
        return self.samples_in_all if self.stop is None else self.stop

    @property
    def samples(self) -> int:
        """Samples in one pass."""
        return self._stop - self.first

    def batches(self, batch: int, rank: int = 0, world: int = 1, start: int = 0) -> Iterator[ClickBatch]:
        """See ClickStream."""
        check_batching(batch, rank, world, start)
        for first in range(self.first + start * batch, self._stop, batch):
            low, high = rank_slice(min(batch, self._stop - first), rank, world)
            yield self._sample(first + low, high - low)

    def split(self, eval_share: float) -> tuple["ZipfClicks", "ZipfClicks"]:
        """See ClickStream."""
        cut = self.first + split_at(self.samples, eval_share)
        return replace(self, stop=cut), replace(self, first=cut, stop=self._stop)

    def _sample(self, first: int, count: int) -> ClickBatch:
        ids = np.empty((len(TABLES), count), np.int64)
        for t, law in enumerate(self.laws):
            ranks = draw(law, key_of(self.seed, t, "zipf"), first, count)
            ids[t] = permute_all(ranks, law.rows, key_of(self.seed, t, "zipf-ids"))
            for epoch in range(1, self.epoch + 1):
                gone = chosen(ranks, key_of(self.seed, t, "moved", epoch), self.moved)
                ids[t, gone] = permute_all(ranks[gone], law.rows, key_of(self.seed, t, "zipf-ids", epoch))
        label = (uniforms(key_of(self.seed, "label"), first, count) < CLICKS).astype(np.float32)
        return click_batch(label, np.zeros((count, DENSE), np.float32), ids)


@njit(cache=True)
def chosen(ranks: NDArray[np.int64], key: np.uint64, share: float) -> NDArray[np.bool_]:
    """Which of `ranks` are among the `share` that `key` picks."""
    out = np.empty(len(ranks), np.bool_)
    for i in range(len(ranks)):
        out[i] = unit(key, ranks[i]) < share
    return out


def open_stream(
    name: str, samples: int, alpha: float, max_rows: int, dim: int, seed: int = 0, epoch: int = 0, moved: float = 0.0
) -> ClickStream:
    """The stream `name`: `zipf`, one of the generator's orders, or the path of a log, of which `samples` are read.

    Raises ValueError for a log with fewer lines, FileNotFoundError for a name that is none of these.
    """
    if name == "zipf":
        return ZipfClicks(samples, alpha, max_rows, dim, seed, epoch, moved)
    if name in ORDERS:
        return generate(samples, seed, name, min(max_rows or CAP, CAP), dim)  # pyright: ignore[reportArgumentType]
    log = CriteoLog(Path(name), Hashed.uniform(max_rows or CAP, seed), dim)
    if log.samples < samples:
        raise ValueError(f"{name}: expected {samples} lines or more, given {log.samples}: take a smaller local batch")
    return replace(log, stop=samples)


def lines_of(name: str) -> int:
    """Lines of the log `name`; 0 for a stream that is drawn, which has as many as one asks for."""
    return 0 if name == "zipf" or name in ORDERS else CriteoLog(Path(name), Hashed.uniform(2)).samples
