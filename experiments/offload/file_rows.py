"""Rows from and to a file: the file tier beside a bare reader of the same records, by transfers in flight.

Paper figure: none (a tier below host memory; FBGEMM puts RocksDB there). The bare reader does nothing but one `preadv`
of a record at a time in each of its threads; the tier also brings the rows, and their optimizer states, to their lines.

Run:      python -m experiments run offload/file_rows --laptop   (about 6 s; 41 MB of the disk of temporary files)
Expect:   rows/s grow with the transfers in flight until the disk is busy; at 16 the tier reads at least 60 % of the
          bare reader's rows/s.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.config import Measurement
from experiments.timing import interleaved
from kernels import Optimizer
from models.file_tier import FileTier
from models.tier import StoreSpec


@dataclass(frozen=True)
class Config:
    """`moved` of `rows` rows of `dim` float32 a call, drawn anew for each; `folder`: where the file is made, if not
    among temporary files.
    """

    rows: int = 100_000
    dim: int = 128
    moved: int = 4096
    depths: tuple[int, ...] = (1, 4, 16)
    pairs: int = 15
    folder: str = ""


GRID = (Config(), Config(dim=112))
LAPTOP = (Config(rows=40_000, depths=(16,), pairs=9),)
TINY = (Config(rows=512, dim=8, moved=64, depths=(2,), pairs=5),)
BUDGET_S = 7.0


def measure(config: Config) -> Iterator[Measurement]:
    """Time bare reads, the tier's reads and its writes in turn, each depth in a file of its own."""

    def initial(rows: torch.Tensor) -> torch.Tensor:
        return rows[:, None].float().expand(-1, config.dim).contiguous()

    optimizer = Optimizer("rowwise_adagrad")
    spec = StoreSpec("rows", config.rows, config.dim, torch.float32, optimizer, initial, lambda: torch.empty(0), str)
    with tempfile.TemporaryDirectory(dir=config.folder or None) as folder:
        for depth in config.depths:
            tier = FileTier(Path(folder) / f"rows-{depth}", spec, depth)
            yield from _timed(config, tier)
            tier.close()


def _timed(config: Config, tier: FileTier) -> Iterator[Measurement]:
    spec, record = tier.spec, tier.file.record
    for begin in range(0, config.rows, config.moved):
        rows = torch.arange(begin, min(begin + config.moved, config.rows))
        values = spec.initial(rows)
        tier.write(rows, (values, *spec.states_of(values)), torch.arange(len(rows)))
    values = torch.zeros(config.moved, config.dim)
    lines, slots = (values, *spec.states_of(values)), torch.arange(config.moved)
    source = torch.Generator().manual_seed(0)
    some = torch.arange(config.moved) * 7 % config.rows
    tier.read(some, lines, slots)
    if not torch.equal(values, spec.initial(some)):
        raise RuntimeError(f"{tier.file.path}: expected the rows that were written, given others")

    def drawn() -> torch.Tensor:
        return torch.randperm(config.rows, generator=source)[: config.moved].sort().values

    with BareReader(tier.file.path, record, tier.file.depth) as bare:
        timed = interleaved(
            {
                "bare": lambda: bare.read(drawn().numpy()),
                "read": lambda: tier.read(drawn(), lines, slots),
                "write": lambda: tier.write(drawn(), lines, slots),
            },
            config.pairs,
        )
    for name in ("read", "write"):
        share = timed["bare"].over(timed[name])
        metrics = {
            "rows_per_s": config.moved / timed[name].median,
            "bare_rows_per_s": config.moved / timed["bare"].median,
            "share": share.median,
            "share_low": share.low,
            "share_high": share.high,
        }
        units = {key: "1/s" if key.endswith("_s") else "ratio" for key in metrics}
        point = {"what": name, "depth": tier.file.depth, "record": record, "rows": config.rows}
        yield Measurement(point, metrics, units, config.pairs)


class BareReader:
    """`depth` threads that read one record of `path` after another, O_DIRECT, and keep nothing."""

    def __init__(self, path: str, record: int, depth: int) -> None:
        self.record, self.depth = record, depth
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._pool = ThreadPoolExecutor(depth)

    def __enter__(self) -> "BareReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        os.close(self._file)

    def read(self, rows: Sequence[int] | np.ndarray) -> None:
        """Read the records `rows` [n], each thread an equal run of them."""
        list(self._pool.map(self._run, np.array_split(np.asarray(rows), self.depth)))

    def _run(self, rows: np.ndarray) -> None:
        room = memoryview(mmap.mmap(-1, -(-self.record // mmap.PAGESIZE) * mmap.PAGESIZE))[: self.record]
        for row in rows.tolist():
            os.preadv(self._file, [room], row * self.record)
