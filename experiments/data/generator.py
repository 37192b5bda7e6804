"""The calibrated click generator: the embedded default when no log is given.

Marginals per column, correlated columns, values missing together and the order of keys follow what is published about
the Criteo Kaggle log (README.md beside this file); labels come from a known model, so the best possible AUC is known
too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from experiments.data.batch import (
    DENSE,
    TABLES,
    ClickBatch,
    check_batching,
    click_batch,
    rank_slice,
    split_at,
    transform_dense,
)
from experiments.data.columns import DERIVED, ENTITY, INTEGERS, MISSING, Column, load_columns
from experiments.data.hashing import key_of, permute, uniforms, unit
from experiments.data.labels import LabelModel, auc, sigmoid
from experiments.data.marginals import Marginal, middle, rank_at
from experiments.data.order import ORDERS, REUSE, Order, reorder, session_users
from kernels.bags import TableSpec

CALIBRATION = 32_768  # samples that set the labels' rate and spread
_ENTITY = TABLES.index(ENTITY)
_DERIVED = tuple(TABLES.index(name) for name in DERIVED)


@njit(cache=True)
def _draw_present(m: Marginal, missing: float, key: np.uint64, first: int, count: int) -> NDArray[np.int64]:
    """Ranks given that the value is not missing (rank 0, of mass `missing`)."""
    out = np.empty(count, np.int64)
    for i in range(count):
        out[i] = rank_at(m, missing + (1.0 - missing) * unit(key, first + i))
    return out


@njit(cache=True)
def _derive(entity: NDArray[np.int64], source: Marginal, target: Marginal) -> NDArray[np.int64]:
    """The fixed many-to-one map: an entity goes to the target rank at the middle of the entity's CDF interval.

    So the target keeps its own marginal, up to the width of an entity's interval, and frequent goes to frequent.
    """
    out = np.empty(len(entity), np.int64)
    for i in range(len(entity)):
        out[i] = rank_at(target, middle(source, entity[i]))
    return out


@njit(cache=True)
def _to_ids(ranks: NDArray[np.int64], rows: int, reserved: int, key: np.uint64) -> NDArray[np.int64]:
    """Keyed bijection of the ranks, `reserved` (0 or 1) of them fixed: a missing value is row 0."""
    out = np.empty(len(ranks), np.int64)
    for i in range(len(ranks)):
        out[i] = ranks[i] if ranks[i] < reserved else reserved + permute(ranks[i] - reserved, rows - reserved, key)
    return out


class _World:
    """Everything a seed fixes: laws, id bijections, label model, and the materialised ranks of a reordered stream."""

    def __init__(self, samples: int, seed: int, order: Order, max_rows: int | None) -> None:
        self.columns: tuple[Column, ...] = load_columns(max_rows)
        self.seed = seed
        self._present: dict[int, NDArray[np.integer]] = {}
        calibration = self.ranks(0, CALIBRATION, "calibration")
        self._labels = LabelModel(self.columns, calibration, self.dense(0, CALIBRATION, "calibration"), seed)
        if order != "iid":
            self._present = self._in_order(samples, order)

    def _independent(self) -> list[int]:
        return [t for t in range(len(TABLES)) if t not in _DERIVED]

    def _draw(self, table: int, first: int, count: int, stream: str) -> NDArray[np.int64]:
        column = self.columns[table]
        return _draw_present(column.law, column.missing, key_of(self.seed, column.name, stream), first, count)

    def _in_order(self, samples: int, order: Order) -> dict[int, NDArray[np.integer]]:
        """Ranks of present values by independent column, in the order asked for."""
        if order == "sessions":
            # The user is the entity; ranks 1 .. rows - 1 are users, what they look at is as in iid.
            users = 1 + session_users(samples, self.columns[_ENTITY].law.rows - 1, self.seed)
            return {_ENTITY: users}
        p, c = REUSE[order]
        # One number per key, the same multiset as in iid: a missing value replaces a key at its position and is not
        # reordered.
        return {
            t: reorder(self._draw(t, 0, samples, "draw"), p, c, self.seed, TABLES[t]).astype(np.int32)
            for t in self._independent()
        }

    def ranks(self, first: int, count: int, stream: str = "draw") -> NDArray[np.int64]:
        """Ranks [26, count] int64 of positions first, first + 1, ..."""
        out = np.empty((len(TABLES), count), np.int64)
        for t in self._independent():
            ready = self._present.get(t)
            out[t] = self._draw(t, first, count, stream) if ready is None else ready[first : first + count]
        for t in _DERIVED:
            out[t] = _derive(out[_ENTITY], self.columns[_ENTITY].law, self.columns[t].law)
        for g, (share, names) in enumerate(MISSING):
            gone = uniforms(key_of(self.seed, "missing", g, stream), first, count) < share
            for name in names:
                out[TABLES.index(name), gone] = 0
        return out

    def ids(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids [26, count] int64 of `ranks` [26, count]."""
        out = np.empty_like(ranks)
        for t, column in enumerate(self.columns):
            key = key_of(self.seed, column.name, "ids")
            out[t] = _to_ids(ranks[t], column.law.rows, int(column.missing > 0), key)
        return out

    def dense(self, first: int, count: int, stream: str = "draw") -> NDArray[np.float32]:
        """Transformed integers [count, 13] float32: log-normal, rounded down, some missing."""
        out = np.empty((count, DENSE), np.float32)
        for i, (mean, sigma, missing) in enumerate(INTEGERS):
            radius = np.sqrt(-2.0 * np.log(uniforms(key_of(self.seed, "I-radius", i, stream), first, count)))
            angle = 2.0 * np.pi * uniforms(key_of(self.seed, "I-angle", i, stream), first, count)
            integers = np.exp(mean + sigma * radius * np.cos(angle)).astype(np.int64)
            gone = uniforms(key_of(self.seed, "I-missing", i, stream), first, count) < missing
            out[:, i] = transform_dense(integers, gone)
        return out

    def sample(self, first: int, count: int) -> tuple[ClickBatch, NDArray[np.float64]]:
        """(samples, their true logits) at positions first, first + 1, ..."""
        ranks, dense = self.ranks(first, count), self.dense(first, count)
        logits = self._labels.logits(ranks, dense)
        label = (uniforms(key_of(self.seed, "label"), first, count) < sigmoid(logits)).astype(np.float32)
        return click_batch(label, dense, self.ids(ranks)), logits


