"""A cell: one stream, one cluster, several arms in turn; what each came out as, emulated and simulated.

On every rank: links are calibrated; a de-duplicated step without dense part tells how long the dense stand-in must be
for communication to be the `share` of that step; the boundary model chooses a hot set for every arm with a tier; then
arms take turns, `rounds` bursts of `steps` steps each. The counting pass reads batches before those trained on.
"""

import os
import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch

from comm.cost import costs, loads
from comm.group import Group
from comm.planner.boundary import Boundary, Priced, RowCost, RowUse, choose, fixed
from comm.schedule import Schedule
from comm.simulate import simulate
from comm.topology import Topology
from experiments.calibrate import sizes_up_to, time_collectives
from experiments.cluster import Cluster, run
from experiments.comm._steps import cluster_of
from experiments.comm.steps import topology_of
from experiments.config import Measurement
from experiments.data.batch import ClickBatch, ClickStream
from experiments.data.counting import count_use
from experiments.fec._arms import ARMS, BASELINES, Arm
from experiments.fec._bench import OPTIMIZER, Bench, Iteration, Rows, ahead, frames_of
from experiments.fec._streams import lines_of, open_stream
from experiments.record import Value
from kernels import Optimizer
from models.trace import compute_seconds, executed


@dataclass(frozen=True)
class Cell:
    """What is trained on what. `batch` samples a rank; `share` of the de-duplicated step is communication; `memory`
    bytes of a rank may hold copies; `counted` global batches make the counting pass. `stream` is `zipf` (exponent
    `alpha` in each of Kaggle's tables, `max_rows` of each, 0 for all, of which a share `moved` trade places in each of
    `epoch` epochs), an order of the generator, or a log.
    """

    nodes: int = 2
    ranks_per_node: int = 2
    rate: str = "200mbit"
    stream: str = "zipf"
    alpha: float = 1.0
    max_rows: int = 0
    dim: int = 64
    batch: int = 2048
    share: float = 0.5
    memory: int = 256 << 20
    counted: int = 20
    calibration: int = 1 << 22
    """Largest exchange that is timed, in bytes a rank."""
    seed: int = 0
    epoch: int = 0
    moved: float = 0.0

    @property
    def world(self) -> int:
        """Ranks."""
        return self.nodes * self.ranks_per_node

    def local_batch(self, steps: int) -> int:
        """`batch`, or less if a log is too short for the counting pass and `steps` steps."""
        lines = lines_of(self.stream)
        return min(self.batch, lines // (self.world * (self.counted + steps))) if lines else self.batch

    def open(self, steps: int) -> ClickStream:
        """The stream, with samples for the counting pass and `steps` steps after it."""
        samples = self.local_batch(steps) * self.world * (self.counted + steps)
        return open_stream(self.stream, samples, self.alpha, self.max_rows, self.dim, self.seed, self.epoch, self.moved)

    def count(self, steps: int) -> RowUse:
        """The counting pass."""
        return count_use(self.open(steps), self.local_batch(steps) * self.world, self.world, self.counted)

    def batches(self, steps: int, rank: int) -> list[ClickBatch]:
        """The batches of `rank` that are trained on."""
        batch = self.local_batch(steps) * self.world
        return list(islice(self.open(steps).batches(batch, rank, self.world, self.counted), steps))

    @property
    def row(self) -> RowCost:
        """Bytes of a row: fp32, 4-byte keys, one number of optimizer state."""
        return RowCost(4 * self.dim, 4, 4 * self.dim + 4)


def tiny(batch: int = 16, moved: float = 0.0) -> Cell:
    """A cell of two ranks that runs in seconds, for tests."""
    return Cell(ranks_per_node=1, max_rows=100, dim=4, batch=batch, counted=3, calibration=1 << 14, moved=moved)


class ArmRun(NamedTuple):
    """What one rank saw of one arm: a list of iterations a round; the schedule of a step; the arm's boundary."""

    rounds: list[list[Iteration]]
    schedule: Schedule
    boundary: Boundary | None


class RankRun(NamedTuple):
    """What one rank brings back."""

    arms: dict[str, ArmRun]
    topology: Topology
    dense_s: float


@dataclass(frozen=True)
class Turn:
    """An arm as it is run: with `hot` rows in place of the model's choice, from the cell's counting pass or from
    `profile`, and `dense` times the cell's stand-in. `label` tells it from others.
    """

    label: str
    arm: Arm
    hot: int | None = None
    dense: float = 1.0
    profile: RowUse | None = None


def turns(names: Sequence[str]) -> tuple[Turn, ...]:
    """Arms by name, with the boundary that the model chooses."""
    return tuple(Turn(name, ARMS[name]) for name in names)


ROUNDS = 9
"""Of the calibration."""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": 1 << 32, "MALLOC_TRIM_THRESHOLD_": 1 << 33, "MALLOC_TOP_PAD_": 1 << 28}
"""Ranks keep the memory that a step frees: otherwise every step faults in its buffers of several MB anew, one page
after another, on cores that ranks share. The same for all arms; records name it.
"""
WARM = 2
"""First steps of a burst that do not count."""


def batches_for(which: Sequence[Turn], steps: int, warm: int = WARM) -> int:
    """Batches that bursts of `steps` steps read."""
    return warm + steps + max(ahead(turn.arm) for turn in which)


def samples_of(cell: Cell, which: Sequence[Turn], steps: int) -> int:
    """Samples of a global batch."""
    return cell.local_batch(batches_for(which, steps)) * cell.world


def run_cell(
    cell: Cell, which: Sequence[Turn], rounds: int, steps: int, warm: int = WARM, use: RowUse | None = None
) -> tuple[Cluster, list[RankRun]]:
    """The cell on an emulated cluster (plain loopback where links cannot be shaped): every rank's account. `use` is its
    counting pass, if that was made already.
    """
    cluster = cluster_of(cell.nodes, cell.ranks_per_node, cell.rate)
    needed = batches_for(which, steps, warm)
    if use is None and any(turn.arm.tier and turn.profile is None for turn in which):
        use = cell.count(needed)
    with _set(MALLOC):
        return cluster, run(cluster, run_rank, cell, tuple(which), rounds, steps, warm, use)


@contextmanager
def _set(variables: Mapping[str, int]) -> Iterator[None]:
    """Within it, the environment of processes that are started has these."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_rank(
    group: Group, cell: Cell, which: Sequence[Turn], rounds: int, steps: int, warm: int, use: RowUse | None
) -> RankRun:
    """One rank: see the module's docstring."""
    needed = batches_for(which, steps, warm)
    parts = cell.batches(needed, group.rank)
    frames = frames_of([p.bags for p in parts], [p.label for p in parts], [p.dense for p in parts], group.size)
    tables = cell.open(needed).tables
    sizes = sizes_up_to(cell.calibration, group.size, 12)
    # links are busy in these steps, so no rest gives them their burst back
    topology = topology_of(group, [time_collectives(group, sizes, ROUNDS, 0.001, 0.0, ("all_to_all",))])
    whole = any(turn.arm.strategy in ("allgather", "replicated_dense") for turn in which)
    tiers = any(turn.arm.tier for turn in which)
    seen_rows = max((len(turn.profile.keys) for turn in which if turn.profile), default=0)
    copies = min(cell.memory // cell.row.memory, max(seen_rows, len(use.keys) if use else 0)) if tiers else 0
    own = sum(t.rows if whole else -(-t.rows // group.size) for t in tables)
    bench = Bench(group, tables, Rows(own, copies, cell.dim, Optimizer(OPTIMIZER)))
    dense_s = stand_in(bench, frames, cell.share)
    boundaries: dict[str, Boundary | None] = {}
    for turn in which:
        boundaries[turn.label] = _boundary(turn, cell, use, topology, dense_s)
    found: dict[str, ArmRun] = {}
    for number in range(rounds):
        first = number % len(which)
        for turn in (*which[first:], *which[:first]):
            boundary = boundaries[turn.label]
            hot = boundary.of_tables([t.rows for t in tables]) if boundary else []
            batches = frames[: warm + steps + ahead(turn.arm)]
            schedule, iterations = bench.burst(turn.arm, hot, batches, dense_s * turn.dense, warm)
            ran = found.setdefault(turn.label, ArmRun([], schedule, boundary))
            ran.rounds.append(iterations)
    return RankRun(found, topology, dense_s)


def stand_in(bench: Bench, frames: Sequence[dict[str, Any]], share: float) -> float:
    """Seconds of the dense stand-in that make communication the `share` of a de-duplicated step, all ranks agreeing.

    A step with a stand-in of d seconds is communication x and other work w beside it; x / (x + w + d) is to be the
    share. A link that rests between exchanges moves bytes faster than one that does not, so x is measured with about
    the stand-in that it is to have: first without one, then with what that tells.
    """
    seconds = 0.0
    for _ in range(2):
        _, iterations = bench.burst(ARMS["unique"], [], frames[:5], seconds, 1)
        mine = [
            statistics.median(exposed_s(it) for it in iterations),
            statistics.median(it.seconds for it in iterations),
            # what the phase takes: the timer, or its own arithmetic where that is longer, which the timer includes
            statistics.median(sum(e.end - e.start for e in it.events if e.phase == "dense") for it in iterations),
        ]
        everybody = bench.group.all_gather(torch.tensor([mine]), [1] * bench.group.size, "stand_in")
        exposed, step, dense = everybody.mean(0).tolist()
        seconds = max(0.0, exposed / share - (step - dense))
    return seconds


def _boundary(turn: Turn, cell: Cell, use: RowUse | None, topology: Topology, dense_s: float) -> Boundary | None:
    if not turn.arm.tier:
        return None
    use = turn.profile or use
    if use is None:
        raise ValueError(f"{turn.label}: expected a counting pass to choose hot rows from, given none")
    timing = turn.arm.timing(dense_s * turn.dense)
    if turn.hot is None:
        return choose(use, timing, topology, cell.row, cell.memory)
    return fixed(use, turn.hot, timing, topology, cell.row, cell.memory)


def exposed_s(iteration: Iteration) -> float:
    """Seconds of a step in which this rank's network is busy and its compute stream is not."""
    return executed([iteration.events], torch.zeros(1, 1, dtype=torch.int64)).exposed[0]


class Seen(NamedTuple):
    """An arm's step in a cell. Seconds are medians over steps of means over ranks; `of_round` the same by round."""

    step_s: float
    exposed_s: float
    communication_s: float
    bytes_between: float
    bytes_sent: float
    simulated_s: float
    of_round: list[tuple[float, float]]


def seen(ranks: Sequence[RankRun], label: str) -> Seen:
    """What all ranks together saw of an arm, and what the simulator says of the same schedule, bytes and compute."""
    runs = [rank.arms[label] for rank in ranks]
    local = ranks[0].topology.ranks_per_node
    steps, exposed, moved, of_round, bytes_, timelines = [], [], [], [], [], []
    for rounds in zip(*(each.rounds for each in runs), strict=True):
        these: list[tuple[float, float]] = []
        for its in zip(*rounds, strict=True):
            of_label = {label: torch.stack([it.sent[label] for it in its]) for label in its[0].sent}
            line = executed([it.events for it in its], torch.stack(list(of_label.values())).sum(0))
            these.append((statistics.fmean(it.seconds for it in its), statistics.fmean(line.exposed)))
            moved.append(sum(line.communication.values()))
            bytes_.append(of_label)
            timelines.append(line)
        of_round.append((statistics.median(s for s, _ in these), statistics.median(e for _, e in these)))
        steps += [s for s, _ in these]
        exposed += [e for _, e in these]
    mean = {label: torch.stack([b[label] for b in bytes_]).double().mean(0).round().long() for label in bytes_[0]}
    together = torch.stack(list(mean.values())).sum(0)
    prices = costs(runs[0].schedule, mean, runs[0].rounds[0][0].calls, compute_seconds(timelines))
    simulated = simulate(runs[0].schedule, prices, ranks[0].topology, overlap=True)
    busiest = loads(together, local)["nic" if ranks[0].topology.nodes > 1 else "intra"]
    return Seen(
        statistics.median(steps), statistics.median(exposed), statistics.median(moved), busiest,
        float(together.sum()) / len(together), simulated.seconds, of_round,
    )  # fmt: skip


def metrics_of(found: Seen, against: Mapping[str, Seen], samples: int) -> dict[str, float]:
    """Metrics of a record: milliseconds, bytes, samples a second, and ratios to the arms `against`, round by round."""
    metrics = {
        "step_ms": 1e3 * found.step_s,
        "exposed_ms": 1e3 * found.exposed_s,
        "communication_ms": 1e3 * found.communication_s,
        "simulated_step_ms": 1e3 * found.simulated_s,
        "bytes_between": found.bytes_between,
        "bytes_sent": found.bytes_sent,
        "samples_per_s": samples / found.step_s,
        "samples": samples,
    }
    for name, base in against.items():
        pairs = list(zip(base.of_round, found.of_round, strict=True))
        for what, at in (("throughput", 0), ("exposed", 1)):
            ratios = [of_base[at] / max(of_arm[at], 1e-9) for of_base, of_arm in pairs]
            metrics[f"{what}_vs_{name}"] = statistics.median(ratios)
            metrics[f"{what}_vs_{name}_low"], metrics[f"{what}_vs_{name}_high"] = min(ratios), max(ratios)
    return metrics


def emulated(
    cell: Cell, arms: Sequence[str], rounds: int, steps: int, **point: Value
) -> Generator[Measurement, None, Topology]:
    """Run the arms of that name and yield each; ratios to those that are baselines. Returns the links."""
    cluster, ranks = run_cell(cell, turns(arms), rounds, steps)
    found = {name: seen(ranks, name) for name in arms}
    against = {name: found[name] for name in BASELINES if name in found}
    for name in arms:
        metrics = metrics_of(found[name], against, samples_of(cell, turns(arms), steps))
        metrics["hot_rows"] = hot_of(ranks[0].arms[name])
        units = {metric: unit(metric) for metric in metrics}
        env = environment(cluster, ranks[0].dense_s)
        yield Measurement(point_of(cell, name) | point, metrics, units, rounds * steps, cluster.kind, env)
    return ranks[0].topology


def baselines(
    cell: Cell, cluster: Cluster, ranks: Sequence[RankRun], names: Sequence[str], samples: int, **point: Value
) -> Iterator[Measurement]:
    """The arms `names` of a run, each as it is: what a sweep is shown beside."""
    for name in names:
        metrics = metrics_of(seen(ranks, name), {}, samples)
        units = {metric: unit(metric) for metric in metrics}
        steps = sum(map(len, ranks[0].arms[name].rounds))
        env = environment(cluster, ranks[0].dense_s)
        yield Measurement(point_of(cell, name) | point, metrics, units, steps, cluster.kind, env)


def point_of(cell: Cell, arm: str) -> dict[str, Value]:
    """What places an arm's record in a sweep over cells."""
    fields = ("nodes", "ranks_per_node", "stream", "alpha", "batch", "share")
    return {"arm": arm, "ranks": cell.world, **{name: getattr(cell, name) for name in fields}}


def unit(metric: str) -> str:
    """Of a metric, by its name."""
    if metric.startswith("bytes"):
        return "bytes/step"
    if metric in ("hot_rows", "rows_moved"):
        return "rows"
    if metric == "samples":
        return "samples/step"
    return "samples/s" if metric == "samples_per_s" else "ms" if metric.endswith("_ms") else "1"


def environment(cluster: Cluster, dense_s: float) -> dict[str, Value]:
    """What a record of a cell adds to its environment."""
    return {
        **cluster.env(),
        "device_time": f"kernels real, dense part a timer of {1e3 * dense_s:.0f} ms",
        "dense_grads": "off",
        "malloc": "keeps what is freed",
    }


def priced(weighed: Sequence[Priced]) -> list[tuple[int, float]]:
    """Rows and exposed milliseconds of every boundary that the model weighed."""
    return [(p.rows, 1e3 * p.exposed_s) for p in weighed]


def hot_of(run: ArmRun) -> int:
    """Rows with copies."""
    return run.boundary.chosen.rows if run.boundary else 0
