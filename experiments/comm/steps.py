"""A step's exchange on an emulated cluster, strategy by strategy: predicted against seen, bytes and seconds.

Paper figure: none; the ground under every simulated number of this project. Each arm steps an embedding on 2 nodes, a
timer in place of the dense part. Bytes come from three places: the strategy's formula, the group's count, the link's
own counter (less what the barriers around a step take). Communication time of a step (each network phase from the last
arrival to the last end) comes from two: the clock, and `comm.simulate` on a Topology of all_to_all links. These are
calibrated in the same cluster, at sizes of their own and in turn with the steps, so that both see the same neighbours.
Packing into a wire format, and the square sums of column shards, are part of a network phase that has no price.

Run:      python -m experiments run comm/steps --laptop   (shaped links need root; else loopback, labelled)
Expect:   equal bytes, the link's counter 1 % above, more where calls are small; a median error of the time near 15 %,
          rank correlation above 0.95 at 100 and 200 Mbit/s for rows as they are, less where packing and other compute
          inside network phases is a larger part (narrow formats, columns, faster links, 8 ranks on 2 cores).
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from comm.cost import costs
from comm.group import Group
from comm.plan import Plan
from comm.simulate import simulate
from comm.topology import Topology
from comm.wire import Wire
from experiments.calibrate import Points, fit, sizes_up_to, time_collectives
from experiments.cluster import Cluster, run
from experiments.comm._steps import (
    PAUSE_S,
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
    watched,
)
from experiments.config import Measurement
from experiments.record import Value
from kernels.cost import Device

STRATEGIES = ("replicated", "tablewise", "columnwise", "rowwise", "gridwise", "hierarchical", "unique", "unique_node")
CASES = ((2_000, 1, 512), (20_000, 4, 256), (20_000, 16, 96), (50_000, 2, 640))
SMALLER = ((2_000, 1, 256), (20_000, 4, 128), (20_000, 16, 48))
"""For twice the ranks: four times the pairs share the link."""


COMPUTE_S = 0.001
"""What a rank computes before a collective of the calibration; ranks on shared cores then arrive as in a step."""


@dataclass(frozen=True)
class Config:
    """`cases` are (rows of a table, ids a bag, samples a rank); `wires` are tried besides the table's own format, on
    the first case. Calibration goes up to `largest` bytes a rank, `calibration_rounds` times in each of the `rounds`.
    """

    nodes: int = 2
    ranks_per_node: int = 2
    rates: tuple[str, ...] = ("100mbit", "200mbit", "500mbit")
    strategies: tuple[str, ...] = STRATEGIES
    cases: tuple[tuple[int, int, int], ...] = CASES
    wires: tuple[Wire, ...] = ("bf16", "int8")
    tables: int = 8
    dim: int = 32
    rounds: int = 5
    largest: int = 1 << 21
    calibration_rounds: int = 3


GRID = (Config(), Config(ranks_per_node=4, rates=("200mbit", "500mbit"), cases=SMALLER, wires=("int8",)))
LAPTOP = (Config(rates=("200mbit",), cases=CASES[:2], wires=(), rounds=5),)
TINY = (
    Config(
        ranks_per_node=1, rates=("200mbit",), strategies=("unique", "rowwise"), cases=((100, 2, 8),), wires=(),
        tables=2, dim=4, rounds=1, largest=1 << 14, calibration_rounds=1,
    ),
)  # fmt: skip
BUDGET_S = 34.0


@dataclass(frozen=True)
class Arm:
    """What is stepped."""

    strategy: str
    wire: Wire
    workload: Workload

    @property
    def point(self) -> dict[str, Value]:
        """As a record's point."""
        w = self.workload
        return {"strategy": self.strategy, "wire": self.wire, "rows": w.rows, "hotness": w.hotness, "batch": w.batch}


def arms_of(config: Config) -> list[Arm]:
    """Every strategy on every case, then every other wire on the first."""
    workloads = [Workload(config.tables, r, config.dim, hotness, batch) for r, hotness, batch in config.cases]
    arms = [Arm(strategy, "table", workload) for workload in workloads for strategy in config.strategies]
    return arms + [Arm(strategy, wire, workloads[0]) for wire in config.wires for strategy in config.strategies]


