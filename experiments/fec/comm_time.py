"""Embedding communication of every arm in the fixed cell: total, exposed, bytes, step time, samples a second.

Paper figure: none known (FEC's text is not public): its headline, 6.65 times less embedding communication time and 2.42
times the throughput of the best baseline. The fixed cell: Criteo Kaggle's 26 tables, D = 64, 2,048 samples a rank, ids
i.i.d. Zipf 1.0, row-wise Adagrad, 2 x 2 ranks, 200 Mbit/s between nodes, a dense stand-in such that communication is
half of the de-duplicated step. De-duplication, routing and the remap to tiers are inside the step; tiers have the
boundary that the model chose. `--cell.stream` takes a log, or an order of the generator (`fec/streams` has these). Also
what stamps and remap cost (`fec/overhead` draws it).

Run:      python -m experiments run fec/comm_time --laptop   (shaped links need root; else loopback, labelled)
Expect:   de-duplication alone a factor of about 3 against raw; tier, pre-fetch and deferral together another 3 in
          exposed time and 1.5 in throughput; bytes nearly those of de-duplication.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from comm.schedule import split_offset
from experiments.config import Measurement
from experiments.fec._arms import BASELINES, FEC, FULL, MICRO
from experiments.fec._cell import (
    Cell,
    RankRun,
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

SHOWN = (
    *BASELINES, "tier", "prefetch", FEC, "prefetch+deferral", FULL, "prefetch+deferral+parts", MICRO,
)  # fmt: skip
STAMPING = ("touch", "judge")
"""Phases of an owner that noting and judging rows take: they run beside the step, on its cores."""


@dataclass(frozen=True)
class Config:
    """`arms` in turn, `rounds` bursts of `steps` steps each."""

    cell: Cell = field(default_factory=Cell)
    arms: tuple[str, ...] = SHOWN
    rounds: int = 3
    steps: int = 3


GRID = (Config(),)
LAPTOP = (Config(Cell(), (*BASELINES, FEC, FULL, MICRO), rounds=1, steps=2),)
TINY = (Config(tiny(), ("raw", "unique", FULL, MICRO), 1, 2),)
BUDGET_S = 50.0


def measure(config: Config) -> Iterator[Measurement]:
    """Run the cell; yield every arm."""
    cell = config.cell
    began = time.perf_counter()
    use = cell.count(batches_for(turns(config.arms), config.steps))
    counting_s = time.perf_counter() - began
    cluster, ranks = run_cell(cell, turns(config.arms), config.rounds, config.steps, use=use)
    found = {name: seen(ranks, name) for name in config.arms}
    against = {name: found[name] for name in BASELINES if name in found}
    samples = samples_of(cell, turns(config.arms), config.steps)
    for name in config.arms:
        metrics = metrics_of(found[name], against, samples) | overhead(ranks, name)
        metrics |= {"hot_rows": hot_of(ranks[0].arms[name]), "counting_s_per_batch": counting_s / use.batches}
        point: dict[str, Value] = {**point_of(cell, name), "max_rows": cell.max_rows}
        env = environment(cluster, ranks[0].dense_s)
        units = {metric: unit(metric) for metric in metrics} | {"counting_s_per_batch": "s"}
        yield Measurement(point, metrics, units, config.rounds * config.steps, cluster.kind, env)


def overhead(ranks: Sequence[RankRun], arm: str) -> dict[str, float]:
    """Milliseconds a step, means over ranks, of stamping, and of de-duplication with the remap to tiers in it."""
    return {"stamping_ms": phase_ms(ranks, arm, STAMPING), "dedup_ms": phase_ms(ranks, arm, ("dedup",))}


def phase_ms(ranks: Sequence[RankRun], arm: str, names: Sequence[str]) -> float:
    """Milliseconds a step that phases of these plain names take: medians over steps, means over ranks."""
    return 1e3 * statistics.fmean(
        statistics.median(
            sum(e.end - e.start for e in it.events if split_offset(e.phase)[1].rsplit(".", 1)[-1] in names)
            for round_ in rank.arms[arm].rounds
            for it in round_
        )
        for rank in ranks
    )
