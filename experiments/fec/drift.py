"""A hot set that ages: epoch by epoch a share of all rows trades places in popularity, and the tier stays or follows.

Paper figure: none known. At every epoch the boundary's model prices the hot set of epoch 0 and one chosen anew from the
last batches; at the last epoch both are stepped on a cluster, beside no tier. Re-tiering happens between steps with
batches in flight drained (`models/retier.py`); what it moves is counted.

Run:      python -m experiments run fec/drift --laptop
Expect:   an aged hot set pays its all-reduce for rows that nobody reads, and ends up worse than none; a fresh one stays
          where it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from comm.planner.boundary import choose, price_of
from experiments.config import Measurement
from experiments.fec._arms import ARMS, BASELINES, FULL
from experiments.fec._cell import (
    Cell,
    Turn,
    baselines,
    batches_for,
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

NONE = "prefetch+deferral"


@dataclass(frozen=True)
class Config:
    """`epochs` of drift, `cell.moved` of the rows in each."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512, moved=0.2))
    epochs: int = 5
    steps: int = 4
    rounds: int = 2
    baselines: tuple[str, ...] = BASELINES


GRID = (Config(),)
LAPTOP = (Config(epochs=3, steps=3, rounds=1, baselines=()),)
TINY = (Config(tiny(moved=0.5), epochs=1, steps=1, rounds=1, baselines=()),)
BUDGET_S = 14.0


def measure(config: Config) -> Iterator[Measurement]:
    """Step at the last epoch with the aged, the fresh and no hot set; then the model's price of both at every epoch."""
    first, last = config.cell, replace(config.cell, epoch=config.epochs)
    needed = batches_for([Turn(FULL, ARMS[FULL])], config.steps)
    uses = [replace(first, epoch=epoch).count(needed) for epoch in range(config.epochs + 1)]
    which = (
        Turn("aged", ARMS[FULL], profile=uses[0]),
        Turn("fresh", ARMS[FULL], profile=uses[-1]),
        Turn("none", ARMS[NONE]),
    )
    cluster, ranks = run_cell(last, (*which, *turns(config.baselines)), config.rounds, config.steps)
    found = {turn.label: seen(ranks, turn.label) for turn in which}
    for turn in which:
        metrics = metrics_of(found[turn.label], {"aged": found["aged"]}, samples_of(last, which, config.steps))
        metrics["hot_rows"] = hot_of(ranks[0].arms[turn.label])
        point: dict[str, Value] = {**point_of(last, FULL), "hot_set": turn.label, "epoch": config.epochs}
        units = {metric: unit(metric) for metric in metrics}
        env = environment(cluster, ranks[0].dense_s)
        yield Measurement(point, metrics, units, config.rounds * config.steps, cluster.kind, env)
    samples = samples_of(last, which, config.steps)
    yield from baselines(last, cluster, ranks, config.baselines, samples, hot_set="baseline", epoch=config.epochs)
    timing, topology = ARMS[FULL].timing(ranks[0].dense_s), ranks[0].topology
    aged = choose(uses[0], timing, topology, first.row, first.memory).hot
    nothing = np.empty(0, np.int64)
    for epoch, use in enumerate(uses):
        fresh = choose(use, timing, topology, first.row, first.memory).hot
        for label, hot in (("aged", aged), ("fresh", fresh), ("none", nothing)):
            metrics = {
                "exposed_ms": 1e3 * price_of(use, hot, timing, topology, first.row).exposed_s,
                "hot_rows": len(hot),
                "rows_moved": len(np.setdiff1d(hot, aged)) + len(np.setdiff1d(aged, hot)),
            }
            point = {**point_of(first, FULL), "hot_set": label, "epoch": epoch}
            units = {metric: unit(metric) for metric in metrics}
            yield Measurement(point, metrics, units, use.batches, "predicted")
