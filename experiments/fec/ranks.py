"""What pre-fetching, deferral and tiers give as ranks grow: simulated to 128, emulated where it can be.

Paper figure: none known. The step of every arm on 2 x 2 to 16 x 8 ranks (nodes x ranks a node) with the links of an
emulated cluster as calibrated in the same run; the dense part is as long as communication of the de-duplicated step at
that size. Emulated points beside the simulated ones say what to think of them.

Run:      python -m experiments run fec/ranks --laptop
Expect:   conflicts grow with the global batch (more of the next batch's rows are being updated), so exposed time falls
          by less; node-level de-duplication and the tier gain with ranks a node.
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
    """`cell` at each of the `emulated` shapes, then priced at each of the `simulated` ones (nominal links if none)."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512, counted=8))
    emulated: tuple[tuple[int, int], ...] = ((2, 2), (2, 4))
    simulated: tuple[tuple[int, int], ...] = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (16, 8))
    steps: int = 4
    rounds: int = 2


GRID = (Config(),)
LAPTOP = (Config(emulated=((2, 2),), simulated=((2, 2), (2, 4)), steps=2, rounds=1),)
TINY = (
    Config(
        tiny(), ((2, 1),), ((2, 1), (4, 1)), 1, 1
    ),
)  # fmt: skip
BUDGET_S = 27.0


def measure(config: Config) -> Iterator[Measurement]:
    """Emulated points, then simulated ones on the links of the last emulated cluster."""
    topology = nominal(config.cell)
    for nodes, local in config.emulated:
        cell = replace(config.cell, nodes=nodes, ranks_per_node=local)
        topology = yield from emulated(cell, ARMS, config.rounds, config.steps)
    for nodes, local in config.simulated:
        cell = replace(config.cell, nodes=nodes, ranks_per_node=local)
        yield from simulated(cell, replace(topology, nodes=nodes, ranks_per_node=local), ARMS)
