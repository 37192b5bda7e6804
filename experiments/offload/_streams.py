"""Streams of look-ups over a few large tables: the same marginals in several orders, with or without drift."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.hashing import key_of, permute_all, uniforms
from experiments.data.marginals import draw, marginal
from experiments.data.order import REUSE, reorder, session_users
from kernels import Bags, TableSpec

Order = Literal["iid", "meta_low", "meta_medium", "sessions", "drift"]
DRIFT = 32
"""Ranks by which popularity moves on each batch under `drift`: what was the 32 most used rows is not, a batch later."""


@dataclass(frozen=True)
class Stream:
    """`batches` batches of `samples` bags for each of `tables` tables of `rows` rows; bags hold 1 to `longest` ids.

    P(rank r) ~ r^-alpha. `order`: see experiments/data/order.py; `sessions` gives each row one contiguous run; `drift`
    is i.i.d. but for the ranks, which move by DRIFT rows a batch.
    """

    order: Order = "iid"
    rows: int = 500_000
    tables: int = 4
    alpha: float = 1.05
    samples: int = 2048
    longest: int = 20
    batches: int = 40
    dim: int = 128
    seed: int = 0

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """The tables."""
        return tuple(TableSpec(f"t{i}", self.rows, self.dim) for i in range(self.tables))

    @property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return self.tables * self.rows

    def bags(self) -> list[Bags]:
        """Table-major bags of every batch."""
        tables = [self._table(number) for number in range(self.tables)]
        found = []
        for batch in range(self.batches):
            lengths = np.concatenate([lengths[batch] for lengths, _ in tables])
            ids = np.concatenate([keys[batch] for _, keys in tables])
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            found.append(Bags(torch.from_numpy(ids), torch.from_numpy(offsets)))
        return found

    def _table(self, number: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """(lengths [batches, samples], keys of each batch) of one table."""
        count = self.batches * self.samples
        lengths = 1 + np.floor(self.longest * uniforms(key_of(self.seed, number, "length"), 0, count)).astype(np.int64)
        lengths = lengths.reshape(self.batches, self.samples)
        cuts = np.cumsum(lengths.sum(1))
        return lengths, np.split(self._keys(number, int(cuts[-1]), cuts), cuts[:-1])

    def _keys(self, number: int, count: int, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`count` ids of table `number`; batch b holds those before cuts[b]."""
        if self.order == "sessions":
            return session_users(count, self.rows, self.seed + number)
        ranks = draw(marginal(self.rows, self.alpha), key_of(self.seed, number, "draw"), 0, count)
        if self.order == "drift":
            batch = np.repeat(np.arange(self.batches), np.diff(cuts, prepend=0))
            ranks = (ranks + DRIFT * batch) % self.rows
        ids = permute_all(ranks, self.rows, key_of(self.seed, number, "ids"))
        if self.order in REUSE:
            return reorder(ids, *REUSE[self.order], self.seed, f"t{number}")
        return ids


def distinct_rows(bags: Bags, tables: int, rows: int) -> NDArray[np.int64]:
    """Distinct rows of the stacked tables of `rows` each, ascending: what a cache is asked for."""
    starts = bags.offsets[:: len(bags) // tables].diff()
    table = torch.repeat_interleave(torch.arange(tables), starts)
    return np.unique((bags.ids + rows * table).numpy())


def distinct_by_batch(stream: Stream, bags: list[Bags]) -> Iterator[NDArray[np.int64]]:
    """`distinct_rows` of each batch."""
    for batch in bags:
        yield distinct_rows(batch, stream.tables, stream.rows)
