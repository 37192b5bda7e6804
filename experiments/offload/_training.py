"""A small DLRM-DCNv2 on generated clicks whose tables are behind a store of one's choice, on one rank."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from comm.exchange import Exchange
from comm.group import SimGroup
from comm.plan import Plan
from comm.schedule import Frame
from comm.store import Store
from experiments.data.batch import ClickBatch
from experiments.data.generator import GeneratedClicks
from experiments.loop import ModelConfig
from experiments.metrics import ClickMetrics
from kernels import Bags, Optimizer
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.pipeline import PipelinedTraining
from models.prefetch_rows import prefetched
from models.step import TrainingStep
from models.stores import device_store
from models.tier import StoreSpec

MODEL = ModelConfig(bottom=(16,), top=(16,), cross_layers=1, cross_rank=4)


@dataclass(frozen=True)
class Trained:
    """`digest` of losses, tables, states and dense parameters; `stats` of the store at the end of training."""

    digest: str
    losses: list[float]
    stats: dict[str, int]


class Training:
    """The model with its tables in the store that `make` makes; `pipelined` brings rows a batch ahead, with threads."""

    def __init__(
        self, clicks: GeneratedClicks, optimizer: str, make: Callable[[StoreSpec], Store] = device_store,
        pipelined: bool = False, lookahead: int = 0, lr: float = 0.05, dense_lr: float = 0.01,
    ) -> None:  # fmt: skip
        self.group = SimGroup(0, 1, None, Exchange(1, 60.0))
        plan = Plan.uniform(clicks.tables, "unique", 1)
        self.embedding = ShardedEmbedding(plan, self.group, Optimizer(optimizer), seed=1, store=make)
        self.model = MODEL.build(self.embedding)
        self.parameters = list(self.model.parameters())
        self.step = TrainingStep(self.model, torch.optim.Adam(self.parameters, lr=dense_lr))
        self.pipelined, self.lookahead, self.lr = pipelined, lookahead, lr

    def train(self, batches: Sequence[ClickBatch]) -> Trained:
        """Train on `batches` in order."""
        if self.pipelined:
            pipeline = prefetched(self.step, self.lookahead)
            ended = PipelinedTraining(pipeline, Executor(True), self.group).steps(self._frames(batches))
            losses = [frame["loss"] for frame in ended]
        else:
            schedule, executor, losses = self.step.schedule(), Executor(), []
            for frame in self._frames(batches):
                executor.run(schedule, frame)
                losses.append(frame["loss"])
        stats = dict(self.embedding.teams[0].strategy.store.stats())
        return Trained(self._digest(losses), losses, stats)

    def _frames(self, batches: Sequence[ClickBatch]) -> Iterator[Frame]:
        for number, batch in enumerate(batches):
            frame: Frame = {"step": number, "lr": self.lr, "training": True, "bags": batch.bags}
            yield frame | {"dense": batch.dense, "label": batch.label, "global_batch": len(batch)}

    @torch.no_grad()
    def evaluate(self, batches: Sequence[ClickBatch]) -> dict[str, float]:
        """Log loss, AUC and others."""
        metrics = ClickMetrics()
        for batch in batches:
            metrics.update(self.model(batch.dense, batch.bags).double(), batch.label.double())
        return metrics.compute()

    def _digest(self, losses: Sequence[float]) -> str:
        sha = hashlib.sha256(np.array(losses, np.float64).tobytes())
        tables = self.embedding.gather_tables()
        arrays: list[Tensor] = [array for name in sorted(tables) for array in tables[name]]
        for array in (*arrays, *(p.detach() for p in self.parameters)):
            sha.update(array.contiguous().numpy().tobytes())
        return sha.hexdigest()


def batches_of(clicks: GeneratedClicks, batch: int, count: int) -> list[ClickBatch]:
    """The first `count` batches."""
    return list(islice(clicks.batches(batch), count))


def rows_of(clicks: GeneratedClicks, bags: Bags) -> Tensor:
    """Distinct rows of the stacked tables, as the cache is asked for them."""
    batch = len(bags) // len(clicks.tables)
    starts = torch.tensor([0, *(table.rows for table in clicks.tables)]).cumsum(0)[:-1]
    table = torch.repeat_interleave(torch.arange(len(clicks.tables)), bags.offsets[::batch].diff())
    return (bags.ids + starts[table]).unique()


def two_batches(clicks: GeneratedClicks, batches: Sequence[ClickBatch]) -> tuple[int, float]:
    """(most distinct rows of a batch, mean distinct rows of two neighbouring ones)."""
    rows = [rows_of(clicks, batch.bags) for batch in batches]
    both = [len(torch.cat([a, b]).unique()) for a, b in pairwise(rows)]
    return max(map(len, rows)), sum(both) / len(both)
