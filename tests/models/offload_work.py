"""A small model whose rows do not fit the cache: a few hundred hot rows, so that batches share rows and conflict."""

import hashlib
from collections.abc import Callable, Iterator

import torch

from comm.group import Group
from comm.plan import Plan
from comm.schedule import Frame
from kernels import Bags, Optimizer, TableSpec
from models.cache import CachedStore
from models.dcn import DLRMDCNv2
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.host_tier import HostTier
from models.pipeline import PipelinedTraining
from models.prefetch_rows import prefetched
from models.step import TrainingStep

TABLES = (TableSpec("hot", 400, 8), TableSpec("wide", 4000, 8, "mean"))
BATCH, FEATURES, LR = 64, 3, 0.25
BATCH_ROWS = 280
"""At least the distinct rows of any batch below."""


def frames(steps: int, world: int = 1, rank: int = 0, seed: int = 0) -> Iterator[Frame]:
    """Batches of 2 ids a bag: of the hot table evenly, of the wide one by a square, so that low ids come back."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * seed + step)
        share = BATCH // world
        hot = torch.randint(0, 400, (BATCH, 2), generator=generator)
        wide = (4000 * torch.rand(BATCH, 2, generator=generator) ** 2).long()
        dense = torch.rand(BATCH, FEATURES, generator=generator)
        label = torch.randint(0, 2, (BATCH,), generator=generator).float()
        mine = slice(rank * share, (rank + 1) * share)
        ids = torch.cat([hot[mine].flatten(), wide[mine].flatten()])
        bags = Bags(ids, torch.arange(len(TABLES) * share + 1) * 2)
        frame: Frame = {"step": step, "lr": LR, "training": True, "bags": bags, "global_batch": BATCH}
        yield frame | {"dense": dense[mine], "label": label[mine]}


def cached(lines: int, **options) -> Callable:
    """A factory of stores with so many lines, rows of 8 ways a set, over memory."""
    options = {"batch_rows": BATCH_ROWS, "ways": 8, "backend": "cpu"} | options
    return lambda spec: CachedStore(HostTier(spec, backend="cpu"), lines, **options)


class Run:
    """A model and its stores on one rank; `train` gives a checksum of losses, tables, states and dense parameters."""

    def __init__(
        self, group: Group, store: Callable | None = None, strategy: str = "unique", optimizer: str = "rowwise_adagrad"
    ) -> None:
        self.group = group
        plan = Plan.uniform(TABLES, strategy, group.size)
        options = {} if store is None else {"store": store}
        self.embedding = ShardedEmbedding(plan, group, Optimizer(optimizer), seed=5, backend="cpu", **options)
        self.model = DLRMDCNv2(self.embedding, FEATURES, bottom=(8,), top=(8, 1), cross_layers=1, cross_rank=4)
        self.parameters = list(self.model.parameters())
        self.step = TrainingStep(self.model, torch.optim.SGD(self.parameters, lr=LR))
        self.losses: list[float] = []

    @property
    def store(self):
        return self.embedding.teams[0].strategy.store

    def frames(self, steps: int) -> Iterator[Frame]:
        return frames(steps, self.group.size, self.group.rank)

    def plain(self, steps: int) -> str:
        schedule, executor = self.step.schedule(), Executor()
        for frame in self.frames(steps):
            executor.run(schedule, frame)
            self.losses.append(frame["loss"])
        return self.digest()

    def pipelined(self, steps: int, overlap: bool = False, lookahead: int = 0, pipeline=None) -> str:
        pipeline = pipeline or prefetched(self.step, lookahead)
        training = PipelinedTraining(pipeline, Executor(overlap), self.group)
        self.losses += [frame["loss"] for frame in training.steps(self.frames(steps))]
        return self.digest()

    def digest(self) -> str:
        sha = hashlib.sha256(torch.tensor(self.losses, dtype=torch.float64).numpy().tobytes())
        for arrays in self.embedding.gather_tables().values():
            for array in arrays:
                sha.update(array.contiguous().numpy().tobytes())
        for parameter in self.parameters:
            sha.update(parameter.detach().numpy().tobytes())
        return sha.hexdigest()
