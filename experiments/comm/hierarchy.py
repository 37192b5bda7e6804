"""The pooled exchange flat and through the node: the same plan, the same bits, fewer bytes between nodes.

Paper figure: none of the three; EMBark's topology-aware communication on links that can be shaped here. Arms take turns
in one cluster. Layout `world`: the rows of every table over all ranks. Layout `node`: the rows of a table over the L
ranks of one node, tables alternating between nodes. Flat, each of the L ranks sends its partial sum of a bag to the
sample's node (and gets its gradient from there); `hierarchical` adds them inside the node first.

Run:      python -m experiments run comm/hierarchy --laptop   (shaped links need root; else loopback, labelled)
Expect:   L times fewer bytes of values between nodes, exactly; where the link between nodes is slow, a time that falls
          nearly as much: keys cross as before, and the node's own exchange is added.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from comm.group import Group
from comm.plan import Placement, Plan
from comm.simulate import Timeline
from experiments.cluster import Cluster, run
from experiments.comm._steps import (
    EmbeddingStep,
    Ran,
    Workload,
    at_rates,
    between_nodes,
    cluster_of,
    environment,
    stacked,
    timeline,
    together,
)
from experiments.config import Measurement, grid
from experiments.record import Value
from experiments.timing import median_interval

LAYOUTS = {"world": "rowwise", "node": "gridwise"}
"""The flat strategy of each."""
VALUES = ("send", "grad_send")
"""Phases in which values move; the others move keys."""


@dataclass(frozen=True)
class Config:
    """`batch` samples a rank."""

    nodes: int = 2
    ranks_per_node: int = 4
    rates: tuple[str, ...] = ("200mbit", "1gbit")
    tables: int = 8
    rows: int = 5_000
    dim: int = 64
    hotness: int = 4
    batch: int = 128
    rounds: int = 9

    @property
    def workload(self) -> Workload:
        """What the batches are made of."""
        return Workload(self.tables, self.rows, self.dim, self.hotness, self.batch)


GRID = grid(Config, ranks_per_node=(2, 4))
LAPTOP = (Config(rates=("200mbit",), batch=64, rounds=5),)
TINY = (Config(ranks_per_node=2, rates=("200mbit",), tables=2, rows=50, dim=8, batch=8, rounds=5),)
BUDGET_S = 24.0


def measure(config: Config) -> Iterator[Measurement]:
    """Step both layouts flat and through the node, at every rate; yield each hierarchical arm next to its flat one."""
    cluster = cluster_of(config.nodes, config.ranks_per_node, config.rates[0])
    ranks = run(cluster, run_rank, cluster, config)
    for of_rate in zip(*ranks, strict=True):
        at = cast(Cluster, of_rate[0]["cluster"])
        for layout in LAYOUTS:
            arms = {
                form: [list(ranks) for ranks in zip(*(rank["steps"][layout, form] for rank in of_rate), strict=True)]
                for form in ("flat", "hierarchical")
            }
            metrics = {f"{form}_{name}": value for form in arms for name, value in seen(arms[form], at).items()}
            metrics |= speedups(arms)
            point: dict[str, Value] = {"layout": layout, "rate": at.rate if at.shaping else "loopback"}
            unit = {name: "ms" if "_ms" in name else "bytes/step" if "between" in name else "1" for name in metrics}
            yield Measurement(point, metrics, unit, config.rounds, at.kind, environment(at))


def seen(rounds: list[list[Ran]], cluster: Cluster) -> dict[str, float]:
    """Medians over rounds, and bytes, of one arm."""
    bytes_ = stacked(rounds[0])
    values = {label: b for label, b in bytes_.items() if _of_values(label)}
    timelines = [timeline(ranks) for ranks in rounds]
    return {
        "ms": 1e3 * statistics.median(sum(line.communication.values()) for line in timelines),
        "values_ms": 1e3 * statistics.median(_value_seconds(line) for line in timelines),
        "values_between": between_nodes(together(values), cluster.ranks_per_node),
        "between": between_nodes(together(bytes_), cluster.ranks_per_node),
    }


def speedups(arms: dict[str, list[list[Ran]]]) -> dict[str, float]:
    """How many times faster the hierarchical arm is, round by round: the whole exchange, and its values alone."""
    found = {}
    for name, seconds in (("", lambda line: sum(line.communication.values())), ("values_", _value_seconds)):
        flat, through = ([seconds(timeline(ranks)) for ranks in arms[form]] for form in ("flat", "hierarchical"))
        ratio = median_interval([a / b for a, b in zip(flat, through, strict=True)])
        found |= {f"{name}speedup": ratio.median, f"{name}speedup_low": ratio.low, f"{name}speedup_high": ratio.high}
    return found


def plan_of(config: Config, layout: str, form: str) -> Plan:
    """The same shards for both forms."""
    tables, local = config.workload.specs, config.ranks_per_node
    world = config.nodes * local
    strategy = LAYOUTS[layout] if form == "flat" else form
    placements = []
    for i, table in enumerate(tables):
        first = i % config.nodes * local
        ranks = range(world) if layout == "world" else range(first, first + local)
        placements.append(Placement(table.name, strategy, tuple(ranks)))
    return Plan(world, tables, tuple(placements))


def run_rank(group: Group, cluster: Cluster, config: Config) -> list[dict[str, Any]]:
    """One rank: rounds in which all arms take turns."""
    batches = config.workload.bags(group.size)
    arms = {
        (layout, form): EmbeddingStep(group, plan_of(config, layout, form), batches)
        for layout in LAYOUTS
        for form in ("flat", "hierarchical")
    }
    for step in arms.values():
        step.run(shaped=False)
    found = []
    for at in at_rates(group, cluster, config.rates):
        rounds = [{arm: step.run(shaped=False) for arm, step in arms.items()} for _ in range(config.rounds)]
        found.append({"cluster": at, "steps": {arm: [ran[arm] for ran in rounds] for arm in arms}})
    return found


def _value_seconds(line: Timeline) -> float:
    return sum(seconds for phase, seconds in line.communication.items() if _of_values(phase))


def _of_values(label: str) -> bool:
    """Whether a phase, or a label below it, moves values: `<strategy>/<width>/<dtype>.<phase>[.<part>]`."""
    return label.split(".")[1] in VALUES
