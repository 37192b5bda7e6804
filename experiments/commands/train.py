"""`python -m experiments train`: a whole run on a log of one's own, under any plan, that goes on where it stopped.

Started by torchrun it is one rank of that job; otherwise it starts `ranks` processes on this machine.
"""

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from comm.group import Group, launch, rank_main
from comm.plan import Plan
from experiments.commands._logs import open_log
from experiments.data.batch import ClickBatch, ClickStream
from experiments.data.criteo import OnBadLine
from experiments.data.generator import generate
from experiments.environment import environment
from experiments.loop import ModelConfig, OptimConfig, Trainer
from experiments.record import Measurement, Writer
from kernels import TableSpec
from models.checkpoint import latest, load, save

ASK_EVERY = 8
"""Steps between two agreements on whether somebody was asked to stop."""


@dataclass(frozen=True)
class Config:
    """A run. Without `data` it trains on `samples` generated clicks; `plan` is a file that `Plan.to_json` wrote (the
    tables in it must be the log's), else every table is under `strategy`.
    """

    data: str = ""
    samples: int = 400_000
    max_rows: int = 100_000
    min_count: int = 0
    dim: int = 16
    on_bad_line: OnBadLine = "raise"
    eval_share: float = 0.1
    plan: str = ""
    strategy: str = "unique"
    batch: int = 2048
    epochs: int = 1
    overlap: bool = False
    evaluate_every: int = 0
    checkpoint_every: int = 0
    report_every: int = 20
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.epochs < 1 or self.report_every < 1:
            raise ValueError(
                f"train: expected batch, epochs and report_every of at least 1, given {self.batch}, {self.epochs}, "
                f"{self.report_every}"
            )


def main(
    config: Annotated[Config, tyro.conf.arg(name="")],
    ranks: int = 2,
    out: Path = Path("runs/train"),
    resume: bool = False,
) -> None:
    """Train a model on a click log (or on generated clicks), evaluate, keep checkpoints.

    Args:
        config: the run.
        ranks: processes to start on this machine (torchrun decides otherwise).
        out: records go to OUT/train/run.jsonl, checkpoints to OUT/checkpoints.
        resume: go on from the last complete checkpoint in OUT.
    """
    if not resume and latest(out / "checkpoints"):
        raise ValueError(
            f"{out}: expected no checkpoint there, given {latest(out / 'checkpoints')}: --resume, or another --out"
        )
    if resume and not latest(out / "checkpoints"):
        raise ValueError(f"--resume: expected a complete checkpoint in {out / 'checkpoints'}, given none")
    if "RANK" in os.environ:
        rank_main(run_rank, config, out)
        return
    try:
        launch(ranks, run_rank, config, out)
    except KeyboardInterrupt:
        kept = latest(out / "checkpoints")
        print(f"interrupted; records: {out / 'train/run.jsonl'}; last checkpoint: {kept}; go on with --resume")
        raise SystemExit(130) from None


def open_stream(config: Config) -> ClickStream:
    """What the run trains and evaluates on."""
    if config.data:
        return open_log(Path(config.data), config.max_rows, config.dim, config.on_bad_line, config.min_count)
    return generate(config.samples, max_rows=config.max_rows, dim=config.dim)


def plan_of(config: Config, tables: tuple[TableSpec, ...], world: int) -> Plan:
    """The plan of the run, with the tables of the log."""
    if not config.plan:
        return Plan.uniform(tables, config.strategy, world)
    plan = Plan.from_json(Path(config.plan).read_text(encoding="utf-8"))
    differ = [f"{t.name} [{t.rows}, {t.dim}]" for t in tables if t not in plan.tables]
    if differ or len(plan.tables) != len(tables):
        raise ValueError(f"{config.plan}: expected the {len(tables)} tables of the log, given others: not {differ[:3]}")
    return plan


