"""What the emulated experiments of this group share: a small cluster with slow links, and arms that take turns on it.

A *site* is one model on one cluster: rows and samples a rank scaled together, by samples over 512 (what a rank has of
65,536 samples on 16 nodes of 8), hotness, widths and skew as published. Values travel in fp32. The dense part's timers
follow from its flops: a rank's device does FLOPS_PER_BYTE for each byte that its share of the node's link carries, as
an H100 of 400 Tflop/s has 8000 for each byte of a 50 GB/s NIC, and values of half the width to send. So the ratio of
compute to exchange is that of the published cluster; the milliseconds of a step are not.

The links, the kernels (on all ranks at once, as they run) and the memory are measured first; planners are told these.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import kernels
from comm.cost import costs
from comm.group import Group
from comm.plan import Plan
from comm.planner.score import Overlap
from comm.planner.workload import Workload
from comm.schedule import Schedule
from comm.simulate import Timeline, simulate
from comm.topology import Link, Topology
from experiments.calibrate import CASES, sizes_up_to, time_collectives
from experiments.cluster import Cluster, run
from experiments.comm._steps import PAUSE_S, cluster_of
from experiments.comm.steps import COMPUTE_S, topology_of
from experiments.embark._emulated_step import EmulatedStep, Timers
from experiments.embark._generator import bags
from experiments.embark.workloads import MODELS, workload
from experiments.record import Value
from experiments.timing import random_row_bandwidth
from kernels import Bags, Optimizer
from kernels.cost import Device
from models.executor import Event
from models.trace import compute_seconds, executed

FLOPS_PER_BYTE = 4000.0
SAMPLES_AT_SCALE_1 = 512
SAMPLES = {"dcnv2": 32, "t180": 4, "t200": 8, "t510": 4}
"""A rank's, on 2 x 2 ranks; half of it on 2 x 4: what a node's link has to carry stays."""
BATCHES = 2
"""Distinct global batches, in turn."""
ROOM = 2.0
"""Memory of a rank over its share of the tables: everything cannot be everywhere."""


@dataclass(frozen=True)
class Site:
    """A model on an emulated cluster. See the module's docstring."""

    model: str
    nodes: int = 2
    ranks_per_node: int = 2
    rate: str = "200mbit"
    samples: int = 0
    """A rank's; 0: as in SAMPLES."""

    @property
    def world(self) -> int:
        """Ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def local(self) -> int:
        """Samples of a rank."""
        return self.samples or max(1, SAMPLES[self.model] * 2 // self.ranks_per_node)

    @property
    def scale(self) -> float:
        """Of rows and batch."""
        return self.local / SAMPLES_AT_SCALE_1

    @cached_property
    def workload(self) -> Workload:
        """What the planner is told: SGD, and a dense part of compute alone."""
        whole = workload(self.model, self.scale, self.local * self.world)
        dense = replace(whole.dense, activations=0.0, parameters=0)
        return replace(whole, optimizer=Optimizer("sgd"), dense=dense)

    @property
    def memory(self) -> float:
        """Bytes that a rank may hold of tables."""
        return ROOM * sum(spec.bytes for spec in self.workload.specs) / self.world

    def timers(self, bytes_per_s: float) -> Timers:
        """Of the dense part, on nodes with links of `bytes_per_s`."""
        dense = MODELS[self.model].dense
        flops_per_s = FLOPS_PER_BYTE * bytes_per_s / self.ranks_per_node
        seconds = 6.0 * dense.weights * self.local / flops_per_s
        bottom = seconds * dense.bottom
        return Timers(bottom / 3, seconds - bottom, 2 * bottom / 3)

    def batches(self, rank: int) -> list[Bags]:
        """A rank's bags of every global batch."""
        specs, hotness = self.workload.specs, MODELS[self.model].hotness
        batch = self.local * self.world
        return [bags(specs, hotness, batch, step, rank, self.world) for step in range(BATCHES)]

    @property
    def point(self) -> dict[str, Value]:
        """Of a record."""
        return {"model": self.model, "nodes": self.nodes, "ranks_per_node": self.ranks_per_node}

    def environment(self, cluster: Cluster, timers: Timers) -> dict[str, Value]:
        """What a record adds to its environment."""
        return {
            **cluster.env(),
            "scale": self.scale,
            "samples_per_rank": self.local,
            "wire": "fp32",
            "device_time": f"kernels real, dense part timers of {1e3 * timers.total:.3g} ms",
            "dense_grads": "off",
        }


