"""Arms of embedding offloading that take turns: the same tables and batches, other stores and pipelines.

A step is everything an embedding does (forward, gradient, update) with a timer in place of the dense part, on one rank.
All arms work on one array of rows that was written once, so that none pays for pages that the others have already, and
a run begins in the middle of its stream: rows used before are marked as written, and caches are warmed without the
link's pace. Numbers of the tables are therefore of no meaning here; that caches do not change them is `equality`.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comm.exchange import Exchange
from comm.group import SimGroup
from comm.pipeline import Pipeline, Staged
from comm.plan import Plan
from comm.schedule import Frame, Phase, Schedule
from comm.strategy import INPUTS
from experiments.offload._streams import Stream
from kernels import Bags, Optimizer
from models.cache import CachedStore
from models.cache_policy import Policy
from models.cache_size import SmallCache
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.host_store import HostStore
from models.host_tier import HostTier
from models.link import Link
from models.pipeline import PipelinedTraining
from models.prefetch_rows import prefetched
from models.step import TrainingStep
from models.stores import DeviceStore
from models.tier import StoreSpec

LR = 0.01
UNPACED = 1e15
"""Bytes/s of a link that nobody waits for."""
LOOKAHEAD = 2
"""Batches beyond the next one whose rows the look-ahead policy knows."""


@dataclass(frozen=True)
class Arm:
    """Where rows are and how they come: `device` all rows on the device; `host` none; `cached` some lines of it.

    `prefetch`: rows come one batch ahead. `relaxed`: arm (a), prefetch and sparse backward do not exclude each other.
    `duplex`: (b), both directions of the link at once. `keyed`: (c), rows never written are made, not read.
    `lookahead`: (d), the eviction policy knows the next batches.
    """

    name: str
    store: Literal["device", "host", "cached"] = "cached"
    prefetch: bool = True
    relaxed: bool = False
    duplex: bool = False
    keyed: bool = False
    lookahead: bool = False
    tier: str = ""
    """Format of the slow tier's rows, as a torch dtype; empty: the table's own."""


DEVICE = Arm("device", "device")
PLAIN = Arm("strict")
ABC = Arm("abc", relaxed=True, duplex=True, keyed=True)


@dataclass(frozen=True)
class Sized:
    """An arm with its cache: `lines`, beside the overflow lines that every cache has."""

    arm: Arm
    lines: int = 0
    ways: int = 32

    @property
    def name(self) -> str:
        """Names it among arms of several sizes."""
        return f"{self.arm.name}/{self.lines}" if self.arm.store == "cached" else self.arm.name


@dataclass
class Memory:
    """The rows that all arms share: `values` [rows, dim] and row-wise `states` [rows], written once."""

    values: Tensor
    states: tuple[Tensor, ...]

    @staticmethod
    def of(stream: Stream) -> "Memory":
        """Zeros, every page of them there."""
        values = torch.zeros(stream.total_rows, stream.dim)
        return Memory(values, (torch.zeros(stream.total_rows),))


class _Tables(nn.Module):
    """What a TrainingStep trains: tables and nothing else."""

    def __init__(self, embedding: ShardedEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Never called: the phase is replaced by a timer."""
        raise NotImplementedError("the dense part of these steps is a timer")


class TimedStep(TrainingStep):
    """Forward, a timer of `dense_s` seconds, a gradient of a constant, and the update."""

    inputs = (*INPUTS, "bags")

    def __init__(self, embedding: ShardedEmbedding) -> None:
        super().__init__(_Tables(embedding), None)
        self.dense_s = 0.0
        self._grad = torch.empty(0)

    def schedule(self) -> Schedule:
        """See TrainingStep."""
        dense = Phase("dense", self._dense, ("pooled",), ("pooled_grad",), "compute")
        phases = (*self.embedding.forward_phases(), dense, *self.embedding.backward_phases())
        return Schedule(phases, self.inputs)

    def _dense(self, pooled: Tensor) -> Tensor:
        begin = time.perf_counter()
        if self._grad.shape != pooled.shape:
            self._grad = torch.full_like(pooled, 1e-3)
        rest = self.dense_s - (time.perf_counter() - begin)
        if rest > 0:
            time.sleep(rest)
        return self._grad