def measure(config: Config) -> Iterator[Measurement]:
    """Step every arm in one cluster at every rate; yield what was predicted and what was seen of each."""
    cluster = cluster_of(config.nodes, config.ranks_per_node, config.rates[0])
    ranks = run(cluster, run_rank, cluster, config)
    for of_rate in zip(*ranks, strict=True):
        at = cast(Cluster, of_rate[0]["cluster"])
        for arm, predicted, *steps in zip(
            arms_of(config), of_rate[0]["predicted"], *(rank["steps"] for rank in of_rate), strict=True
        ):
            rounds = list(zip(*steps, strict=True))
            metrics = predicted | seen(rounds, at, [rank["barriers"] for rank in of_rate])
            units = {name: "ms" if name.endswith("_ms") else "bytes/step" for name in metrics}
            point = {"rate": at.rate if at.shaping else "loopback", **arm.point}
            yield Measurement(point, metrics, units, config.rounds, at.kind, environment(at))


def seen(rounds: Sequence[Sequence[Ran]], cluster: Cluster, barriers: Sequence[float]) -> dict[str, float]:
    """Medians over rounds of what all ranks saw; `barriers` are the bytes that those around a step send, by rank."""
    bytes_ = stacked(rounds[0])
    metrics: dict[str, float] = {
        "seen_ms": 1e3 * statistics.median(sum(timeline(ranks).communication.values()) for ranks in rounds),
        "bytes_counted": int(together(bytes_).sum()),
        "between_counted": between_nodes(together(bytes_), cluster.ranks_per_node),
    }
    if cluster.shaping:
        first_of_node = range(0, cluster.size, cluster.ranks_per_node)
        left = statistics.median(sum(ranks[rank].left or 0 for rank in first_of_node) for ranks in rounds)
        metrics["between_veth"] = left - sum(barriers[rank] for rank in first_of_node)
    return metrics


def run_rank(group: Group, cluster: Cluster, config: Config) -> list[dict[str, Any]]:
    """One rank: at every rate `rounds` rounds, in which some calibration is done and every arm takes a step."""
    arms = arms_of(config)
    batches = {arm.workload: arm.workload.bags(group.size) for arm in arms}
    steps = []
    for arm in arms:
        plan = Plan.uniform(arm.workload.specs, arm.strategy, group.size, wire=arm.wire)
        steps.append(EmbeddingStep(group, plan, batches[arm.workload]))
    warm = [step.run(shaped=False) for step in steps]
    found, sizes = [], sizes_up_to(config.largest, group.size)
    for at in at_rates(group, cluster, config.rates):
        timings, rounds = [], []
        for _ in range(config.rounds):
            times = time_collectives(group, sizes, config.calibration_rounds, COMPUTE_S, PAUSE_S, ("all_to_all",))
            timings.append(times)
            rounds.append([step.run(at.shaping) for step in steps])
        topology = topology_of(group, timings)
        predicted = [predict(step, ran, topology) for step, ran in zip(steps, warm, strict=True)]
        idle = [watched(group, at.shaping, lambda: None)[1] or 0 for _ in range(5)]
        of_arm = list(zip(*rounds, strict=True))
        found.append({"cluster": at, "predicted": predicted, "barriers": statistics.median(idle), "steps": of_arm})
    return found


def topology_of(group: Group, timings: Sequence[Mapping[str, Points]]) -> Topology:
    """Links fitted to the median over rounds of each size; what computes has no price."""
    links = {}
    for name, first in timings[0].items():
        seconds = zip(*([s for _, s in of_round[name]] for of_round in timings), strict=True)
        points = [(load, statistics.median(s)) for (load, _), s in zip(first, seconds, strict=True)]
        links[name] = fit(points, f"{group.nodes} x {group.ranks_per_node} ranks")
    return Topology(group.nodes, group.ranks_per_node, links, Device("none", 1.0, 1.0, "no compute is priced"))


def predict(step: EmbeddingStep, ran: Ran, topology: Topology) -> dict[str, float]:
    """Bytes and communication time of one step, from formulas; `ran` tells the number of calls alone."""
    sent = step.bytes_sent()
    simulated = simulate(step.schedule, costs(step.schedule, sent, ran.calls), topology)
    return {"simulated_ms": 1e3 * sum(simulated.communication.values()), "bytes_predicted": int(together(sent).sum())}
