"""How much there is to gain where communication is a smaller or larger share of the step: 25 to 75 %.

Paper figure: none known. The dense part is chosen so that communication is that share of the de-duplicated step. What
runs beside the step must fit under its compute (the window): where communication is three quarters of the step it does
not, and a pre-fetch can only move the wait.

Run:      python -m experiments run fec/window --laptop
Expect:   the best throughput gain where both are about equal; exposed time falls most where the window is widest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from experiments.config import Measurement
from experiments.fec._arms import BASELINES, FEC, FULL, MICRO
from experiments.fec._cell import Cell, emulated, tiny
from experiments.fec._simulated import nominal, simulated

ARMS = (*BASELINES, FEC, FULL, MICRO)


@dataclass(frozen=True)
class Config:
    """Each share of `emulated` on a cluster, each of `simulated` priced on its links (or nominal ones)."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512))
    emulated: tuple[float, ...] = (0.25, 0.5, 0.75)
    simulated: tuple[float, ...] = (0.25, 0.35, 0.45, 0.5, 0.55, 0.65, 0.75)
    steps: int = 3
    rounds: int = 1


GRID = (Config(),)
LAPTOP = (Config(emulated=(), simulated=(0.25, 0.5, 0.75)),)
TINY = (
    Config(tiny(batch=8), (), (0.25, 0.75)),
)  # fmt: skip
BUDGET_S = 7.0


def measure(config: Config) -> Iterator[Measurement]:
    """Emulated points, then simulated ones."""
    topology = nominal(config.cell)
    for share in config.emulated:
        topology = yield from emulated(replace(config.cell, share=share), ARMS, config.rounds, config.steps)
    for share in config.simulated:
        yield from simulated(replace(config.cell, share=share), topology, ARMS)
