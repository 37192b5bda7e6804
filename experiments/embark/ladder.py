"""What each part of EMBark adds to a step, from table-row-wise without overlap to everything.

Paper figure: none at hand (the abstract's 1.5x on average and 1.77x at best, end to end, over table-row-wise
sharding). Rungs, each with all before it: table-row-wise flat; hierarchical; overlap within a step (exchanges under the
bottom MLP, the look-ups of replicated tables and the index of the sparse backward); keys one batch ahead; rows free;
columns; replicated tables; de-duplicated tables, which is EMBark; de-duplication by node; row parts placed by how hot
they are.
Simulated on nodes of 8 by the planner's score. Emulated: the same overlap as schedules that run, real tables, ids and
bytes, a timer for the dense part; every rung ends with the same weights, or the run fails.

Command: python -m experiments run embark/ladder --laptop    20 s (shaped links need root; else loopback)
Expect: simulated at 16 nodes, EMBark 1.5x or more over table-row-wise without overlap, about half of it from overlap.
Metrics: `step_ms`; emulated too: `simulated_ms`, what the simulator makes of the same schedule, links and compute, and
`score_ms`, what the planner expected.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from comm.plan import Plan
from comm.planner.score import Overlap
from experiments.config import Measurement
from experiments.embark._emulated import Arm, Seen, stay
from experiments.embark._emulated_plans import NODE, Desk, desk_of
from experiments.embark._simulated import CLUSTERS, Job, ladder_points


@dataclass(frozen=True)
class Config:
    """`sites` are (nodes, ranks a node) emulated; `nodes` of 8 simulated. `samples` a rank, 0 for the site's own;
    `moves` of a search, 0 for its own number.
    """

    model: str = "t200"
    sites: tuple[tuple[int, int], ...] = ((2, 2), (2, 4))
    nodes: tuple[int, ...] = (2, 16)
    rate: str = "200mbit"
    samples: int = 0
    rounds: int = 5
    moves: int = 0


MODELS = ("dcnv2", "t180", "t200", "t510")
GRID = (
    *(Config(model, ((2, 2),), (16,), moves=10_000) for model in MODELS),
    Config("dcnv2", ((2, 4),), (), moves=10_000),
)
LAPTOP = (Config("dcnv2", ((2, 2),), (16,), samples=16, rounds=3, moves=5_000),)
TINY = (Config("dcnv2", ((2, 1),), (2,), samples=2, rounds=1, moves=200),)
BUDGET_S = 24.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every simulated cluster, then every emulated one."""
    moves = config.moves or None
    for nodes in config.nodes:
        yield from ladder_points(Job(config.model, nodes), moves)
    for nodes, local in config.sites:
        desk = desk_of(config.model, nodes, local, config.rate, config.samples, min(3, config.rounds))
        found = stay(desk.site, desk.topology, list(rungs(desk, moves)), config.rounds)
        for number, seen in enumerate(found.arms):
            point = {**desk.site.point, "arm": seen.arm.name, "number": number, "plan": seen.arm.plan.hash}
            metrics = seen_and_expected(desk, seen)
            units = dict.fromkeys(metrics, "ms")
            yield Measurement(point, metrics, units, config.rounds, found.cluster.kind, found.environment)


def rungs(desk: Desk, moves: int | None = None) -> Iterator[Arm]:
    """The ladder's arms. Every search starts from the plan before it and keeps it if it finds none that it scores
    better.
    """
    yield Arm("flat", desk.table_row_wise("flat"), "none")
    plan = desk.table_row_wise("hierarchical")
    first: tuple[tuple[str, Overlap], ...] = (("table_row_wise", "none"), ("+step", "step"), ("+steps", "steps"))
    for name, overlap in first:
        yield Arm(name, plan, overlap)
    freedom = (
        ("+rows", CLUSTERS[1:2], False, False),
        ("+columns", CLUSTERS[1:2], True, False),
        ("+replicated", CLUSTERS[:2], True, False),
        ("+unique", CLUSTERS, True, False),
        ("+unique_node", NODE, True, False),
        ("+hot shards", NODE, True, True),
    )
    for name, clusters, columns, skew in freedom:
        plan = better(desk, plan, desk.searched("steps", clusters, columns, skew, (plan,), moves), "steps")
        yield Arm(name, plan, "steps")


def better(desk: Desk, old: Plan, new: Plan, overlap: Overlap) -> Plan:
    """The one that scores better: a search blind to hot row parts may choose what the score likes less."""
    return new if desk.step_s(new, overlap) < desk.step_s(old, overlap) else old


def seen_and_expected(desk: Desk, seen: Seen) -> dict[str, float]:
    """A step by the clock, by the simulator and by the planner, in ms."""
    return {
        "step_ms": seen.step_ms,
        "simulated_ms": 1e3 * seen.simulated.seconds,
        "score_ms": 1e3 * desk.price(seen.arm.plan, seen.arm.overlap).step_s,
    }