@dataclass(frozen=True)
class GeneratedClicks:
    """Positions [first, stop) of a generated stream, a ClickStream. Make one with `generate`."""

    world: _World
    tables: tuple[TableSpec, ...]
    first: int
    stop: int

    @property
    def samples(self) -> int:
        """Samples in one pass."""
        return self.stop - self.first

    def batches(self, batch: int, rank: int = 0, world: int = 1, start: int = 0) -> Iterator[ClickBatch]:
        """See ClickStream."""
        check_batching(batch, rank, world, start)
        for first in range(self.first + start * batch, self.stop, batch):
            low, high = rank_slice(min(batch, self.stop - first), rank, world)
            yield self.world.sample(first + low, high - low)[0]

    def split(self, eval_share: float) -> tuple["GeneratedClicks", "GeneratedClicks"]:
        """See ClickStream."""
        cut = self.first + split_at(self.samples, eval_share)
        return replace(self, stop=cut), replace(self, first=cut)

    def bayes_auc(self, samples: int = 100_000) -> float:
        """AUC of the true logits on the stream's first `samples` samples: no model can do better, but for chance.

        Its standard error is about 0.5 / sqrt(samples * 0.215), 0.003 at 100,000.
        """
        batch, logits = self.world.sample(self.first, min(samples, self.samples))
        return auc(batch.label.numpy(), logits)


def generate(
    samples: int, seed: int = 0, order: Order = "iid", max_rows: int | None = None, dim: int = 16
) -> GeneratedClicks:
    """A stream of `samples` clicks and non-clicks, all of it a function of the arguments.

    `order`: `iid` (nothing is materialised, any length), `meta_low` and `meta_medium` (tag reordering of every column
    that is not derived; 4 bytes a sample and column are kept), `sessions` (the entity is a user, each in one contiguous
    run of about 100 samples: C3 and what it determines lose their skew and never come back).
    `max_rows` caps the rows of each table by truncating its fit to the most frequent ranks; `dim` is the tables' width.

    Labels: rate 0.215, Bayes AUC about 0.79. Effects shrink with a row's probability, so that a model can
    learn them: one epoch of a small cross network (width 16, Adagrad, batch 1,024, max_rows = 20,000) came 0.94 of the
    way from 0.5 to the Bayes AUC on 200,000 samples and 0.96 on 400,000; logistic regression 0.95 on 200,000.

    Draws are integer hashes, the same everywhere; ranks, integers and
    labels pass through exp and pow, whose last bit may differ between math libraries.

    Raises ValueError for an unknown order, samples < 1, or max_rows < 32.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: choose one of {', '.join(ORDERS)}")
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, given {samples}")
    world = _World(samples, seed, order, max_rows)
    tables = tuple(TableSpec(c.name, c.law.rows, dim, "sum", torch.float32) for c in world.columns)
    return GeneratedClicks(world, tables, 0, samples)
