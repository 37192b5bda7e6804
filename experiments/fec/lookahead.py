"""How many batches ahead: the share of rows that may come that early, and the step's time.

Paper figure: none known. A row of batch t + d may travel d batches early if no batch from t to t + d - 1 updates it, on
any rank. The shares are counted on every stream; on the cluster, steps pre-fetch at each depth, in turn.

Run:      python -m experiments run fec/lookahead --laptop
Expect:   the safe share falls with depth, so what is exposed grows: one batch is enough where its window is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from comm.when import When
from experiments.config import Measurement
from experiments.data.counting import keys_of_tables
from experiments.fec._arms import BASELINES, Arm
from experiments.fec._cell import (
    Cell,
    Turn,
    baselines,
    environment,
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

STREAMS = ("zipf", "iid", "meta_low", "meta_medium", "sessions")


@dataclass(frozen=True)
class Config:
    """Depths that are stepped, on the cell; depths that are `counted`, over `batches` global batches of each stream."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512))
    depths: tuple[int, ...] = (1, 2, 4, 8)
    counted: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    streams: tuple[str, ...] = STREAMS
    batches: int = 16
    steps: int = 4
    rounds: int = 2
    baselines: tuple[str, ...] = BASELINES


GRID = (Config(),)
LAPTOP = (Config(depths=(1, 4), streams=("zipf", "meta_medium"), batches=12, steps=2, rounds=1, baselines=()),)
TINY = (
    Config(
        tiny(), (1,), (1, 2), ("zipf",), batches=4, steps=1, rounds=1, baselines=(),
    ),
)  # fmt: skip
BUDGET_S = 14.0


def measure(config: Config) -> Iterator[Measurement]:
    """Count, then step."""
    for stream in config.streams:
        yield from count(config, replace(config.cell, stream=stream))
    which = [Turn(f"depth {d}", Arm(f"depth {d}", "unique", When(depth=d))) for d in config.depths]
    cluster, ranks = run_cell(config.cell, (*which, *turns(config.baselines)), config.rounds, config.steps)
    samples = samples_of(config.cell, which, config.steps)
    found = {turn.label: seen(ranks, turn.label) for turn in which}
    for turn, depth in zip(which, config.depths, strict=True):
        metrics = metrics_of(found[turn.label], {}, samples)
        point: dict[str, Value] = {**point_of(config.cell, "prefetch+deferral"), "depth": depth}
        units = {metric: unit(metric) for metric in metrics}
        env = environment(cluster, ranks[0].dense_s)
        yield Measurement(point, metrics, units, config.rounds * config.steps, cluster.kind, env)
    yield from baselines(config.cell, cluster, ranks, config.baselines, samples, depth=0)


def count(config: Config, cell: Cell) -> Iterator[Measurement]:
    """Shares of the distinct rows of a rank's batch that may travel early, by depth; and late, which has no depth."""
    needed = config.batches - cell.counted if config.batches > cell.counted else 0
    stream = cell.open(needed)
    batch = cell.local_batch(needed) * cell.world
    parts = zip(*(stream.batches(batch, rank, cell.world) for rank in range(cell.world)), strict=True)
    ranks = [[np.unique(keys_of_tables(p.bags, stream.tables)) for p in each] for each in parts][: config.batches]
    for depth in config.counted:
        metrics = shares(ranks, depth)
        point: dict[str, Value] = {**point_of(cell, "counted"), "depth": depth}
        yield Measurement(point, metrics, dict.fromkeys(metrics, "1"), config.batches - depth)


def shares(batches: Sequence[Sequence[NDArray[np.int64]]], depth: int) -> dict[str, float]:
    """`safe`: of distinct keys of a rank, over all batches that have `depth` before them; `popular` the same of keys
    that half or more of the local batches have, `rest` of the others.
    """
    if len(batches) <= depth:
        raise ValueError(f"batches: expected more than depth {depth}, given {len(batches)}")
    keys, touched = np.unique(np.concatenate([k for ranks in batches for k in ranks]), return_counts=True)
    popular = keys[2 * touched >= sum(len(ranks) for ranks in batches)]
    unions = [np.unique(np.concatenate(ranks)) for ranks in batches]
    safe = {"safe": [0, 0], "popular": [0, 0], "rest": [0, 0]}
    for t in range(depth, len(batches)):
        before = np.concatenate(unions[t - depth : t])
        for own in batches[t]:
            may, is_popular = ~np.isin(own, before), np.isin(own, popular)
            for name, of in (("safe", np.ones(len(own), bool)), ("popular", is_popular), ("rest", ~is_popular)):
                safe[name][0] += int((may & of).sum())
                safe[name][1] += int(of.sum())
    return {f"{name}_share": n / max(of, 1) for name, (n, of) in safe.items()}
