"""Steps and throughput of every planner's plan, without overlap and with all of it; how well they are foretold.

Paper figure: the abstract's result, 1.5x on average and 1.77x at best over table-row-wise sharding, end to end.
Simulated on nodes of 8 by the planner's score. Emulated: the plans run, real tables, ids and bytes, a timer for the
dense part; all end with the same weights, or the run fails. 20 plans and more of different planners a model, the
baselines of both modes of communication and HugeCTR's with its user's thresholds among them: `simulated_ms` (the
simulator, given measured links and what the phases computed) and `score_ms` (the planner, before anything ran) are to
be ranked beside `step_ms`.

Command: python -m experiments run embark/end_to_end --laptop    20 s (shaped links need root; else loopback)
Expect: our search first on every model; ranks by the simulator near the cluster's (Spearman above 0.9).
Metrics: ms of a step as above; `samples_per_s`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from comm.plan import Plan
from comm.planner.score import Overlap
from experiments.config import Measurement
from experiments.embark._emulated import Arm, stay
from experiments.embark._emulated_plans import NODE, Desk, desk_of
from experiments.embark._simulated import CLUSTERS, NODES, Job, end_to_end_points
from experiments.embark.ladder import seen_and_expected

WITH_OVERLAP = ("table_row_wise", "hier_auto", "swept", "search", "search_node")
"""Planners whose plans, hierarchical ones, also run with overlap."""
FEW = ("table_row_wise", "swept", "search")
"""The planners of a laptop's run."""


@dataclass(frozen=True)
class Config:
    """`sites` are (nodes, ranks a node) emulated; `nodes` of 8 simulated. `samples` a rank, 0 for the site's own;
    `moves` of a search, 0 for its own number. `planners`: of the emulated ones, none for all.
    """

    model: str = "t200"
    sites: tuple[tuple[int, int], ...] = ((2, 2), (2, 4))
    nodes: tuple[int, ...] = NODES
    rate: str = "200mbit"
    samples: int = 0
    rounds: int = 3
    moves: int = 0
    planners: tuple[str, ...] = ()


GRID = (
    *(Config(model, ((2, 2),), (16,), moves=10_000) for model in ("dcnv2", "t200")),
    *(Config(model, (), (16,), moves=10_000) for model in ("t180", "t510")),
)
LAPTOP = (Config("dcnv2", ((2, 2),), (16,), samples=16, rounds=3, moves=5_000, planners=FEW),)
TINY = (Config("dcnv2", ((2, 1),), (2,), samples=2, rounds=1, moves=200, planners=FEW),)
BUDGET_S = 24.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every simulated cluster, then every emulated one."""
    moves = config.moves or None
    for nodes in config.nodes:
        yield from end_to_end_points(Job(config.model, nodes), moves)
    for nodes, local in config.sites:
        desk = desk_of(config.model, nodes, local, config.rate, config.samples, min(3, config.rounds))
        chosen = config.planners
        arms = [arm for arm in contenders(desk, moves) if not chosen or arm.point["planner"] in chosen]
        found = stay(desk.site, desk.topology, arms, config.rounds)
        for seen in found.arms:
            point = {**desk.site.point, **seen.arm.point, "overlap": seen.arm.overlap, "plan": seen.arm.plan.hash}
            metrics = seen_and_expected(desk, seen)
            units = dict.fromkeys(metrics, "ms") | {"samples_per_s": "1/s"}
            metrics["samples_per_s"] = 1e3 * desk.site.workload.batch / seen.step_ms
            yield Measurement(point, metrics, units, config.rounds, found.cluster.kind, found.environment)


def contenders(desk: Desk, moves: int | None) -> Iterator[Arm]:
    """Every planner's plan without overlap, some with it; a search plans for the overlap that it runs under."""
    specs, world = desk.site.workload.specs, desk.site.world
    made = list(desk.baselines())
    made += [(name, "own", Plan.uniform(specs, name, world)) for name in ("unique", "unique_node")]
    for planner, mode, plan in made:
        yield _arm(planner, mode, plan, "none")
    seeds = tuple(plan for _, _, plan in made if desk.step_s(plan) < float("inf"))
    overlaps: tuple[Overlap, ...] = ("none", "steps")
    for overlap in overlaps:
        for planner, clusters in (("search", CLUSTERS), ("search_node", NODE)):
            yield _arm(planner, "best", desk.searched(overlap, clusters, seeds=seeds, moves=moves), overlap)
    for planner, mode, plan in made:
        if mode == "hierarchical" and planner in WITH_OVERLAP:
            yield _arm(planner, mode, plan, "steps")


def _arm(planner: str, mode: str, plan: Plan, overlap: Overlap) -> Arm:
    return Arm(f"{planner}, {mode}, {overlap}", plan, overlap, {"planner": planner, "pooled": mode})
