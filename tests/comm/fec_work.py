"""Streams, plans and a tiny model for the tests of early rows and late gradients.

In its own module so that processes started by `comm.group.launch` can import it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numba
import torch
from torch import Tensor, nn

from comm.group import Group, simulate
from comm.pipeline import Pipeline, Staged
from comm.plan import Plan
from comm.schedule import Frame, Schedule
from comm.when import When
from kernels import Bags, Optimizer, TableSpec
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.micro_step import MicroStep
from models.pipeline import PipelinedTraining
from models.prefetch_step import PrefetchStep
from models.step import TrainingStep
from models.stores import DeviceStore
from tests.comm.workload import Result, delayed, digest

TABLES = (TableSpec("big", 60, 4), TableSpec("small", 9, 4, "mean"))
BATCH = 4
FEATURES = 2
RANKS_PER_NODE = {1: None, 2: None, 4: 2, 8: 4}

Draw = Callable[[torch.Generator, int, int], list[list[list[int]]]]
"""(generator, step, rank) -> ids by table and sample."""


def popular(generator: torch.Generator, rows: int, n: int) -> list[int]:
    """Ids of which small ones are common."""
    return (rows * torch.rand(n, generator=generator) ** 3).long().tolist()


def iid(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    lengths = torch.randint(0, 4, (len(TABLES) * BATCH,), generator=generator).view(len(TABLES), BATCH).tolist()
    return [[popular(generator, t.rows, n) for n in of] for t, of in zip(TABLES, lengths, strict=True)]


def all_conflict(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    return [[[b % t.rows, (b + 1) % t.rows] for b in range(BATCH)] for t in TABLES]


def none_conflicts(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    return [[[3 * ((b + rank) % (t.rows // 3)) + step % 3] for b in range(BATCH)] for t in TABLES]


def empty_rank(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    return [[] for _ in TABLES] if rank == 1 or step % 4 == 3 else iid(generator, step, rank)


def duplicates(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    return [[[row] * 3 for row in popular(generator, t.rows, BATCH)] for t in TABLES]


def shared_table(generator: torch.Generator, step: int, rank: int) -> list[list[list[int]]]:
    """Two features look one table up: the second asks for what the first asked for one step before."""

    def feature(t: TableSpec, of_step: int) -> list[int]:
        return [(7 * of_step + 5 * b + rank) % t.rows for b in range(BATCH)]

    return [[list(pair) for pair in zip(feature(t, step), feature(t, step - 1), strict=True)] for t in TABLES]


STREAMS: dict[str, Draw] = {
    draw.__name__: draw for draw in (iid, all_conflict, none_conflicts, empty_rank, duplicates, shared_table)
}


@cache
def stream(name: str, steps: int, world: int) -> tuple[tuple[tuple[Bags, Tensor, Tensor], ...], ...]:
    """Bags, dense features and labels by step and rank."""
    batches = []
    for step in range(steps):
        of_ranks = []
        for rank in range(world):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            ids = STREAMS[name](generator, step, rank)
            bags = [bag for table in ids for bag in table]
            offsets = torch.tensor([0] + [len(bag) for bag in bags]).cumsum(0)
            flat = torch.tensor([row for bag in bags for row in bag], dtype=torch.int64)
            samples = len(ids[0])
            dense = torch.randn(samples, FEATURES, generator=generator)
            label = torch.randint(0, 2, (samples,), generator=generator).float()
            of_ranks.append((Bags(flat, offsets), dense, label))
        batches.append(tuple(of_ranks))
    return tuple(batches)


class TinyModel(nn.Module):
    """Logits that are not linear in the rows: gradients depend on every bit of them."""

    def __init__(self, embedding: ShardedEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.vector = nn.Parameter(torch.linspace(-1, 1, FEATURES + sum(t.dim for t in TABLES)))

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return torch.tanh(torch.cat([dense, pooled], dim=1) * self.vector).sum(1)


@dataclass(frozen=True)
class Arm:
    """What is trained, where its rows lie, and when they travel; `when` None is the plain synchronous step."""

    strategy: str = "unique"
    when: When | None = None
    optimizer: str = "rowwise_adagrad"
    stream: str = "iid"
    steps: int = 12
    parts: int = 0  # of MicroStep, without a `when`
    hot: int | None = None  # every so many ids are hot; 0: none
    overlap: bool = False
    delays: int | None = None  # seed of random delays in all phases

    def plan(self, world: int) -> Plan:
        plan = Plan.uniform(TABLES, self.strategy, world)
        if self.hot is None:
            return plan
        hot = [tuple(range(0, t.rows, self.hot)) if self.hot else () for t in TABLES]
        return replace(plan, placements=tuple(replace(p, hot=h) for p, h in zip(plan.placements, hot, strict=True)))


def lr_of(step: int) -> float:
    """A rate that differs between steps that follow each other."""
    return 0.25 / (1 + step % 3)


def frames(arm: Arm, group: Group, begin: int = 0, end: int | None = None) -> list[Frame]:
    """The inputs of the steps from `begin` on this rank."""
    inputs = []
    for step, of_ranks in enumerate(stream(arm.stream, arm.steps, group.size)[begin:end], begin):
        bags, dense, label = of_ranks[group.rank]
        total = max(sum(len(labels) for _, _, labels in of_ranks), 1)
        frame: Frame = {"step": step, "lr": lr_of(step), "training": True, "bags": bags}
        inputs.append(frame | {"dense": dense, "label": label, "global_batch": total})
    return inputs


def build(arm: Arm, group: Group, store=None) -> tuple[TinyModel, torch.optim.Optimizer]:
    """The model of this rank, as it is before training."""
    stores = {} if store is None else {"store": store}
    plan, rule = arm.plan(group.size), Optimizer(arm.optimizer)
    model = TinyModel(ShardedEmbedding(plan, group, rule, backend="cpu", **stores))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def training_of(arm: Arm, group: Group, model: TinyModel, optimizer: torch.optim.Optimizer) -> PipelinedTraining:
    """How `arm` trains the model: every arm as a pipeline, the synchronous ones of depth 0."""
    if arm.when is not None:
        pipeline = PrefetchStep(model, optimizer, when=arm.when).pipeline()
    else:
        step = MicroStep(model, optimizer, parts=arm.parts) if arm.parts else TrainingStep(model, optimizer)
        schedule = step.schedule()
        pipeline = Pipeline((Staged(0, phase) for phase in schedule.phases), schedule.inputs)
    if arm.delays is not None:
        source = random.Random(arm.delays * group.size + group.rank)
        # the order of issue and all names stay: a schedule is only what carries the waits
        slow = [delayed(Schedule((s.phase,), s.phase.needs), source).phases[0] for s in pipeline.staged]
        pipeline = Pipeline((Staged(s.ahead, p) for s, p in zip(pipeline.staged, slow, strict=True)), pipeline.inputs)
    return PipelinedTraining(pipeline, Executor(arm.overlap, started=lambda: numba.set_num_threads(1)), group)


def result_of(model: TinyModel, losses: list[float], group: Group) -> Result:
    """What this rank has learned; every lease is back, and copies of hot rows are the same everywhere."""
    embedding = model.embedding
    for team in embedding.teams:
        store, shards = team.strategy.store, team.strategy.shards
        assert store.stats() == {"leases": 0}, store.stats()
        assert isinstance(store, DeviceStore)
        if len(shards.hot_keys):
            for array in (store.values, *store.states):
                copies = array[shards.rows_of_rank[group.rank] :].contiguous()
                everyone = group.all_gather(copies, [len(copies)] * group.size, "check").view(group.size, *copies.shape)
                assert all(torch.equal(copies, theirs) for theirs in everyone), "copies differ"
    flat = model.vector.detach().clone()
    return Result(losses, embedding.gather_tables(), flat, {k: v.tolist() for k, v in group.sent.items()})


def train(group: Group, arm: Arm) -> Result:
    """Train `arm` on this rank's share of its stream."""
    model, optimizer = build(arm, group)
    training = training_of(arm, group, model, optimizer)
    losses = [frame["loss"] for frame in training.steps(frames(arm, group))]
    return result_of(model, losses, group)


def run(arm: Arm, world: int) -> Result:
    """Train on `world` simulated ranks, which must agree."""
    results = simulate(world, lambda group: train(group, arm), RANKS_PER_NODE[world])
    assert len({digest(result) for result in results}) == 1, "ranks disagree"
    return results[0]


@cache
def synchronous(optimizer: str, stream_name: str, steps: int, world: int, parts: int = 0) -> str:
    """Digest of weights, optimizer state and losses of plain synchronous `unique`."""
    return digest(run(Arm(optimizer=optimizer, stream=stream_name, steps=steps, parts=parts), world))


def assert_exact(arm: Arm, world: int) -> Result:
    """`arm` learns, bit for bit, what plain synchronous training learns from the same micro-batches."""
    parts = arm.when.parts if arm.when else arm.parts
    result = run(arm, world)
    assert digest(result) == synchronous(arm.optimizer, arm.stream, arm.steps, world, parts if parts > 1 else 0)
    return result