@dataclass
class Lane:
    """One arm at work: `step()` trains its next batch."""

    sized: Sized
    link: Link
    timed: TimedStep
    training: PipelinedTraining
    steps: Iterator[Frame] = field(default_factory=lambda: iter(()))

    @property
    def store(self) -> Any:
        """The store of its one team."""
        return self.timed.embedding.teams[0].strategy.store

    def step(self) -> float:
        """Seconds that the next batch takes."""
        begin = time.perf_counter()
        next(self.steps)
        return time.perf_counter() - begin

    @property
    def events(self) -> list[Event]:
        """What ran when in the last step."""
        return self.training.events

    def moved(self) -> dict[str, int]:
        """Counters of the store so far; none of a table that is whole on the device."""
        return dict(self.store.stats()) if self.sized.arm.store != "device" else {}


def lane(
    stream: Stream, bags: Sequence[Bags], rows: Sequence[NDArray[np.int64]], history: int, sized: Sized, memory: Memory
) -> Lane:
    """An arm that begins at batch `history` of `bags`; `rows` are the distinct rows of each batch."""
    arm, link = sized.arm, Link(UNPACED, duplex=sized.arm.duplex)
    group = SimGroup(0, 1, None, Exchange(1, 60.0))
    batch_rows = max(map(len, rows))
    lookahead = LOOKAHEAD if arm.lookahead else 0

    def make(spec: StoreSpec):  # noqa: ANN202 (a Store)
        if arm.store == "device":
            store = DeviceStore(memory.values[: spec.rows], spec.optimizer)
            store.states = tuple(state[: spec.rows] for state in memory.states)
            return store
        narrow = getattr(torch, arm.tier) if arm.tier else None
        tier = HostTier(spec, narrow)
        if narrow is None:  # else the narrow rows are its own
            tier.values, tier.states = memory.values[: spec.rows], tuple(s[: spec.rows] for s in memory.states)
        if arm.store == "host":
            tier.eager, tier.places, tier.used = True, torch.arange(spec.rows, dtype=torch.int32), spec.rows
            return HostStore(tier, link)
        _pass_by(tier, rows[:history])
        policy: Policy = "lookahead" if arm.lookahead else "lru"
        return CachedStore(
            tier, sized.lines, batch_rows, sized.ways, policy, link, exclusive=not arm.relaxed, keyed=arm.keyed
        )

    plan = Plan.uniform(stream.specs, "unique", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallCache)  # a sweep over sizes has such caches on purpose
        embedding = ShardedEmbedding(plan, group, Optimizer("rowwise_adagrad"), init="zeros", store=make)
    timed = TimedStep(embedding)
    pipeline = prefetched(timed, lookahead) if arm.prefetch else _keys_ahead(timed)
    training = PipelinedTraining(pipeline, Executor(True, started=lambda: numba.set_num_threads(1)), group)
    made = Lane(sized, link, timed, training)
    made.steps = training.steps(_frames(bags[history:]))
    return made


def _pass_by(tier: HostTier, batches: Sequence[NDArray[np.int64]]) -> None:
    """As if the rows of `batches` had been written, batch after batch."""
    for rows in map(torch.from_numpy, batches):
        new = rows[tier.places[rows] < 0]
        tier.places[new] = torch.arange(tier.used, tier.used + len(new), dtype=torch.int32)
        tier.used += len(new)
    tier.values[: tier.used].zero_()  # pages that a run long under way has


def _keys_ahead(step: TimedStep) -> Pipeline:
    """As `prefetched`, but rows come when the batch's own forward pass asks for them."""
    pipeline = prefetched(step)
    fetched = {name for s in pipeline.staged if s.phase.name.endswith(".fetch") for name in s.phase.gives}
    settled = {name: name.replace(".settled", ".lease") for s in pipeline.staged for name in s.phase.needs}
    kept = []
    for s in pipeline.staged:
        if s.phase.name.endswith((".fetch", ".settle")):
            continue
        kept.append(_without(s, fetched, settled))
    return Pipeline(kept, pipeline.inputs)


def _without(staged: Staged, fetched: set[str], settled: dict[str, str]) -> Staged:
    """A phase that waits for no fetch and takes the lease that the forward pass got."""
    phase = staged.phase
    needs = tuple(settled[name] for name in phase.needs if name not in fetched)
    run = phase.run
    if len(needs) < len(phase.needs):  # `prefetched` gave it one value more, which it drops
        return Staged(staged.ahead, replace(phase, needs=needs, run=lambda *values: run(*values, None)))
    return Staged(staged.ahead, replace(phase, needs=needs))


def _frames(bags: Sequence[Bags]) -> Iterator[Frame]:
    for number, batch in enumerate(bags):
        yield {"step": number, "lr": LR, "training": True, "bags": batch}
