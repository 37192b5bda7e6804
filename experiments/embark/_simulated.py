"""What the simulated experiments of this group share: a job, the plans of every planner for it, and their prices.

A job is a model on nodes of 8 ranks with the constants of `comm/presets.py`, a global batch, and values of 16 bits on
the wire. A rank has 72 GB of its 80 for tables, optimizer state and buffers; planners that count tables alone are told
60, as in HugeCTR's benchmark. Every plan is priced by the same score.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from comm.plan import Plan
from comm.planner.baselines.by_index import round_robin, table_row_wise, uniform
from comm.planner.baselines.hugectr import Limits, OutOfMemory, auto, hier_auto
from comm.planner.baselines.swept import swept
from comm.planner.baselines.torchrec import KERNELS, to_plan
from comm.planner.score import Score, score
from comm.planner.search import MOVES, Options, Planned, search
from comm.planner.workload import Workload
from comm.presets import h100x8
from comm.topology import Topology
from comm.wire import Wire
from experiments.config import Measurement
from experiments.embark._micro import micro_batched
from experiments.embark.workloads import workload
from experiments.record import Value

PLANS = Path(__file__).parent / "torchrec_plans"
RANKS_PER_NODE = 8
MEMORY, TABLES = 72e9, 60e9
"""Bytes a rank: with buffers, and for tables alone."""
BATCH = 65_536
WIRE: Wire = "fp16"
NODES = (1, 2, 4, 8, 16)
MODELS = ("dcnv2", "t180", "t200", "t510")

Overlap = Literal["none", "step", "steps"]
"""Nothing; communication within a step; keys a batch ahead too."""
CLUSTERS = ("replicated_dense", "hierarchical", "unique")
"""EMBark's three."""
STATES = {"sgd": 0, "adagrad": 1}
"""Numbers of optimizer state for each weight."""


@dataclass(frozen=True)
class Job:
    """A model on a cluster."""

    model: str
    nodes: int
    batch: int = BATCH

    @cached_property
    def workload(self) -> Workload:
        """Tables, their load, and the dense part."""
        return workload(self.model, batch=self.batch)

    @cached_property
    def topology(self) -> Topology:
        """The cluster."""
        return h100x8(self.nodes)

    @cached_property
    def limits(self) -> Limits:
        """What HugeCTR's planner is told."""
        copies = 1.0 + STATES[self.workload.optimizer.name]
        kind = "nic" if self.nodes > 1 else "intra"
        ratio = self.topology.device.bandwidth / self.topology.link(kind, "all_to_all").beta
        return Limits(self.nodes, RANKS_PER_NODE, TABLES, copies, ratio, self.batch)

    @property
    def point(self) -> dict[str, Value]:
        """Of a record."""
        return {"model": self.model, "nodes": self.nodes, "ranks_per_node": RANKS_PER_NODE}

    def price(self, plan: Plan, overlap: Overlap = "none") -> Score:
        """The score of a plan."""
        return score(plan, self.workload, self.topology, overlap)

    def embedding_s(self, plan: Plan) -> float:
        """Seconds of embedding work without overlap, infinity if the plan does not fit: what plans compete in."""
        priced = self.price(plan)
        return priced.embedding_s if priced.fits(MEMORY) else float("inf")


@dataclass(frozen=True)
class Made:
    """What a planner made of a job: a plan, or the reason why not; `seconds` of the processor it took, one thread."""

    planner: str
    pooled: str
    plan: Plan | None
    seconds: float
    how: str = ""


POOLED = {"flat": "gridwise", "hierarchical": "hierarchical"}
"""The strategy of the reduction-based cluster by mode of communication."""


def modes(job: Job) -> tuple[str, ...]:
    """On one node there is no hierarchy."""
    return ("flat", "hierarchical") if job.nodes > 1 else ("flat",)