class Run:
    """One rank of a run: the trainer, where it is in the stream, and what it keeps."""

    def __init__(self, group: Group, config: Config, out: Path) -> None:
        self.group, self.config, self.folder = group, config, out / "checkpoints"
        self.training, self.evaluation = open_stream(config).split(config.eval_share)
        self.per_epoch = -(-self.training.samples // config.batch)
        self.steps = config.epochs * self.per_epoch
        plan = plan_of(config, self.training.tables, group.size)
        self.trainer = Trainer(plan, group, config.model, config.optim, self.steps, config.overlap)
        self.asked_to_stop = False

    def restore(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        path = latest(self.folder)
        if path is not None:
            step, dense = load(path, self.trainer.embedding)
            self.trainer.restore(step, torch.load(io.BytesIO(dense.numpy().tobytes())))

    def save(self) -> Path:
        """A checkpoint of all that the next step depends on."""
        buffer = io.BytesIO()
        torch.save(self.trainer.dense_state(), buffer)
        dense = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        return save(self.folder, self.trainer.embedding, self.trainer.done, dense)

    def batches(self) -> Iterator[ClickBatch]:
        """This rank's batches from where the run is, to its end."""
        while self.trainer.done < self.steps:
            start = self.trainer.done % self.per_epoch
            yield from self.training.batches(self.config.batch, self.group.rank, self.group.size, start)

    def should_stop(self) -> bool:
        """Whether any rank was asked to; all ranks agree. Ranks ask every few steps."""
        if self.trainer.done % ASK_EVERY:
            return False
        flags = self.group.all_gather(torch.tensor([int(self.asked_to_stop)]), [1] * self.group.size, "stop")
        return bool(flags.any())

    def evaluate(self) -> dict[str, float]:
        """AUC, normalised entropy, log loss and click rate on the held-out end of the log."""
        return self.trainer.evaluate(self.evaluation, self.config.batch)


def run_rank(group: Group, config: Config, out: Path) -> None:
    """Train on this rank; rank 0 reports."""
    run = Run(group, config, out)
    run.restore()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: setattr(run, "asked_to_stop", True))
    first = run.trainer.done
    with Reporter(run, out) as reporter:
        stopped = False
        for batch in run.batches():
            reporter.step(run.trainer.step(batch))
            done = run.trainer.done
            if config.evaluate_every and done % config.evaluate_every == 0:
                reporter.evaluation(run.evaluate())
            if config.checkpoint_every and done % config.checkpoint_every == 0:
                run.save()
            if run.should_stop():
                stopped = True
                break
        reporter.flush()
        path = run.save() if run.trainer.done > first or not latest(run.folder) else latest(run.folder)
        if not stopped:
            reporter.evaluation(run.evaluate())
        reporter.end(path, stopped)


class Reporter:
    """Records and progress of a run, on rank 0; the others only keep time."""

    def __init__(self, run: Run, out: Path) -> None:
        self.run, self.out = run, out
        self.writer = Writer(out, "train/run", environment() | {"link": "unshaped"}) if run.group.rank == 0 else None
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("step {task.completed:.0f} of {task.total:.0f}, loss {task.fields[loss]:.4f}"),
            TextColumn("{task.fields[rate]:,.0f} samples/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=Console(stderr=True), disable=self.writer is None)
        self.task: Any = self.progress.add_task("", total=run.steps, completed=run.trainer.done, loss=0.0, rate=0.0)
        self.losses: list[float] = []
        self.began = time.perf_counter()

    def __enter__(self) -> "Reporter":
        if self.writer:
            self.writer.__enter__()
        self.progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.stop()
        if self.writer:
            self.writer.__exit__(*error)

    def step(self, loss: float) -> None:
        """Note a step; every so often, write its mean loss and rate."""
        self.losses.append(loss)
        if len(self.losses) >= self.run.config.report_every:
            self.flush()

    def flush(self) -> None:
        """Write the steps since the last report."""
        if not self.losses:
            return
        seconds, mean = time.perf_counter() - self.began, sum(self.losses) / len(self.losses)
        rate = len(self.losses) * self.run.config.batch / seconds
        self.progress.update(self.task, completed=self.run.trainer.done, loss=mean, rate=rate)
        self._write("train", {"loss": mean, "rate": rate}, {"loss": "nats", "rate": "samples/s"}, len(self.losses))
        self.losses, self.began = [], time.perf_counter()

    def evaluation(self, metrics: dict[str, float]) -> None:
        """Write what an evaluation gave."""
        unit = {name: "nats" if name == "logloss" else "1" for name in metrics}
        self._write("evaluation", metrics, unit, self.run.evaluation.samples)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        if self.writer:
            self.progress.console.print(f"step {self.run.trainer.done}: {shown}", highlight=False)
        self.began = time.perf_counter()

    def end(self, checkpoint: Path | None, stopped: bool) -> None:
        """Say where everything is."""
        if self.writer:
            state = "stopped; go on with --resume" if stopped else "done"
            self.progress.console.print(
                f"{state}: step {self.run.trainer.done}; records: {self.writer.path}; checkpoint: {checkpoint}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip

    def _write(self, what: str, metrics: dict[str, float], unit: dict[str, str], samples: int) -> None:
        if self.writer:
            point = {"what": what, "step": self.run.trainer.done, "ranks": self.run.group.size}
            self.writer.write(self.run.config, Measurement(point, metrics, unit, samples))
