"""DLRM-DCNv2 on a click stream under each strategy: one model, four ways to move its rows.

Paper figure: none; the ground that the three papers stand on. Shows that place and route do not change what is
learned: `unique`, `tablewise` and `replicated` end with the same bits (weights, optimizer state, losses). `rowwise`
adds partial sums, so it has the same bits where a bag holds one id (as here) and differs in the last digits elsewhere.
Bytes and step time differ. Every arm takes the same step on the same batch in turn: times are ratios of one run.

Run:      python -m experiments run train/strategies --laptop   (about 2 minutes on 2 cores; --data LOG for a log)
Expect:   equal losses; AUC at least 0.9 of the way from 0.5 to the generator's Bayes AUC; unique sends the fewest bytes
          of the model-parallel arms when bags hold one id and batches repeat rows, rowwise the most.
Ranks are gloo processes on this machine over loopback; on 2 cores 4 ranks wait for each other's compute.
"""

import hashlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comm.counts import Counts
from comm.group import Group, launch
from comm.plan import Plan
from experiments.config import Measurement, grid
from experiments.data.batch import ClickBatch, ClickStream
from experiments.data.criteo import CriteoLog, OnBadLine
from experiments.data.generator import GeneratedClicks, generate
from experiments.data.ids import Hashed
from experiments.data.order import Order
from experiments.loop import ModelConfig, OptimConfig, Trainer
from experiments.record import Value
from experiments.timing import median_interval
from kernels import Bags

ARMS = ("replicated", "tablewise", "rowwise", "unique")
REFERENCE = "unique"
"""The arm that others are compared with: bits, and step time."""


@dataclass(frozen=True)
class Config:
    """`samples` of the stream are read, the last `eval_share` of them for evaluation; `data` is a log, else they are
    generated.
    """

    ranks: int = 2
    data: str = ""
    on_bad_line: OnBadLine = "raise"
    order: Order = "iid"
    samples: int = 400_000
    eval_share: float = 0.1
    max_rows: int = 20_000
    dim: int = 16
    batch: int = 1024
    overlap: bool = False
    seed: int = 0
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)


GRID = grid(Config, ranks=(1, 2, 4), order=("iid", "meta_medium"))
LAPTOP = grid(Config, ranks=(1, 2, 4), samples=(120_000,))
TINY = grid(Config, ranks=(2,), samples=(1_500,), batch=(128,), max_rows=(100,))
BUDGET_S = 140.0
WINDOW = 10
"""Steps whose losses make one point of the curve."""
COUNTED = 4
"""First steps whose bytes are predicted and counted."""
FEWEST_STEPS = 20
"""A log too short for this many steps of `batch` gets smaller ones."""


def measure(config: Config) -> Iterator[Measurement]:
    """Train all arms on `config.ranks` processes, then yield what rank 0 saw, and the bytes of all ranks."""
    results = launch(config.ranks, run_rank, config)
    env: dict[str, Value] = {"link": "loopback"}
    for arms in zip(*results, strict=True):
        arm = arms[0]
        for step, loss in arm["curve"]:
            yield Measurement(
                {"strategy": arm["strategy"], "step": step}, {"loss": loss}, {"loss": "nats"}, WINDOW, env=env
            )
        metrics = arm["metrics"] | {
            name: sum(rank[name] for rank in arms) / arm["counted_steps"]
            for name in ("bytes_counted", "bytes_predicted")
        }
        if config.data:
            metrics["bad_lines"] = sum(rank["bad_lines"] for rank in arms)
        point = {name: arm[name] for name in ("strategy", "checksum", "batch")}
        yield Measurement(point, metrics, {name: _unit(name) for name in metrics}, arm["steps"], env=env)


def _unit(metric: str) -> str:
    if metric.startswith("bytes"):
        return "bytes/step"
    return {"logloss": "nats", "bad_lines": "lines"}.get(metric, "ms" if metric.endswith("_ms") else "1")


def open_stream(config: Config) -> CriteoLog | GeneratedClicks:
    """The first `samples` lines of the log, ids hashed into tables of `max_rows`; without a log, generated clicks."""
    if not config.data:
        return generate(config.samples, config.seed, config.order, config.max_rows, config.dim)
    log = CriteoLog(Path(config.data), Hashed.uniform(config.max_rows, config.seed), config.dim, config.on_bad_line)
    return replace(log, stop=min(config.samples, log.samples))


def bad_lines(stream: CriteoLog | GeneratedClicks) -> int:
    """Malformed lines that this rank has skipped so far."""
    return stream.bad_lines if isinstance(stream, CriteoLog) else 0


