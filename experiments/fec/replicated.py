"""What moves nothing forward: every row on every rank, by sparse all-gather or dense all-reduce.

Paper figure: none known. Both hold whole tables, so rows are scaled down: every table cut at `max_rows` (the record
says how many rows are left of Kaggle's 33.8 million), and the other arms are stepped at the same scale beside them.

Run:      python -m experiments run fec/replicated --laptop
Expect:   the all-gather sends a rank's gradients to everybody: more bytes than de-duplication from 4 ranks on; the
          dense all-reduce sends whole tables, so it pays only where they are tiny.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from experiments.config import Measurement
from experiments.fec._arms import BASELINES, FULL
from experiments.fec._cell import Cell, emulated, tiny


@dataclass(frozen=True)
class Config:
    """`arms` in turn, tables cut at `cell.max_rows`."""

    cell: Cell = field(default_factory=lambda: Cell(batch=1024, max_rows=100_000))
    arms: tuple[str, ...] = (*BASELINES, FULL, "allgather")
    steps: int = 3
    rounds: int = 1


SMALL = (*BASELINES, FULL, "allgather", "dense")
GRID = (Config(), Config(Cell(batch=1024, max_rows=1_000), SMALL))
LAPTOP = (Config(Cell(batch=256, max_rows=500), ("unique", FULL, "allgather", "dense"), steps=2),)
TINY = (Config(tiny(), ("unique", "allgather", "dense"), steps=1),)
BUDGET_S = 16.0


def measure(config: Config) -> Iterator[Measurement]:
    """The cell at its scale."""
    cell = config.cell
    kept = sum(table.rows for table in cell.open(1).tables)
    of_all = sum(table.rows for table in replace(cell, max_rows=0).open(1).tables)
    yield from emulated(cell, config.arms, config.rounds, config.steps, max_rows=cell.max_rows, scale=kept / of_all)