@dataclass(frozen=True)
class Arm:
    """A plan under an overlap; `name` tells it from the others, `point` says so in records; `padded`: its keys are."""

    name: str
    plan: Plan
    overlap: Overlap
    point: Mapping[str, Value] = field(default_factory=dict)
    padded: bool = False


@dataclass(frozen=True)
class Seen:
    """What an arm did: seconds and timeline of each step; what the simulator says of it, given the links and what its
    phases computed; bytes of a step from rank to rank [world, world] by label.
    """

    arm: Arm
    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]
    simulated: Timeline
    sent: Mapping[str, Tensor]

    @property
    def step_ms(self) -> float:
        """Median over steps."""
        return 1e3 * statistics.median(self.seconds)


@dataclass(frozen=True)
class Stay:
    """A site with all its arms, measured. `checksum` is that of the weights, the same for all."""

    site: Site
    cluster: Cluster
    timers: Timers
    arms: tuple[Seen, ...]
    checksum: int

    @property
    def environment(self) -> dict[str, Value]:
        """What a record adds to its environment."""
        return self.site.environment(self.cluster, self.timers) | {"weights": self.checksum}

    def seen(self, name: str) -> Seen:
        """The arm `name`."""
        return next(seen for seen in self.arms if seen.arm.name == name)


@cache
def calibrated(nodes: int, ranks_per_node: int, rate: str, largest: int = 1 << 20, rounds: int = 3) -> Topology:
    """Links, kernels and memory of the emulated cluster, measured in it; once a process."""
    cluster = cluster_of(nodes, ranks_per_node, rate)
    links, rates, bandwidth = run(cluster, calibrate_rank, largest, rounds)[0]
    device = Device("cpu", bandwidth, FLOPS_PER_BYTE * cluster.bytes_per_s / ranks_per_node, "dense part a timer")
    return Topology(nodes, ranks_per_node, links, device, rates)


def calibrate_rank(group: Group, largest: int, rounds: int) -> tuple[Any, Any, float]:
    """One rank of `calibrated`; all of them compute at once."""
    torch.set_num_threads(1)
    sizes = sizes_up_to(largest, group.size)
    links = topology_of(group, [time_collectives(group, sizes, rounds, COMPUTE_S, PAUSE_S, ("all_to_all",))]).links
    group.barrier()
    rates = {f"cpu/{op}": _rate(op) for op in CASES}
    group.barrier()
    return links, rates, random_row_bandwidth(table_bytes=1 << 26, reads=1 << 14, rounds=3)


def _rate(op: str, sizes: tuple[int, int] = (1 << 10, 1 << 14), rows: int = 50_000, repeats: int = 3) -> Link:
    """The line through the median seconds of `op` at two sizes, on tables of `rows`."""
    cases, points = import_module(f"kernels.{op}.cases"), []
    for n in sizes:
        inputs = cases.make(cases.Case(name="rate", **{**CASES[op](n), "rows": rows}), 0, torch.device("cpu"))
        call, seconds = getattr(kernels, op), []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            call(**inputs)
            seconds.append(time.perf_counter() - begin)
        points.append((cases.cost(inputs).bytes["memory"], statistics.median(seconds[1:])))
    (small, fast), (large, slow) = points
    slope = max(slow - fast, 1e-9) / (large - small)
    return Link(max(fast - slope * small, 0.0), 1 / slope, "all ranks at once, two sizes")