@dataclass
class Arm:
    """One strategy's run on this rank."""

    strategy: str
    trainer: Trainer
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)
    counted: int = 0
    predicted: int = 0

    def sent(self) -> int:
        """Bytes of embedding traffic that this rank sent so far."""
        labels = tuple(f"{team.label}." for team in self.trainer.embedding.teams)
        counts = self.trainer.group.sent.items()
        return sum(int(bytes_.sum()) for label, bytes_ in counts if label.startswith(labels))

    def step(self, batch: ClickBatch) -> None:
        """One timed step; ranks start together."""
        self.trainer.group.barrier()
        start = time.perf_counter()
        self.losses.append(self.trainer.step(batch))
        self.seconds.append(time.perf_counter() - start)
        self.network.append(sum(e.end - e.start for e in self.trainer.events if e.resource == "network"))

    def predict(self, batches: list[Bags]) -> int:
        """Bytes that this rank will send for one global batch, from counts of every rank's part of it."""
        rank, total = self.trainer.group.rank, 0
        for team in self.trainer.embedding.teams:  # a uniform plan with one width: one team with every table
            counts = Counts.of(team.strategy.shards, batches)
            total += sum(int(sent[rank].sum()) for sent in team.strategy.sent(counts).values())
        return total

    def weights(self) -> list[Tensor]:
        """Everything that training changed: tables, optimizer state, dense parameters."""
        tables = [part for whole in self.trainer.tables().values() for part in whole if part is not None]
        return tables + [parameter.detach() for parameter in self.trainer.model.parameters()]


def run_rank(group: Group, config: Config) -> list[dict[str, Any]]:
    """One rank: every arm takes each step in turn, the first one rotating."""
    stream = open_stream(config)
    training, evaluation = stream.split(config.eval_share)
    batch_size = min(config.batch, training.samples // FEWEST_STEPS)
    if batch_size < group.size:
        raise ValueError(
            f"data: expected at least {FEWEST_STEPS * group.size} training samples ({FEWEST_STEPS} steps of one sample "
            f"a rank), given {training.samples}"
        )
    steps = training.samples // batch_size
    arms = []
    for strategy in ARMS:
        plan = Plan.uniform(stream.tables, strategy, group.size)
        arms.append(Arm(strategy, Trainer(plan, group, config.model, config.optim, steps, config.overlap)))
    parts = [training.batches(batch_size, rank, group.size) for rank in range(group.size)]
    foreseen = [[next(part).bags for part in parts] for _ in range(COUNTED)]
    skipped = bad_lines(stream)
    for step, batch in zip(range(steps), training.batches(batch_size, group.rank, group.size), strict=False):
        for i in range(len(arms)):
            arm = arms[(step + i) % len(arms)]
            before = arm.sent()
            arm.step(batch)
            if step < COUNTED:
                arm.counted += arm.sent() - before
                arm.predicted += arm.predict(foreseen[step])
    skipped = bad_lines(stream) - skipped
    return [_result(arm, arms, evaluation, stream, batch_size) | {"bad_lines": skipped} for arm in arms]


def _result(
    arm: Arm, arms: list[Arm], evaluation: ClickStream, stream: CriteoLog | GeneratedClicks, batch_size: int
) -> dict[str, Any]:
    """What this rank reports of one arm."""
    reference = next(other for other in arms if other.strategy == REFERENCE)
    ours, theirs = arm.weights(), reference.weights()
    same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) and arm.losses == reference.losses
    scores = arm.trainer.evaluate(evaluation, batch_size)
    if isinstance(stream, GeneratedClicks):
        scores["bayes_auc"] = stream.bayes_auc()
        scores["auc_share"] = (scores["auc"] - 0.5) / (scores["bayes_auc"] - 0.5)
    ratio = median_interval([a / b for a, b in zip(arm.seconds, reference.seconds, strict=True)])
    windows = range(0, len(arm.losses) - WINDOW + 1, WINDOW)
    return {
        "strategy": arm.strategy,
        "batch": batch_size,
        "checksum": _checksum(ours, arm.losses),
        "curve": [(first + WINDOW, statistics.fmean(arm.losses[first : first + WINDOW])) for first in windows],
        "steps": len(arm.losses),
        "counted_steps": COUNTED,
        "bytes_counted": arm.counted,
        "bytes_predicted": arm.predicted,
        "metrics": scores | {
            "same_bits": float(same),
            "largest_difference": max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)),
            "step_ms": 1e3 * statistics.median(arm.seconds),
            "network_ms": 1e3 * statistics.median(arm.network),
            "step_ratio": ratio.median,
            "step_ratio_low": ratio.low,
            "step_ratio_high": ratio.high,
        },
    }  # fmt: skip


def _checksum(weights: list[Tensor], losses: list[float]) -> str:
    """Of all weights, states and losses, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for tensor in (*weights, torch.tensor(losses, dtype=torch.float64)):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