def baselines(job: Job) -> Iterator[Made]:
    """The plan of every planner but ours, under each mode of communication."""
    specs, hotness, limits = job.workload.specs, job.workload.hotness, job.limits
    world = job.topology.world
    for mode in modes(job):
        pooled = POOLED[mode]
        planners: dict[str, Callable[[], tuple[str, Plan]]] = {
            "table_row_wise": lambda pooled=pooled: (
                "", table_row_wise(specs, job.nodes, RANKS_PER_NODE, pooled, WIRE, limits.copies, TABLES)),
            "round_robin": lambda pooled=pooled: ("", round_robin(specs, world, pooled, WIRE)),
            "uniform": lambda pooled=pooled: ("", uniform(specs, world, pooled, WIRE)),
            "auto": lambda pooled=pooled: ("", auto(specs, hotness, limits, pooled=pooled, wire=WIRE)),
            "swept": lambda pooled=pooled: swept(specs, hotness, limits, pooled, WIRE, job.embedding_s),
        }  # fmt: skip
        if job.nodes > 1:
            planners["hier_auto"] = lambda pooled=pooled: (
                "", hier_auto(specs, hotness, limits, pooled=pooled, wire=WIRE))  # fmt: skip
        for name, make in planners.items():
            yield made(name, mode, make)
    if (found := torchrec(job)) is not None:
        yield found


def made(name: str, mode: str, make: Callable[[], tuple[str, Plan]]) -> Made:
    """Run one planner; it may say that nothing fits."""
    began = time.process_time()
    try:
        how, plan = make()
    except OutOfMemory as error:
        return Made(name, mode, None, time.process_time() - began, str(error))
    return Made(name, mode, plan, time.process_time() - began, how)


def torchrec(job: Job) -> Made | None:
    """The plan that TorchRec's planner wrote down for this job, None if it was given another batch.

    Its seconds are those of the machine it ran on. Raises FileNotFoundError if it never ran on the job.
    """
    path = PLANS / f"{job.model}-{job.nodes}x{RANKS_PER_NODE}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: make torchrec-plans writes it")
    fields = json.loads(path.read_text())
    if fields["batch"] != job.batch:
        return None
    if "plan" not in fields:
        return Made("torchrec", "own", None, fields["seconds"], fields["error"])
    if away := [table for table in fields["plan"] if table["kernel"] not in KERNELS]:
        how = f"keeps {len(away)} tables in host memory ({away[0]['kernel']})"
        return Made("torchrec", "own", None, fields["seconds"], how)
    plan = to_plan(fields["plan"], job.workload.specs, job.topology.world, WIRE)
    return Made("torchrec", "own", plan, fields["seconds"], f"torchrec {fields['torchrec']}")


def searched(
    job: Job,
    clusters: tuple[str, ...] = CLUSTERS,
    overlap: Overlap = "none",
    rows: bool = True,
    columns: bool = True,
    skew: bool = True,
    seeds: tuple[Plan, ...] = (),
    moves: int | None = None,
    restarts: int = 1,
) -> Planned:
    """Our search; without `skew` it takes all row parts of a table for equally popular. On one node, where there is no
    hierarchy, the pooled cluster is flat.
    """
    if job.nodes == 1:
        clusters = tuple("gridwise" if c == "hierarchical" else c for c in clusters if c != "unique_node")
    load = job.workload if skew else job.workload.without_skew()
    options = Options(clusters=clusters, rows=rows, columns=columns, wire=WIRE)
    count = MOVES if moves is None else moves
    return search(load, job.topology, MEMORY, overlap, options, count, restarts, seeds=seeds)


def table_rows(job: Job, mode: str = "hierarchical") -> Plan:
    """EMBark's baseline, table-row-wise; on one node flat."""
    pooled = POOLED[mode if mode in modes(job) else "flat"]
    return table_row_wise(job.workload.specs, job.nodes, RANKS_PER_NODE, pooled, WIRE, job.limits.copies, TABLES)


@dataclass(frozen=True)
class Arm:
    """A rung of the ladder: a plan, the overlap it runs under, its step, the parts of the batch."""

    name: str
    plan: Plan
    overlap: Overlap
    step_s: float
    parts: int = 1


