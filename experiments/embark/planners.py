"""Plan quality and planning time: every planner, model and cluster, priced by one score.

Paper figure: none (EMBark's planner is compared by the step it gives). Planners: table-row-wise, round robin and
uniform (by a table's number alone), HugeCTR's auto and hier_auto, the same with its thresholds swept by hand (the
strongest use of it), TorchRec's own (its plans are committed), and this project's search over EMBark's three clusters,
`search`, and over these and de-duplication by node, `search_node`. Each runs flat and hierarchical. What does not fit
in memory is recorded as such, with the bytes a rank lacks. The search runs twice, the second time with the baselines'
plans among its seeds, so it cannot be worse than they are; `unseeded_ms` and `plan_s` are those of the first.

Command: python -m experiments run embark/planners        minutes (--laptop: 15 s)
Expect: `search` 1.2x or more below `swept` at 16 nodes on average; round robin out of memory on T180.
Metrics, simulated: `embedding_ms` without overlap, `step_ms` with dense part without overlap, `overlapped_ms` with
keys a batch ahead and the dense all-reduce under updates. Measured: `plan_s`, processor seconds of one thread,
compilation cached; TorchRec's are wall-clock seconds from its file.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.config import Measurement, grid
from experiments.embark._simulated import (
    CLUSTERS,
    MEMORY,
    MODELS,
    NODES,
    Job,
    Made,
    baselines,
    searched,
)
from experiments.record import Value


@dataclass(frozen=True)
class Config:
    """`moves` of the search in all its `restarts`."""

    model: str = "dcnv2"
    nodes: int = 16
    moves: int = 100_000
    restarts: int = 3


GRID = grid(Config, model=MODELS, nodes=NODES)
LAPTOP = grid(Config, model=("dcnv2", "t200"), nodes=(1, 16), moves=(20_000,), restarts=(1,))
TINY = (Config("dcnv2", 2, 500, 1),)
BUDGET_S = 20.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every planner on one job: its plan's price and its seconds."""
    job = Job(config.model, config.nodes)
    searched(Job("dcnv2", 1), moves=1)  # compile
    found = list(baselines(job))
    seeds = tuple(made.plan for made in found if made.plan is not None and job.embedding_s(made.plan) < float("inf"))
    for one in found:
        yield from recorded(job, one)
    for planner, clusters in (("search", CLUSTERS), ("search_node", (*CLUSTERS, "unique_node"))):
        began = time.process_time()
        alone = searched(job, clusters, moves=config.moves, restarts=config.restarts)
        seconds = time.process_time() - began
        seeded = searched(job, clusters, seeds=seeds, moves=config.moves, restarts=config.restarts)
        best = min((alone, seeded), key=lambda planned: planned.score.embedding_s)
        dense = best.score.step_s - best.score.embedding_s
        more = {"bound_ms": 1e3 * (best.bound_s - dense), "unseeded_ms": 1e3 * alone.score.embedding_s}
        yield from recorded(job, Made(planner, "best", best.plan, seconds), more)
        seeds = (best.plan, *seeds)


def recorded(job: Job, made: Made, more: dict[str, float] | None = None) -> Iterator[Measurement]:
    """The price of what a planner made, and its seconds."""
    point = {**job.point, "planner": made.planner, "pooled": made.pooled}
    env: dict[str, Value] = {"how": made.how} if made.how else {}
    metrics = {"fits": 0.0}
    if made.plan is not None:
        priced = job.price(made.plan)
        if priced.fits(MEMORY):
            metrics = {
                "fits": 1.0,
                "embedding_ms": 1e3 * priced.embedding_s,
                "step_ms": 1e3 * priced.step_s,
                "overlapped_ms": 1e3 * job.price(made.plan, "steps").step_s,
                **(more or {}),
            }
        else:
            metrics["lacks_gb"] = (max(priced.memory) - MEMORY) / 1e9
    unit = {name: {"fits": "1", "lacks_gb": "GB"}.get(name, "ms") for name in metrics}
    yield Measurement(point, metrics, unit, 1, "simulated", env)
    yield Measurement(point, {"plan_s": made.seconds}, {"plan_s": "s"}, 1, "measured", env)
