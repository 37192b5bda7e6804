"""The same weights: every arm trains DLRM-DCNv2 and is compared, bit for bit, with plain synchronous steps.

Paper figure: none known. What is compared are all tables, their optimizer states, the dense parameters and the loss of
every step, on real processes (gloo), with overlapping streams. An arm in parts is compared with the plain step in the
same parts; a ring sums in another order and is shown for the difference it makes. Tables are small, so that rows
conflict often.

Run:      python -m experiments run fec/equality --laptop
Expect:   equal bits everywhere but under the ring; its losses stay close, its weights do not stay equal.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from comm.group import Group, launch
from experiments.config import Measurement, grid
from experiments.data.counting import count_use
from experiments.data.generator import GeneratedClicks, generate
from experiments.fec._arms import ARMS, PARTS, Arm
from experiments.loop import ModelConfig, OptimConfig
from experiments.record import Value
from kernels import Optimizer
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.pipeline import PipelinedTraining
from models.prefetch_step import PrefetchStep
from models.step import TrainingStep

REFERENCE = {1: "unique", PARTS: "parts"}
"""By number of parts, the arm that others are compared with."""
TRAINED = (
    "unique",
    "raw",
    "unique_node",
    "tier",
    "tier ring",
    "prefetch",
    "tier+prefetch",
    "tier+prefetch+deferral",
    "parts",
    "tier+prefetch+deferral+parts",
)
WINDOW = 10
"""Steps whose mean loss makes one point of the curve."""


@dataclass(frozen=True)
class Config:
    """`steps` of `batch` samples over `ranks`; the `hot` most read rows have copies."""

    ranks: int = 2
    optimizer: str = "rowwise_adagrad"
    order: str = "meta_medium"
    steps: int = 200
    batch: int = 128
    max_rows: int = 2_000
    dim: int = 16
    hot: int = 300
    arms: tuple[str, ...] = TRAINED
    seed: int = 0
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)


GRID = (*grid(Config, optimizer=("sgd", "adagrad", "rowwise_adagrad", "adam")), Config(ranks=4))
LAPTOP = (Config(steps=50, arms=("unique", "tier ring", "tier+prefetch+deferral", "parts", TRAINED[-1])),)
TINY = (Config(steps=10, batch=32, max_rows=40, hot=60, arms=("unique", "tier+prefetch+deferral")),)
BUDGET_S = 9.0


def measure(config: Config) -> Iterator[Measurement]:
    """Train every arm on all ranks; yield its losses, and whether it ended with the reference's bits."""
    everywhere = launch(config.ranks, run_rank, config)
    arms = everywhere[0]
    env: dict[str, Value] = {"link": "loopback"}
    for name in config.arms:
        parts = _parts(ARMS[name])
        reference, point = arms[REFERENCE[parts]], {"arm": name, "optimizer": config.optimizer, "ranks": config.ranks}
        losses, theirs = arms[name]["losses"], reference["losses"]
        for first in range(0, len(losses) - WINDOW + 1, WINDOW):
            loss = sum(losses[first : first + WINDOW]) / WINDOW
            yield Measurement({**point, "step": first + WINDOW}, {"loss": loss}, {"loss": "nats"}, WINDOW, env=env)
        metrics = {
            "same_bits": float(arms[name]["checksum"] == reference["checksum"]),
            "ranks_agree": float(len({rank[name]["checksum"] for rank in everywhere}) == 1),
            "largest_loss_difference": max(abs(a - b) for a, b in zip(losses, theirs, strict=True)),
            "last_loss": losses[-1],
        }
        units = {"same_bits": "1", "ranks_agree": "1", "largest_loss_difference": "nats", "last_loss": "nats"}
        summary: dict[str, Value] = {**point, "reference": REFERENCE[parts], "checksum": arms[name]["checksum"]}
        yield Measurement(summary, metrics, units, len(losses), env=env)


def run_rank(group: Group, config: Config) -> dict[str, dict[str, Any]]:
    """One rank: every arm from the same start over the same batches."""
    needed = config.steps * config.batch
    stream = generate(needed, config.seed, config.order, config.max_rows, config.dim)  # pyright: ignore[reportArgumentType]
    use = count_use(stream, config.batch, group.size, min(10, config.steps))
    hot = use.keys[: config.hot]
    hot.sort()
    return {name: train(group, ARMS[name], config, stream, hot) for name in config.arms}


def train(group: Group, arm: Arm, config: Config, stream: GeneratedClicks, hot: Any) -> dict[str, Any]:
    """The arm's losses, and a checksum of all it learned."""
    ids, first = [], 0
    for table in stream.tables:
        ids.append(tuple((hot[(hot >= first) & (hot < first + table.rows)] - first).tolist()))
        first += table.rows
    plan = arm.plan(stream.tables, group.size, ids)
    embedding = ShardedEmbedding(plan, group, Optimizer(config.optimizer), config.model.seed)
    model = config.model.build(embedding)
    dense = torch.optim.Adam(model.parameters(), lr=config.optim.dense_lr)
    batches = islice(stream.batches(config.batch, group.rank, group.size), config.steps)
    frames = (
        {"step": step, "lr": config.optim.sparse_lr / (1 + step / 100), "training": True, "bags": b.bags,
         "dense": b.dense, "label": b.label, "global_batch": config.batch}
        for step, b in enumerate(batches)
    )  # fmt: skip
    executor, losses = Executor(overlap=True), []
    if arm.when is None:
        schedule = TrainingStep(model, dense, ring=False).schedule()
        for frame in frames:
            executor.run(schedule, frame)
            losses.append(frame["loss"])
    else:
        training = PipelinedTraining(PrefetchStep(model, dense, when=arm.when).pipeline(), executor, group)
        losses = [frame["loss"] for frame in training.steps(frames)]
    digest = hashlib.sha256(torch.tensor(losses, dtype=torch.float64).numpy().tobytes())
    for tensor in (*(part for whole in embedding.gather_tables().values() for part in whole), *model.parameters()):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return {"losses": losses, "checksum": digest.hexdigest()[:16]}


def _parts(arm: Arm) -> int:
    return arm.when.parts if arm.when else 1