def ladder(job: Job, moves: int | None = None) -> Iterator[Arm]:
    """What each part of the system adds, from table-row-wise without overlap to everything.

    Every search is seeded with the plan before it, so that a rung shows what its freedom is worth, not the luck of a
    search. Up to `+unique` (EMBark) the search does not know that one row part of a skewed table is hotter; the score
    always does.
    """
    plan = table_rows(job, "flat")
    yield Arm("flat", plan, "none", job.price(plan).step_s)
    plan = table_rows(job)
    rungs: tuple[tuple[str, Overlap], ...] = (("table_row_wise", "none"), ("+step", "step"), ("+steps", "steps"))
    for name, overlap in rungs:
        yield Arm(name, plan, overlap, job.price(plan, overlap).step_s)
    freedom = (
        ("+rows", CLUSTERS[1:2], False, False),
        ("+columns", CLUSTERS[1:2], True, False),
        ("+replicated", CLUSTERS[:2], True, False),
        ("+unique", CLUSTERS, True, False),
        ("+unique_node", (*CLUSTERS, "unique_node"), True, False),
        ("+hot shards", (*CLUSTERS, "unique_node"), True, True),
    )
    for name, clusters, columns, skew in freedom:
        found = searched(job, clusters, "steps", True, columns, skew, (plan,), moves).plan
        if job.price(found, "steps").step_s <= job.price(plan, "steps").step_s:
            plan = found  # a search blind to hot shards may choose what the score likes less
        yield Arm(name, plan, "steps", job.price(plan, "steps").step_s)
    step, parts = micro_batched(plan, job.workload, job.topology)
    yield Arm("+micro-batches", plan, "steps", min(step, job.price(plan, "steps").step_s), parts)


def ladder_points(job: Job, moves: int | None = None) -> Iterator[Measurement]:
    """The simulated rows of `embark/ladder`."""
    for number, arm in enumerate(ladder(job, moves)):
        point = {**job.point, "arm": arm.name, "number": number, "parts": arm.parts}
        yield Measurement(point, {"step_ms": 1e3 * arm.step_s}, {"step_ms": "ms"}, 1, "simulated")


def end_to_end_points(job: Job, moves: int | None = None) -> Iterator[Measurement]:
    """The simulated rows of `embark/end_to_end`: every planner's step, without overlap and with all of it.

    A search plans for the overlap it runs under; other planners know of none.
    """
    fits = [
        (made.planner, made.pooled, made.plan)
        for made in baselines(job)
        if made.plan is not None and job.price(made.plan).fits(MEMORY)
    ]
    seeds = tuple(plan for _, _, plan in fits)
    overlaps: tuple[Overlap, ...] = ("none", "steps")
    for overlap in overlaps:
        arms = list(fits)
        for planner, clusters in (("search", CLUSTERS), ("search_node", (*CLUSTERS, "unique_node"))):
            arms.append((planner, "best", searched(job, clusters, overlap, seeds=seeds, moves=moves).plan))
        for planner, pooled, plan in arms:
            step = job.price(plan, overlap).step_s
            point = {**job.point, "planner": planner, "pooled": pooled, "overlap": overlap}
            metrics = {"step_ms": 1e3 * step, "samples_per_s": job.batch / step}
            yield Measurement(point, metrics, {"step_ms": "ms", "samples_per_s": "1/s"}, 1, "simulated")


PARTS = {
    "keys_ms": ("route", "keys", "meet", "keys_rail"),
    "lookup_ms": ("gather", "combine"),
    "send_ms": ("send",),
    "grad_send_ms": ("grad_send", "node_reduce", "grad_rail"),
    "update_ms": ("apply",),
    "dense_ms": ("dense",),
    "dense_reduce_ms": ("dense_reduce",),
}


def breakdown_points(job: Job, moves: int | None = None) -> Iterator[Measurement]:
    """The simulated rows of `embark/breakdown`: the parts of a step without overlap."""
    for arm, plan in (("table_row_wise", table_rows(job)), ("search", searched(job, moves=moves).plan)):
        priced = job.price(plan)
        metrics = {name: 1e3 * sum(priced.parts[part] for part in parts) for name, parts in PARTS.items()}
        metrics["step_ms"] = 1e3 * priced.step_s
        yield Measurement({**job.point, "arm": arm}, metrics, dict.fromkeys(metrics, "ms"), 1, "simulated")
