"""A step's time by part: table-row-wise and the plan of our search, simulated and emulated, nothing hidden.

Paper figure: none at hand. Simulated on nodes of 8: the stages of the planner's score. Emulated: each phase from the
first rank's start to the last one's end if it computes, from the last arrival to the last end if it exchanges; dense
part a timer, its gradients off the link. What the parts leave of `step_ms` is waiting between them. A third arm sends
its keys in one collective of padded parts.

Command: python -m experiments run embark/breakdown --laptop    20 s (shaped links need root; else loopback)
Expect: values and keys are most of a step of table-row-wise; the search cuts both.
Metrics: ms of keys (with routing and de-duplication), look-ups and pooling, values forward, values backward, sums and
updates (with their index), dense part, its reduction, and the step.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from comm.simulate import Timeline
from experiments.config import Measurement
from experiments.embark._emulated import Arm, Stay, stay
from experiments.embark._emulated_plans import desk_of
from experiments.embark._simulated import PARTS, Job, breakdown_points

PHASES: Mapping[str, tuple[str, ...]] = {
    "keys_ms": ("split", "route", "dedup", "keys", "keys_node", "dedup_node", "keys_rail"),
    "lookup_ms": ("gather", "combine", "pool"),
    "send_ms": ("send",),
    "grad_send_ms": ("grad_send", "grad_node", "grad_rail"),
    "update_ms": ("unpool", "index", "local_reduce", "node_reduce", "owner_reduce", "norm", "apply"),
    "dense_ms": ("bottom", "top", "bottom_backward"),
    "dense_reduce_ms": (),
}
"""Which phases are in which part, by the end of their names."""
assert PHASES.keys() == PARTS.keys()


@dataclass(frozen=True)
class Config:
    """`sites` are (nodes, ranks a node) emulated; `nodes` of 8 simulated. `samples` a rank, 0 for the site's own;
    `moves` of a search, 0 for its own number.
    """

    model: str = "t200"
    sites: tuple[tuple[int, int], ...] = ((2, 2), (2, 4))
    nodes: tuple[int, ...] = (1, 16)
    rate: str = "200mbit"
    samples: int = 0
    rounds: int = 5
    moves: int = 0


GRID = (
    *(Config(model, ((2, 2),), moves=10_000) for model in ("dcnv2", "t200")),
    *(Config(model, (), moves=10_000) for model in ("t180", "t510")),
)
LAPTOP = (Config("dcnv2", ((2, 2),), (16,), samples=16, rounds=3, moves=5_000),)
TINY = (Config("dcnv2", ((2, 1),), (2,), samples=2, rounds=1, moves=200),)
BUDGET_S = 22.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every simulated cluster, then every emulated one."""
    moves = config.moves or None
    for nodes in config.nodes:
        yield from breakdown_points(Job(config.model, nodes), moves)
    for nodes, local in config.sites:
        desk = desk_of(config.model, nodes, local, config.rate, config.samples, min(3, config.rounds))
        plan = desk.table_row_wise("hierarchical")
        arms = [Arm("table_row_wise", plan, "none"), Arm("table_row_wise, padded keys", plan, "none", padded=True)]
        arms.append(Arm("search", desk.searched("none", seeds=(plan,), moves=moves), "none"))
        yield from emulated(stay(desk.site, desk.topology, arms, config.rounds))


def emulated(found: Stay) -> Iterator[Measurement]:
    """Both arms as they ran."""
    for seen in found.arms:
        steps = [of_parts(line) for line in seen.timelines]
        metrics = {name: 1e3 * statistics.median(step[name] for step in steps) for name in PHASES}
        metrics["step_ms"] = seen.step_ms
        point = {**found.site.point, "arm": seen.arm.name, "plan": seen.arm.plan.hash}
        units = dict.fromkeys(metrics, "ms")
        yield Measurement(point, metrics, units, len(steps), found.cluster.kind, found.environment)


def of_parts(line: Timeline) -> dict[str, float]:
    """Seconds of each part of one executed step; ValueError for a phase of none."""
    part_of = {phase: part for part, phases in PHASES.items() for phase in phases}
    seconds = dict.fromkeys(PHASES, 0.0)
    longest = dict(line.communication)
    for span in line.spans:
        if span.resource != "network":
            longest[span.phase] = max(longest.get(span.phase, 0.0), span.end - span.start)
    for phase, taken in longest.items():
        name = phase.rsplit(".", 1)[-1]
        if name not in part_of:
            raise ValueError(f"phase {phase!r}: expected one of {', '.join(part_of)}")
        seconds[part_of[name]] += taken
    return seconds
