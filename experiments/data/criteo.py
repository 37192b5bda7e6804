"""A Criteo-format click log as a ClickStream: streaming, position-addressed, with errors that name file and line."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from experiments.data.batch import ClickBatch, check_batching, click_batch, rank_slice, split_at, transform_dense
from experiments.data.ids import IdMap, Indexed
from experiments.data.parquet import ParquetFile
from experiments.data.rows import MISSING_INTEGER, Block, Rows, RowSource
from experiments.data.tsv import TsvFile
from kernels.bags import TableSpec

OnBadLine = Literal["raise", "skip"]
SUFFIXES = (".tsv", ".tsv.gz", ".parquet")
_COUNTING = 65_536  # lines a block of the counting pass


@dataclass
class _Skipped:
    lines: int = 0


def _open(path: Path) -> RowSource:
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path}: expected a click log named *{', *'.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: expected a click log, given {'a folder' if path.is_dir() else 'no such file'}"
        )
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: expected at least one line, given an empty file")
    return ParquetFile(path) if path.suffix == ".parquet" else TsvFile(path)


def _check_mode(on_bad_line: str) -> None:
    if on_bad_line not in get_args(OnBadLine):
        raise ValueError(f"unknown on_bad_line {on_bad_line!r}: choose one of {', '.join(get_args(OnBadLine))}")


def _good_rows(path: Path, block: Block, low: int, high: int, on_bad_line: OnBadLine, skipped: _Skipped) -> Rows:
    rows = block.rows(low, high)
    if rows.bad and on_bad_line == "raise":
        first = rows.bad[0]
        raise ValueError(f"{path}, line {first.line}: {first.why} (on_bad_line='skip' skips and counts such lines)")
    skipped.lines += len(rows.bad)
    return rows


@dataclass(frozen=True)
class CriteoLog:
    """Lines [first, stop) of the log at `path`, a ClickStream.

    `ids`: Hashed or Indexed (see `count_ids`); `dim`: the tables' width. A position is a line's number from 0, good or
    bad: with on_bad_line="skip" a malformed line leaves its batch one sample short and is counted in `bad_lines`; with
    "raise" it is a ValueError that names file, line, field, what was expected and given. A rank parses only its own
    lines.

    Raises FileNotFoundError for a missing file, ValueError for an empty file, a broken gzip file, missing Parquet
    columns, an unknown suffix.
    """

    path: Path
    ids: IdMap
    dim: int = 16
    on_bad_line: OnBadLine = "raise"
    first: int = 0
    stop: int | None = None
    _skipped: _Skipped = field(default_factory=_Skipped, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_mode(self.on_bad_line)
        _open(self.path)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """C1..C26."""
        return tuple(TableSpec(f"C{t}", rows, self.dim) for t, rows in enumerate(self.ids.rows, 1))

    @property
    def samples(self) -> int:
        """Lines in one pass; counts the file's lines, once, when `stop` is None."""
        return self._stop - self.first

    @cached_property
    def _stop(self) -> int:
        return _open(self.path).count() if self.stop is None else self.stop

    @property
    def bad_lines(self) -> int:
        """Malformed lines skipped so far, over all passes of this process through this log and its splits."""
        return self._skipped.lines

    def batches(self, batch: int, rank: int = 0, world: int = 1, start: int = 0) -> Iterator[ClickBatch]:
        """See ClickStream."""
        check_batching(batch, rank, world, start)
        for block in _open(self.path).blocks(batch, self.first + start * batch, self.stop):
            low, high = rank_slice(len(block), rank, world)
            rows = _good_rows(self.path, block, low, high, self.on_bad_line, self._skipped)
            dense = transform_dense(rows.integers, rows.integers == MISSING_INTEGER)
            yield click_batch(rows.label, dense, self.ids.ids(rows.values))

    def split(self, eval_share: float) -> tuple["CriteoLog", "CriteoLog"]:
        """See ClickStream. Counts the file's lines when that is not known yet."""
        cut = self.first + split_at(self.samples, eval_share)
        return replace(self, stop=cut), replace(self, first=cut, stop=self.first + self.samples)


def count_ids(
    path: Path, min_count: int = 1, on_bad_line: OnBadLine = "raise", first: int = 0, stop: int | None = None
) -> Indexed:
    """The vocabulary of lines [first, stop) of a log: one counting pass. Values outside it become row 0 later."""
    return Indexed.count(value_blocks(path, _COUNTING, on_bad_line, first, stop), min_count)


def value_blocks(
    path: Path, size: int, on_bad_line: OnBadLine = "raise", first: int = 0, stop: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """Categorical values [n, 26] of lines [first, stop) of a log, `size` lines at a time, malformed ones left out."""
    _check_mode(on_bad_line)
    for block in _open(path).blocks(size, first, stop):
        yield _good_rows(path, block, 0, len(block), on_bad_line, _Skipped()).values


def count_lines(path: Path) -> int:
    """Lines of a log, good or bad: one pass for text, free for Parquet."""
    return _open(path).count()
