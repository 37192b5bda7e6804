"""A click log in binary form: arrays on disk that training reads at memory speed.

A prepared log is a folder: `label.bin` [n] uint8, `dense.bin` [n, 13] float32 (transformed), `ids.bin` [n, 26] int32
(int64 if a table needs it), and `manifest.json`, written last: a folder without one is not whole.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
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
from kernels.bags import TableSpec
from models.manifest import MANIFEST, write_manifest

VERSION = 1
_BLOCK = 65_536


def is_prepared(path: Path) -> bool:
    """Whether `path` is a whole prepared log."""
    return (path / MANIFEST).is_file()


@dataclass(frozen=True)
class PreparedLog:
    """Samples [first, stop) of the prepared log at `path`, a ClickStream; `dim` is the tables' width.

    Raises ValueError for a folder that is not whole, or of another version.
    """

    path: Path
    dim: int = 16
    first: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if not is_prepared(self.path):
            raise ValueError(
                f"{self.path}: expected a prepared log with a {MANIFEST}, given none: run python -m experiments prepare"
            )
        if self._manifest["version"] != VERSION:
            raise ValueError(
                f"{self.path}: expected version {VERSION}, given {self._manifest['version']}: prepare it again"
            )

    @cached_property
    def _manifest(self) -> dict:
        return json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.signedinteger]]:
        n, ids = self._manifest["samples"], self._manifest["ids"]
        return (
            np.memmap(self.path / "label.bin", np.uint8, "r", shape=(n,)),
            np.memmap(self.path / "dense.bin", np.float32, "r", shape=(n, DENSE)),
            np.memmap(self.path / "ids.bin", ids, "r", shape=(n, len(TABLES))),
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """C1..C26."""
        return tuple(TableSpec(name, rows, self.dim) for name, rows in zip(TABLES, self._manifest["rows"], strict=True))

    @property
    def samples(self) -> int:
        """Samples in one pass."""
        return (self._manifest["samples"] if self.stop is None else self.stop) - self.first

    @property
    def bad_lines(self) -> int:
        """Malformed lines that were left out when the log was prepared."""
        return self._manifest["bad_lines"]

    def batches(self, batch: int, rank: int = 0, world: int = 1, start: int = 0) -> Iterator[ClickBatch]:
        """See ClickStream."""
        check_batching(batch, rank, world, start)
        label, dense, ids = self._arrays
        end = self.first + self.samples
        for begin in range(self.first + start * batch, end, batch):
            low, high = (begin + place for place in rank_slice(min(batch, end - begin), rank, world))
            yield click_batch(
                label[low:high].astype(np.float32),
                np.array(dense[low:high]),
                np.ascontiguousarray(ids[low:high].T).astype(np.int64, copy=False),
            )

    def split(self, eval_share: float) -> tuple["PreparedLog", "PreparedLog"]:
        """See ClickStream."""
        cut = self.first + split_at(self.samples, eval_share)
        return replace(self, stop=cut), replace(self, first=cut, stop=self.first + self.samples)


def prepare(stream: ClickStream, out: Path, advanced: Callable[[int], object] = lambda _: None) -> PreparedLog:
    """Write `stream` to the folder `out`; `advanced(samples)` is called as it goes. Memory is one block's.

    Raises FileExistsError if `out` holds a whole log already; what an interrupted run left is written over.
    """
    if is_prepared(out):
        raise FileExistsError(f"{out}: expected a new folder, given one that holds a prepared log: remove it first")
    out.mkdir(parents=True, exist_ok=True)
    rows = [table.rows for table in stream.tables]
    kind, written = np.dtype(np.int32 if max(rows) <= 2**31 else np.int64), 0
    names = ("label.bin", "dense.bin", "ids.bin")
    files = [(out / name).open("wb") for name in names]
    try:
        for batch in stream.batches(_BLOCK):
            ids = batch.bags.ids.numpy().reshape(len(TABLES), -1).T
            parts = (batch.label.numpy().astype(np.uint8), batch.dense.numpy(), ids.astype(kind))
            for file, part in zip(files, parts, strict=True):
                file.write(np.ascontiguousarray(part).data)
            written += len(batch)
            advanced(len(batch))
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = error.strerror
        raise OSError(f"{out}: could not write sample {written} and on ({why}); run prepare again") from error
    finally:
        for file in files:
            with suppress(OSError):  # what a full disk does not take is not wanted
                file.close()
    manifest = {
        "version": VERSION,
        "samples": written,
        "rows": rows,
        "ids": kind.name,
        "bad_lines": getattr(stream, "bad_lines", 0),
    }
    write_manifest(out, manifest)
    return PreparedLog(out, stream.tables[0].dim)
