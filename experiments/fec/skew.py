"""What skew and the batch's size change: Zipf exponents 0.6 to 1.2, local batches 256 to 2,048, simulated.

Paper figure: none known. Every arm on 2 x 2 ranks, the dense part as long as communication of the de-duplicated step;
links as calibrated by the emulated points, which are those of the middle of the sweep.

Run:      python -m experiments run fec/skew --laptop
Expect:   raw against de-duplicated grows with skew and batch; what tiers, pre-fetch and deferral add to
          de-duplication changes little: more rows repeat, so more conflict.
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
    """Each of `alphas` at the cell's batch, each of `batches` at the cell's exponent; `steps` (0: none, and nominal
    links) of the cell itself are clocked.
    """

    cell: Cell = field(default_factory=lambda: Cell(batch=512))
    alphas: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    batches: tuple[int, ...] = (256, 512, 1024, 2048)
    steps: int = 3
    rounds: int = 1


GRID = (Config(),)
LAPTOP = (Config(alphas=(0.6, 0.9, 1.2), batches=(256, 1024), steps=0),)
TINY = (
    Config(tiny(batch=8), (0.6, 1.2), (16,), steps=0),
)  # fmt: skip
BUDGET_S = 9.0


def measure(config: Config) -> Iterator[Measurement]:
    """The middle of the sweep emulated, then all of it simulated on its links."""
    topology = nominal(config.cell)
    if config.steps:
        topology = yield from emulated(config.cell, ARMS, config.rounds, config.steps, sweep="middle")
    for alpha in config.alphas:
        yield from simulated(replace(config.cell, alpha=alpha), topology, ARMS, sweep="alpha")
    for batch in config.batches:
        yield from simulated(replace(config.cell, batch=batch), topology, ARMS, sweep="batch")
