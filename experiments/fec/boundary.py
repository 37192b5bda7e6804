"""The size of the hot set swept, with the boundary that the model chooses among it: what the choice costs.

Paper figure: none known. FEC's own rule for what is popular is not public; here it is the least exposed time under a
cost model, from a counting pass and the links as calibrated in the same run. Every size is stepped with pre-fetch and
deferral (and without both), in turn; regret is the chosen size's step time over the best one's.

Run:      python -m experiments run fec/boundary --laptop
Expect:   a flat optimum at rows that a half or more of the local batches touch; too many rows cost more than none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from experiments.config import Measurement
from experiments.fec._arms import ARMS, BASELINES, FULL
from experiments.fec._cell import (
    Cell,
    Turn,
    baselines,
    environment,
    hot_of,
    metrics_of,
    point_of,
    run_cell,
    samples_of,
    seen,
    tiny,
    turns,
    unit,
)
from experiments.record import Value

BASE = {FULL: "prefetch+deferral", "tier": "unique"}
"""What an arm is without copies."""


@dataclass(frozen=True)
class Config:
    """Hot sets of each of `sizes` rows, and the chosen one, for the arm `arm`."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512))
    arm: str = FULL
    sizes: tuple[int, ...] = (300, 600, 1200, 2400, 4800, 9600)
    steps: int = 4
    rounds: int = 3
    baselines: tuple[str, ...] = BASELINES


GRID = (Config(),)
LAPTOP = (Config(sizes=(1200, 9600), steps=3, rounds=1, baselines=()),)
TINY = (Config(tiny(), sizes=(5,), steps=1, rounds=1, baselines=("raw",)),)
BUDGET_S = 18.0
CHOSEN = "chosen"


def measure(config: Config) -> Iterator[Measurement]:
    """Run the chosen size and the others in turn; yield each with the model's price of it."""
    cell, arm = config.cell, ARMS[config.arm]
    which = (
        Turn(CHOSEN, arm),
        Turn("none", ARMS[BASE[config.arm]]),
        *(Turn(f"{size}", arm, hot=size) for size in config.sizes),
    )
    cluster, ranks = run_cell(cell, (*which, *turns(config.baselines)), config.rounds, config.steps)
    found = {turn.label: seen(ranks, turn.label) for turn in which}
    samples = samples_of(cell, which, config.steps)
    weighed = ranks[0].arms[CHOSEN].boundary
    assert weighed is not None
    for turn in which:
        boundary = ranks[0].arms[turn.label].boundary
        # the price of no copies is that of the smallest boundary weighed, which is 0
        exposed_s = boundary.chosen.exposed_s if boundary else weighed.weighed[0].exposed_s
        metrics = metrics_of(found[turn.label], {CHOSEN: found[CHOSEN]}, samples)
        metrics |= {"hot_rows": hot_of(ranks[0].arms[turn.label]), "predicted_exposed_ms": 1e3 * exposed_s}
        point: dict[str, Value] = {**point_of(cell, config.arm), "size": turn.label}
        units = {metric: unit(metric) for metric in metrics}
        env = environment(cluster, ranks[0].dense_s)
        yield Measurement(point, metrics, units, config.rounds * config.steps, cluster.kind, env)
    yield from baselines(cell, cluster, ranks, config.baselines, samples, size="baseline")
    for priced in weighed.weighed:
        metrics = {"predicted_exposed_ms": 1e3 * priced.exposed_s, "hot_rows": priced.rows}
        point = {**point_of(cell, config.arm), "size": "weighed"}
        yield Measurement(point, metrics, {m: unit(m) for m in metrics}, cell.counted, "predicted")