def stay(site: Site, topology: Topology, arms: Sequence[Arm], rounds: int) -> Stay:
    """Let the arms take turns on the site for `rounds` rounds.

    Raises RuntimeError if two arms do not end with the same weights.
    """
    cluster = cluster_of(site.nodes, site.ranks_per_node, site.rate)
    timers = site.timers(cluster.bytes_per_s)
    ranks = run(cluster, run_rank, site, timers, arms, rounds)
    sums = {arm.name: checksum for arm, checksum in zip(arms, ranks[0]["checksums"], strict=True)}
    if len(set(sums.values())) != 1:
        raise RuntimeError(f"expected the same weights under every arm, given checksums {sums}")
    seen = tuple(_seen(number, arm, topology, ranks) for number, arm in enumerate(arms))
    return Stay(site, cluster, timers, seen, ranks[0]["checksums"][0])


def run_rank(group: Group, site: Site, timers: Timers, arms: Sequence[Arm], rounds: int) -> dict[str, Any]:
    """One rank of `stay`."""
    torch.set_num_threads(1)
    everyone = [site.batches(rank) for rank in range(group.size)]
    steps = [EmulatedStep(group, arm.plan, everyone[group.rank], timers, arm.overlap, arm.padded) for arm in arms]
    calls = [_calls_of_a_step(group, step) for step in steps]
    ran: list[list[tuple[float, float, list[Event]]]] = [[] for _ in steps]
    for turn in range(rounds):
        for place in range(len(steps)):
            number = (place + turn) % len(steps)
            time.sleep(PAUSE_S)
            group.barrier()
            begin = time.perf_counter()
            events = steps[number].run()
            ran[number].append((begin, time.perf_counter(), events))
    touched = [torch.cat(t).unique() for t in zip(*(_ids(site, of_rank) for of_rank in everyone), strict=True)]
    result: dict[str, Any] = {"ran": ran, "checksums": [step.checksum(touched) for step in steps]}
    if group.rank == 0:
        first = [batches[0] for batches in everyone]
        sent = [step.bytes_sent(first) for step in steps]
        result |= {"sent": sent, "schedules": [_without_code(step.schedule) for step in steps], "calls": calls}
    return result


def _seen(number: int, arm: Arm, topology: Topology, ranks: Sequence[Mapping[str, Any]]) -> Seen:
    """What all ranks saw of arm `number`."""
    sent: Mapping[str, Tensor] = ranks[0]["sent"][number]
    bytes_ = torch.stack(list(sent.values())).sum(0)
    steps = list(zip(*(rank["ran"][number] for rank in ranks), strict=True))
    seconds = tuple(max(end for _, end, _ in step) - min(begin for begin, _, _ in step) for step in steps)
    timelines = tuple(executed([events for _, _, events in step], bytes_) for step in steps)
    schedule = ranks[0]["schedules"][number]
    prices = costs(schedule, sent, ranks[0]["calls"][number], compute_seconds(timelines))
    simulated = simulate(schedule, prices, topology, overlap=arm.overlap != "none")
    return Seen(arm, seconds, timelines, simulated, sent)


def _calls_of_a_step(group: Group, step: EmulatedStep) -> dict[tuple[str, str], int]:
    """Collectives of a step by label and name: of the second, for the first also brings its own keys."""
    step.run()
    before = dict(group.calls)
    step.run()
    return {key: n - before.get(key, 0) for key, n in group.calls.items() if step.mine(key[0])}


def _ids(site: Site, batches: Sequence[Bags]) -> list[Tensor]:
    """Ids of each table in any of a rank's batches."""
    ends = torch.arange(len(site.workload.tables) + 1) * site.local
    parts = [torch.tensor_split(bags.ids, bags.offsets[ends[1:-1]]) for bags in batches]
    return [torch.cat(of_table) for of_table in zip(*parts, strict=True)]


def _nothing() -> None:
    """In place of a phase's code, which stays on its rank."""


def _without_code(schedule: Schedule) -> Schedule:
    return Schedule(tuple(replace(phase, run=_nothing) for phase in schedule.phases), schedule.inputs)
