"""The training loop: steps of a model over a click stream, learning rates, evaluation on held-out samples."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from comm.group import Group
from comm.plan import Plan
from experiments.data.batch import DENSE, ClickBatch, ClickStream
from experiments.metrics import ClickMetrics
from experiments.schedules import WarmupDecay
from kernels import Optimizer
from models.dcn import DLRMDCNv2
from models.deepfm import DeepFM
from models.dlrm import DLRM
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.ranking import RankingModel
from models.step import TrainingStep
from models.wide_deep import WideDeep

ModelName = Literal["dcnv2", "dlrm", "deepfm", "wide_deep"]


@dataclass(frozen=True)
class ModelConfig:
    """What is trained: widths of the MLPs (`top` without its last 1; `bottom` in dlrm and dcnv2 only), low-rank cross
    (dcnv2 only), dtype of the dense part.
    """

    name: ModelName = "dcnv2"
    bottom: tuple[int, ...] = (64, 16)
    top: tuple[int, ...] = (128, 64)
    cross_layers: int = 2
    cross_rank: int = 32
    bf16: bool = False
    seed: int = 0

    def build(self, embedding: ShardedEmbedding) -> RankingModel:
        """The model over `embedding`."""
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        top = (*self.top, 1)
        if self.name in ("deepfm", "wide_deep"):
            kind = DeepFM if self.name == "deepfm" else WideDeep
            return kind(embedding, DENSE, top, dense_dtype=dtype, seed=self.seed)
        if self.name == "dlrm":
            return DLRM(embedding, DENSE, self.bottom, top, dense_dtype=dtype, seed=self.seed)
        return DLRMDCNv2(
            embedding, DENSE, self.bottom, top,
            cross_layers=self.cross_layers, cross_rank=self.cross_rank, dense_dtype=dtype, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class OptimConfig:
    """Rules and rates: `sparse` for the tables, Adam for the dense part; both warm up over the first `warmup_share`
    of the steps and decay over the last `decay_share` to `floor` of their base.
    """

    sparse: str = "rowwise_adagrad"
    sparse_lr: float = 0.05
    dense_lr: float = 0.005
    warmup_share: float = 0.05
    decay_share: float = 0.4
    floor: float = 0.1

    def schedule(self, base: float, steps: int) -> WarmupDecay:
        """The learning rate of a run of `steps`."""
        warmup, decay = round(self.warmup_share * steps), round(self.decay_share * steps)
        return WarmupDecay(base, warmup, max(warmup, steps - decay), decay, floor=self.floor)


class Trainer:
    """One model under one plan on this rank. `steps` is the length of the run: learning rates follow from it."""

    def __init__(
        self,
        plan: Plan,
        group: Group,
        model: ModelConfig,
        optim: OptimConfig,
        steps: int,
        overlap: bool = False,
        ring: bool = False,
        backend: str | None = None,
    ) -> None:
        self.group = group
        self.embedding = ShardedEmbedding(plan, group, Optimizer(optim.sparse), model.seed, backend)
        self.model = model.build(self.embedding)
        self._dense = torch.optim.Adam(self.model.parameters(), lr=optim.dense_lr)
        self._sparse_lr = optim.schedule(optim.sparse_lr, steps)
        self._dense_lr = LambdaLR(self._dense, optim.schedule(optim.dense_lr, steps).factor)
        self._schedule = TrainingStep(self.model, self._dense, ring=ring).schedule()
        self._executor = Executor(overlap)
        self.done = 0
        self.events: list[Event] = []

    def step(self, batch: ClickBatch) -> float:
        """Train on this rank's `batch` of a global one (sizes may differ); returns the mean loss over the global batch.

        `events` then says what ran when.
        """
        sizes = self.group.all_gather(torch.tensor([len(batch)]), [1] * self.group.size, "batch_size")
        frame = {
            "step": self.done,
            "lr": self._sparse_lr.lr(self.done),
            "training": True,
            "bags": batch.bags,
            "dense": batch.dense,
            "label": batch.label,
            "global_batch": int(sizes.sum()),
        }
        self.events = self._executor.run(self._schedule, frame)
        self._dense_lr.step()
        self.done += 1
        return frame["loss"]

    @torch.no_grad()
    def evaluate(self, stream: ClickStream, batch: int) -> dict[str, float]:
        """AUC, normalised entropy, log loss and click rate over `stream`, the same on every rank."""
        metrics, group = ClickMetrics(), self.group
        for part in stream.batches(batch, group.rank, group.size):
            logits = self.model(part.dense, part.bags)
            sizes = group.all_gather(torch.tensor([len(part)]), [1] * group.size, "evaluate").tolist()
            both = torch.stack([logits.double(), part.label.double()], dim=1)
            whole = group.all_gather(both, sizes, "evaluate")
            metrics.update(whole[:, 0], whole[:, 1])
        return metrics.compute()

    def dense_state(self) -> dict[str, Any]:
        """What the dense part's next step depends on: parameters, optimizer, learning rate."""
        dense = {name: p.detach() for name, p in self.model.named_parameters()}
        return {"model": dense, "optimizer": self._dense.state_dict(), "rate": self._dense_lr.state_dict()}

    def restore(self, done: int, dense: dict[str, Any]) -> None:
        """Be where a run was after `done` steps: `dense` is its `dense_state`; the tables are restored beside this."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(dense["model"][name])
        self._dense.load_state_dict(dense["optimizer"])
        self._dense_lr.load_state_dict(dense["rate"])
        self.done = done

    def tables(self) -> dict[str, tuple[Tensor, ...]]:
        """Every table and its optimizer state, whole, on every rank."""
        return self.embedding.gather_tables()
