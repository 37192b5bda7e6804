"""A small model and click stream that the tests of exchanges share: ragged, uneven, with sum and mean tables.

In its own module so that processes started by `comm.group.launch` can import it.
"""

import hashlib
import random
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numba
import torch
from torch import Tensor, nn

from comm.group import Group
from comm.pipeline import Pipeline, ahead
from comm.plan import Plan, Split
from comm.schedule import Frame, Phase, Schedule
from kernels import Bags, Optimizer, TableSpec
from kernels.bags import Pooling
from models.dcn import DLRMDCNv2
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.micro_step import MicroStep
from models.pipeline import PipelinedTraining
from models.step import Loss, TrainingStep, cross_entropy_sum

LR = 0.25
FEATURES = 3
GLOBAL_BATCH = 16
CUTS = {1: (0, 16), 2: (0, 10, 16), 4: (0, 6, 6, 11, 16)}
"""The samples of each rank, by world size: uneven, and rank 1 of 4 has none."""

ARMS: tuple[tuple[str, Split], ...] = (
    ("unique", "modulo"),
    ("unique", "range"),
    ("tablewise", "modulo"),
    ("replicated", "modulo"),
    ("rowwise", "modulo"),
    ("rowwise", "range"),
    ("columnwise", "modulo"),
    ("gridwise", "modulo"),
    ("gridwise", "range"),
    ("hierarchical", "modulo"),
    ("unique_node", "modulo"),
    ("hot_cold", "modulo"),
    ("replicated_dense", "modulo"),
    ("alltoall", "modulo"),
    ("allgather", "modulo"),
    ("hot_cold_node", "modulo"),
    ("hot_cold_rowwise", "range"),
    ("hot_cold_hierarchical", "modulo"),
)

WHOLE_BAGS = (
    *("unique", "unique_node", "hot_cold", "hot_cold_node", "alltoall"),
    *("tablewise", "replicated", "replicated_dense", "allgather"),
)
"""Strategies that pool a bag in one place and update a row in one place: the same bits as each other."""


@dataclass(frozen=True)
class Work:
    """What is trained, and how the tables travel."""

    strategy: str = "unique"
    split: Split = "modulo"
    optimizer: str = "sgd"
    weighted: bool = False
    poolings: tuple[Pooling, ...] = ("sum", "mean")
    dims: tuple[int, ...] = (8,)
    dtype: torch.dtype = torch.float32
    steps: int = 10
    overlap: bool = False
    delays: int | None = None  # seed of random delays in phases
    parts: int = 0  # of the local batch, moved by MicroStep; 0 is the plain step
    ahead: int = 0  # batches by which keys run ahead

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """One row for everybody, fewer rows than ranks, and rows enough that ranks rarely share one."""
        shapes = (("one", 1), ("few", 3), ("some", 7), ("many", 100))
        poolings, dims = self.poolings * len(shapes), self.dims * len(shapes)
        return tuple(TableSpec(*shapes[i], dims[i], poolings[i], self.dtype) for i in range(len(shapes)))

    def plan(self, world: int) -> Plan:
        return Plan.uniform(self.tables, self.strategy, world, self.split)


class Result(NamedTuple):
    """What a rank has after training; `tables` are whole, each followed by its states."""

    losses: list[float]
    tables: dict[str, tuple[Tensor, ...]]
    dense: Tensor
    sent: dict[str, list[int]]


