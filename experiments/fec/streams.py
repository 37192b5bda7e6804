"""The arms on other streams: the calibrated Criteo generator in its four orders, or a log.

Paper figure: none known. The same cell as `fec/comm_time` with half its batch; the generator's tables are cut at a
million rows. Locality in time makes neighbouring batches share rows, which is what pre-fetching and deferral live from
not happening; `sessions` is the adversarial order.

Run:      python -m experiments run fec/streams --laptop   (--streams PATH for a log: the local batch is scaled to it)
Expect:   `meta_low` near `iid`; `meta_medium` with fewer rows in all, so less to move, and more conflicts among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from experiments.config import Measurement
from experiments.data.order import ORDERS
from experiments.fec._arms import BASELINES, FEC, FULL, MICRO
from experiments.fec._cell import Cell, emulated, tiny

ARMS = (*BASELINES, FEC, FULL, MICRO)


@dataclass(frozen=True)
class Config:
    """`arms` in turn on each of `streams`."""

    cell: Cell = field(default_factory=lambda: Cell(batch=1024))
    streams: tuple[str, ...] = ORDERS
    arms: tuple[str, ...] = ARMS
    steps: int = 3
    rounds: int = 1


GRID = (Config(),)
LAPTOP = (Config(Cell(batch=512), ("meta_medium",), ("raw", "unique", FULL), steps=3),)
TINY = (Config(tiny(), ("sessions",), ("unique", FULL), steps=1),)
BUDGET_S = 14.0


def measure(config: Config) -> Iterator[Measurement]:
    """One cluster for each stream."""
    for stream in config.streams:
        yield from emulated(replace(config.cell, stream=stream), config.arms, config.rounds, config.steps)
