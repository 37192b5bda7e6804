"""What collectives cost on each kind of link, and what an exchange adds to the bare all_to_all under it.

Paper figure: none; FEC's hot tier trades an AlltoAll for an AllReduce, and this ratio decides what that is worth. Two
parts, in one emulated cluster. First every collective over sizes, between nodes (`nic`) and inside them (`intra`,
loopback): seconds from the last arrival to the last end. Then the network phases of a strategy (keys, then values and
gradients) in turn with one `all_to_all_single` for each of them that moves the same bytes.

Run:      python -m experiments run comm/collectives --laptop   (shaped links need root; else loopback, labelled)
Expect:   between nodes and above the burst, an AllReduce about as fast as an AlltoAll of the same buffer (a ring sends
          more, but one flow of it crosses each way); below, several times slower. An exchange about as fast as the
          bare calls where bytes take the time, up to a few times slower where start-up does: keys are three calls.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from comm.cost import loads
from comm.group import Group
from comm.plan import Plan
from comm.schedule import Frame, Phase
from experiments.calibrate import sizes_up_to, time_collectives
from experiments.cluster import Cluster, run
from experiments.comm._steps import PAUSE_S, EmbeddingStep, Workload, at_rates, cluster_of, environment, together
from experiments.config import Measurement
from experiments.timing import median_interval
from models.executor import Executor

VALUES = ("send", "grad_send")
"""Phases in which values move; the others move keys."""


@dataclass(frozen=True)
class Config:
    """`batches` are samples a rank of the exchanges; `largest` bytes a rank has in the largest of the collectives."""

    nodes: int = 2
    ranks_per_node: int = 2
    rates: tuple[str, ...] = ("200mbit", "1gbit")
    sizes: int = 12
    largest: int = 1 << 21
    strategies: tuple[str, ...] = ("tablewise", "rowwise", "unique")
    batches: tuple[int, ...] = (64, 256, 1024)
    hotness: int = 4
    rounds: int = 7


GRID = (Config(), Config(ranks_per_node=4, rates=("200mbit",), batches=(64, 256)))
LAPTOP = (Config(rates=("200mbit",), sizes=6, largest=1 << 20, batches=(256,), rounds=5),)
TINY = (
    Config(ranks_per_node=1, rates=("200mbit",), sizes=2, largest=4096, strategies=("unique",), batches=(8,), rounds=5),
)
BUDGET_S = 22.0


@dataclass(frozen=True)
class Timed:
    """Network phases of one exchange: `load` in bytes as in a Topology, and start and end of both arms on this rank,
    [phases, 2 (ours, bare), rounds, 2] in seconds.
    """

    phases: list[str]
    load: float
    times: Tensor


def measure(config: Config) -> Iterator[Measurement]:
    """Time collectives and exchanges at every rate in one cluster."""
    cluster = cluster_of(config.nodes, config.ranks_per_node, config.rates[0])
    ranks = run(cluster, run_rank, cluster, config)
    for of_rate in zip(*ranks, strict=True):
        at = cast(Cluster, of_rate[0]["cluster"])
        env, rate = environment(at), at.rate if at.shaping else "loopback"
        for name, points in of_rate[0]["collectives"].items():
            link, collective = name.split("/")
            for size, (load, seconds) in zip(of_rate[0]["sizes"], points, strict=True):
                point = {"part": "collective", "rate": rate, "link": link, "collective": collective, "size": size}
                metrics = {"ms": 1e3 * seconds, "load": load}
                yield Measurement(point, metrics, {"ms": "ms", "load": "bytes"}, config.rounds, at.kind, env)
        for link, strategy, batch in of_rate[0]["exchanges"]:
            timed = [rank["exchanges"][link, strategy, batch] for rank in of_rate]
            point = {"part": "exchange", "rate": rate, "link": link, "strategy": strategy, "batch": batch}
            metrics = {"load": timed[0].load, **compared(timed)}
            unit = {name: "bytes" if name == "load" else "ms" if name.endswith("_ms") else "1" for name in metrics}
            yield Measurement(point, metrics, unit, config.rounds, at.kind, env)


def compared(ranks: list[Timed]) -> dict[str, float]:
    """Milliseconds of both arms, and ours over bare round by round: all phases, and those of values alone."""
    start, end = torch.stack([timed.times for timed in ranks]).amax(0).unbind(-1)
    found: dict[str, float] = {}
    for name, chosen in (("", ranks[0].phases), ("values_", [p for p in ranks[0].phases if p in VALUES])):
        at = [ranks[0].phases.index(phase) for phase in chosen]
        ours, bare = (end - start)[at].sum(0)
        ratio = median_interval((ours / bare).tolist())
        found |= {f"{name}ours_ms": 1e3 * float(ours.median()), f"{name}bare_ms": 1e3 * float(bare.median())}
        found |= {f"{name}ratio": ratio.median, f"{name}ratio_low": ratio.low, f"{name}ratio_high": ratio.high}
    return found


def run_rank(group: Group, cluster: Cluster, config: Config) -> list[dict[str, Any]]:
    """One rank: both parts at every rate."""
    sizes = sizes_up_to(config.largest, group.size, config.sizes)
    links = {"nic": group, "intra": group.node}
    exchanges = {}
    for link, part in links.items():
        for strategy in config.strategies if part.size > 1 else ():
            for batch in config.batches:
                workload = Workload(hotness=config.hotness, batch=batch, rows=5_000)
                plan = Plan.uniform(workload.specs, strategy, part.size)
                step = EmbeddingStep(part, plan, workload.bags(part.size))
                frame = step.frame()
                Executor().run(step.schedule, frame)
                exchanges[link, strategy, batch] = (step, frame)
    found = []
    for at in at_rates(group, cluster, config.rates):
        timings = time_collectives(group, sizes, config.rounds, 0.0, PAUSE_S)
        timed = {key: time_exchange(group, step, frame, config.rounds) for key, (step, frame) in exchanges.items()}
        found.append({"cluster": at, "sizes": sizes, "collectives": timings, "exchanges": timed})
    return found


def time_exchange(group: Group, step: EmbeddingStep, frame: Frame, rounds: int) -> Timed:
    """Every network phase of `step`, whose values are in `frame`, in turn with a bare call, all of `group` together."""
    part, sent = step.group, step.bytes_sent()
    phases = step.network
    of_phase = [
        together({label: b for label, b in sent.items() if f"{label}.".startswith(f"{phase.name}.")})
        for phase in phases
    ]
    bare = [Bare(part, bytes_) for bytes_ in of_phase]
    times = torch.zeros(len(phases), 2, rounds, 2, dtype=torch.float64)
    for number in range(rounds):
        for i, phase in enumerate(phases):
            arms = (lambda phase=phase: phase(frame), bare[i])
            for arm in (0, 1) if number % 2 == 0 else (1, 0):
                time.sleep(PAUSE_S)
                group.barrier()
                start = time.perf_counter()
                arms[arm]()
                times[i, arm, number] = torch.tensor([start, time.perf_counter()], dtype=torch.float64)
    load = sum(max(loads(b, part.ranks_per_node).values()) for b in of_phase)
    return Timed([_short(phase) for phase in phases], load, times)


class Bare:
    """One `all_to_all_single` of `bytes_` [world, world] from rank to rank, counted by nobody."""

    def __init__(self, group: Group, bytes_: Tensor) -> None:
        self.group = group
        self.send, self.receive = bytes_[group.rank].tolist(), bytes_[:, group.rank].tolist()
        self.x = torch.zeros(sum(self.send), dtype=torch.uint8)

    def __call__(self) -> None:
        """Move the bytes."""
        self.group._all_to_all(self.x, self.send, self.receive)


def _short(phase: Phase) -> str:
    """`keys` of `<strategy>/<width>/<dtype>.keys`."""
    return phase.name.split(".")[1]