def draw_bags(tables: tuple[TableSpec, ...], batch: int, seed: int, weighted: bool, dtype: torch.dtype) -> Bags:
    """Table-major bags of 0 to 3 ids; weights are small integers, so that exact models stay exact."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(tables) * batch,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = torch.tensor([t.rows for t in tables]).repeat_interleave(batch).repeat_interleave(lengths)
    ids = (torch.rand(len(rows), generator=generator) * rows).long()
    weights = torch.randint(-2, 4, (len(ids),), generator=generator).to(dtype) if weighted else None
    return Bags(ids, offsets, weights)


def samples(bags: Bags, tables: int, begin: int, end: int) -> Bags:
    """Samples `begin` to `end` of every table."""
    batch = len(bags) // tables
    chosen = [t * batch + b for t in range(tables) for b in range(begin, end)]
    spans = [torch.arange(int(bags.offsets[bag]), int(bags.offsets[bag + 1])) for bag in chosen]
    at = torch.cat([torch.zeros(0, dtype=torch.int64), *spans])
    offsets = torch.tensor([0] + [len(span) for span in spans]).cumsum(0)
    return Bags(bags.ids[at], offsets, None if bags.weights is None else bags.weights[at])


def slice_of(bags: Bags, begin: int, end: int) -> Bags:
    """Bags `begin` to `end`."""
    first, last = int(bags.offsets[begin]), int(bags.offsets[end])
    weights = None if bags.weights is None else bags.weights[first:last]
    return Bags(bags.ids[first:last], bags.offsets[begin : end + 1] - first, weights)


def batch_of(work: Work, step: int, begin: int, end: int) -> tuple[Bags, Tensor, Tensor]:
    """Bags, dense features and labels of some samples of the global batch of `step`."""
    generator = torch.Generator().manual_seed(step)
    dense = torch.randint(-4, 5, (GLOBAL_BATCH, FEATURES), generator=generator).to(work.dtype)
    label = torch.randint(0, 2, (GLOBAL_BATCH,), generator=generator).to(work.dtype)
    bags = draw_bags(work.tables, GLOBAL_BATCH, 1000 + step, work.weighted, work.dtype)
    return samples(bags, len(work.tables), begin, end), dense[begin:end], label[begin:end]


class LinearModel(nn.Module):
    """Logits linear in the pooled rows, and in one vector of parameters: exact on small integers."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.vector = nn.Parameter(torch.zeros(FEATURES))

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return dense @ self.vector + pooled @ (torch.arange(pooled.shape[1]).to(pooled.dtype) % 3 - 1)


def linear_loss(logits: Tensor, label: Tensor) -> Tensor:
    return (logits * (2 * label - 1)).sum()


def real_model(embedding: nn.Module) -> nn.Module:
    return DLRMDCNv2(embedding, FEATURES, bottom=(8,), top=(8, 1), cross_layers=1, cross_rank=4)


def train(
    group: Group, work: Work, make=real_model, loss: Loss = cross_entropy_sum, plan: Plan | None = None
) -> Result:
    """`work.steps` steps of this rank's share of the global batches."""
    embedding = ShardedEmbedding(plan or work.plan(group.size), group, Optimizer(work.optimizer), backend="cpu")
    model = make(embedding).to(work.dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LR)
    training = (
        MicroStep(model, optimizer, loss, parts=work.parts) if work.parts else TrainingStep(model, optimizer, loss)
    )
    schedule = training.schedule()
    if work.delays is not None:
        schedule = delayed(schedule, random.Random(work.delays * group.size + group.rank))
    executor = Executor(work.overlap, started=lambda: numba.set_num_threads(1))
    frames = (frame_of(work, step, group) for step in range(work.steps))
    losses = []
    if work.ahead:
        pipeline = Pipeline(ahead(schedule.phases, work.ahead), schedule.inputs)
        losses = [frame["loss"] for frame in PipelinedTraining(pipeline, executor, group).steps(frames)]
    else:
        for frame in frames:
            executor.run(schedule, frame)
            losses.append(frame["loss"])
    sent = {label: bytes_.tolist() for label, bytes_ in group.sent.items()}
    assert all(team.strategy.store.stats() == {"leases": 0} for team in embedding.teams)
    flat = torch.cat([p.detach().flatten() for p in parameters])
    return Result(losses, embedding.gather_tables(), flat, sent)


def frame_of(work: Work, step: int, group: Group) -> Frame:
    """The inputs of one step on this rank."""
    begin, end = CUTS[group.size][group.rank : group.rank + 2]
    bags, dense, label = batch_of(work, step, begin, end)
    frame: Frame = {"step": step, "lr": LR, "training": True, "bags": bags}
    return frame | {"dense": dense, "label": label, "global_batch": GLOBAL_BATCH}


def delayed(schedule: Schedule, source: random.Random) -> Schedule:
    """The same phases, each after a random wait of at most 2 ms."""

    def slow(phase: Phase) -> Phase:
        def run(*values):
            time.sleep(source.random() * 0.002)
            return phase.run(*values)

        return replace(phase, run=run)

    return Schedule(tuple(slow(phase) for phase in schedule.phases), schedule.inputs)


def digest(result: Result) -> str:
    """SHA-256 of weights, optimizer state, dense parameters and losses."""
    sha = hashlib.sha256()
    for arrays in result.tables.values():
        for array in arrays:
            sha.update(array.numpy().tobytes())
    sha.update(result.dense.numpy().tobytes())
    sha.update(torch.tensor(result.losses, dtype=torch.float64).numpy().tobytes())
    return sha.hexdigest()
