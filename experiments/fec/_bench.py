"""Steps of any arm on one rank, timed: all arms in turn, over the same rows of the same tables and the same batches.

A step moves rows, adds, updates; its dense part is a linear model of the pooled rows that takes `dense_s` seconds (a
timer), and has no parameters to exchange. De-duplication, routing and the remap to tiers are inside the step. Arms
share their rows' memory, so that none of them pays for its pages, and their values go on from arm to arm.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from comm.group import Group
from comm.pipeline import Pipeline, Staged
from comm.schedule import Frame, Phase, Schedule, split_offset
from experiments.fec._arms import Arm
from kernels import Bags, Optimizer, TableSpec
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.initialise import zero_rows
from models.pipeline import PipelinedTraining
from models.prefetch_step import PrefetchStep
from models.step import TrainingStep
from models.stores import DeviceStore
from models.tier import StoreSpec

LR = 0.02
OPTIMIZER = "rowwise_adagrad"


class StandIn(nn.Module):
    """Logits are sums of the pooled rows with fixed signs: a model that is nearly free, and whose gradients depend on
    the weights. What it costs in time is a timer's business.
    """

    def __init__(self, embedding: ShardedEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        width = sum(table.dim for table in embedding.tables)
        self.signs = 1.0 - 2.0 * (torch.arange(width) % 2)

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits [batch] of `pooled` [batch, width]."""
        return pooled @ self.signs


@dataclass(frozen=True)
class Iteration:
    """One step of one arm on this rank: seconds since the one before ended, what ran, bytes [world] and calls by
    label.
    """

    seconds: float
    events: list[Event]
    sent: dict[str, Tensor]
    calls: dict[tuple[str, str], int]
    loss: float


class Rows:
    """The rows of this rank under a plan that cuts all tables over all ranks, and room for copies: one memory for all
    arms.
    """

    def __init__(self, rows: int, copies: int, dim: int, optimizer: Optimizer) -> None:
        store = DeviceStore(zero_rows(rows + copies, dim, torch.float32), optimizer)
        self.values, self.states = store.values, store.states

    def store(self, spec: StoreSpec) -> DeviceStore:
        """The first `spec.rows` of them as a store."""
        if spec.rows > len(self.values):
            raise ValueError(f"{spec.label}: expected at most {len(self.values)} rows and copies, given {spec.rows}")
        store = DeviceStore(self.values[: spec.rows], spec.optimizer)
        store.states = tuple(state[: spec.rows] for state in self.states)
        return store


class Bench:
    """Runs bursts of steps of any arm on this rank. `rows` (None: arms have their own, drawn ones)."""

    def __init__(
        self,
        group: Group,
        tables: tuple[TableSpec, ...],
        rows: Rows | None = None,
        optimizer: str = OPTIMIZER,
        started: Callable[[], None] | None = None,
    ) -> None:
        self.group, self.tables, self.rows = group, tables, rows
        self.optimizer, self.started = Optimizer(optimizer), started

    def embedding(self, arm: Arm, hot: list[tuple[int, ...]]) -> ShardedEmbedding:
        """The tables under the arm's plan."""
        plan = arm.plan(self.tables, self.group.size, hot)
        if self.rows is None:
            return ShardedEmbedding(plan, self.group, self.optimizer)
        return ShardedEmbedding(plan, self.group, self.optimizer, init="zeros", store=self.rows.store)

    def burst(
        self,
        arm: Arm,
        hot: list[tuple[int, ...]],
        batches: Sequence[Frame],
        dense_s: float,
        warm: int,
        embedding: ShardedEmbedding | None = None,
        model: Callable[[ShardedEmbedding], Any] = StandIn,
    ) -> tuple[Schedule, list[Iteration]]:
        """Step over `batches`: the schedule of a step (without what it runs), and what every step after the first
        `warm` did. A pipeline's last ones, in which nothing comes ahead any more, do not count either: give it
        `warm + n + ahead(arm)` batches for n.
        """
        embedding = embedding or self.embedding(arm, hot)
        self.group.barrier()
        schedule, steps = self._steps(arm, model(embedding), batches, dense_s)
        found = list(steps)
        plain = Schedule(tuple(replace(phase, run=nothing) for phase in schedule.phases), schedule.inputs)
        return plain, found[warm : len(found) - ahead(arm)]

    def _steps(
        self, arm: Arm, model: Any, batches: Sequence[Frame], dense_s: float
    ) -> tuple[Schedule, Iterator[Iteration]]:
        executor, watch = Executor(overlap=True, started=self.started), _Watch(self.group)
        if arm.when is None:
            schedule = TrainingStep(model, None).schedule()
            schedule = Schedule(tuple(timed(phase, dense_s) for phase in schedule.phases), schedule.inputs)
            values = (dict(frame) for frame in batches)
            return schedule, (watch.iteration(executor.run(schedule, frame), frame) for frame in values)
        pipeline = PrefetchStep(model, None, when=arm.when).pipeline()
        staged = (Staged(s.ahead, timed(s.phase, dense_s, arm.when.parts)) for s in pipeline.staged)
        pipeline = Pipeline(staged, pipeline.inputs)
        training = PipelinedTraining(pipeline, executor, self.group)
        ended = training.steps(dict(frame) for frame in batches)
        return pipeline.schedule(), (watch.iteration(training.events, frame) for frame in ended)


def nothing(*_: Any) -> None:
    """What a phase runs whose schedule is only to be priced."""


class _Watch:
    """From one iteration to the next: seconds, bytes."""

    def __init__(self, group: Group) -> None:
        self.group, self.at = group, time.perf_counter()
        self.sent, self.calls = _copied(group), dict(group.calls)

    def iteration(self, events: list[Event], frame: Frame) -> Iteration:
        now, sent, calls = time.perf_counter(), _copied(self.group), dict(self.group.calls)
        called = {key: n - self.calls.get(key, 0) for key, n in calls.items() if n > self.calls.get(key, 0)}
        moved = {label: sent[label] - self.sent.get(label, 0) for label, _ in called}
        found = Iteration(now - self.at, events, moved, called, float(frame["loss"]))
        self.at, self.sent, self.calls = now, sent, calls
        return found


def _copied(group: Group) -> dict[str, Tensor]:
    return {label: bytes_.clone() for label, bytes_ in group.sent.items()}


def ahead(arm: Arm) -> int:
    """Batches that an arm reads ahead: its last iterations are emptier by as many."""
    return arm.when.depth + 1 if arm.when else 0


def timed(phase: Phase, seconds: float, parts: int = 1) -> Phase:
    """`phase`, but if it is the dense part (or one of its `parts`), stretched to its share of `seconds` by sleeping."""
    name = split_offset(phase.name)[1]
    if name != "dense" and not name.startswith("dense."):
        return phase
    run = phase.run

    def stretched(*values: Any) -> Any:
        end = time.perf_counter() + seconds / parts
        result = run(*values)
        time.sleep(max(0.0, end - time.perf_counter()))
        return result

    return replace(phase, run=stretched)


def frames_of(bags: Sequence[Bags], labels: Sequence[Tensor], dense: Sequence[Tensor], world: int) -> list[Frame]:
    """Inputs of one step after another on this rank."""
    return [
        {"step": step, "lr": LR, "training": True, "bags": b, "dense": d, "label": y, "global_batch": len(y) * world}
        for step, (b, y, d) in enumerate(zip(bags, labels, dense, strict=True))
    ]
