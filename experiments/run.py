"""Runs experiments: each measurement becomes a record as it comes; one that fails costs the others nothing."""

import time
import traceback
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from experiments.config import Experiment
from experiments.environment import environment
from experiments.record import Writer


@dataclass(frozen=True)
class Job:
    """An experiment and the configurations to run, expected to take `expected_s` seconds (None: not known)."""

    experiment: Experiment
    configs: tuple[Any, ...]
    expected_s: float | None = None

    def weight(self) -> float:
        """Expected seconds of one configuration, or 1 where that is not known: how far it moves the progress bar."""
        return (self.expected_s or len(self.configs)) / len(self.configs)


@dataclass(frozen=True)
class Outcome:
    """What came of a job: the file, how many records it gained, the seconds it took, and the error that ended it."""

    experiment: str
    path: Path
    records: int
    seconds: float
    error: str | None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; `outcomes` holds what was written until then, the interrupted job last."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


def run(jobs: Iterable[Job], out: Path, console: Console) -> list[Outcome]:
    """Run the jobs in turn, their records appended to files below `out`, with progress on `console`.

    Raises:
        Interrupted: on Ctrl-C, with the records written until then on disk.
    """
    jobs, outcomes = list(jobs), []
    env = environment()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        _Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, _Left(), console=console) as progress:
        known = all(job.expected_s for job in jobs)
        total = sum(job.weight() * len(job.configs) for job in jobs)
        task = progress.add_task("", total=total, records=0, at="", known=known, done_at=0.0)
        for job in jobs:
            began, error, writer = time.monotonic(), None, Writer(out, job.experiment.name, env)
            try:
                with writer:
                    _measure(job, writer, progress, task)
            except KeyboardInterrupt:
                outcomes.append(_outcome(job, writer, began, "interrupted"))
                raise Interrupted(outcomes) from None
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
                console.print(traceback.format_exc(), style="red", markup=False, highlight=False)
            outcomes.append(_outcome(job, writer, began, error))
    return outcomes


def report(outcomes: Iterable[Outcome], console: Console) -> bool:
    """Print one line a job, ending with the path of what was written; True if none failed."""
    good = True
    for o in outcomes:
        state = "failed: " + o.error if o.error else "done"
        wrote = f"{o.records} records in {o.seconds:.1f} s -> {o.path}"
        console.print(f"{o.experiment}: {state}; {wrote}", markup=False, highlight=False, soft_wrap=True)
        good &= o.error is None
    return good


def _measure(job: Job, writer: Writer, progress: Progress, task: Any) -> None:
    """Run every configuration of a job, one record a measurement."""
    for number, config in enumerate(job.configs, start=1):
        progress.update(task, description=job.experiment.name, at=f"{number} of {len(job.configs)}")
        if not progress.console.is_interactive:
            progress.console.print(f"{job.experiment.name}: {number} of {len(job.configs)}: {config}", markup=False)
        with closing(job.experiment.measure(config)) as measurements:  # pyright: ignore[reportArgumentType]
            for measurement in measurements:
                writer.write(config, measurement)
                progress.update(task, records=progress.tasks[task].fields["records"] + 1)
        progress.update(task, advance=job.weight(), done_at=progress.tasks[task].elapsed)
    if not writer.count:
        raise RuntimeError(f"experiment {job.experiment.name!r} yielded no measurement")


def _outcome(job: Job, writer: Writer, began: float, error: str | None) -> Outcome:
    return Outcome(job.experiment.name, writer.path, writer.count, time.monotonic() - began, error)


class _Rate(ProgressColumn):
    """Records so far and per minute."""

    def render(self, task: Task) -> Text:
        minutes = (task.elapsed or 0.0) / 60
        per_minute = task.fields["records"] / minutes if minutes else 0.0
        return Text(f"{task.fields['records']} records, {per_minute:.0f}/min")


class _Left(ProgressColumn):
    """Time left: what the budgets say until the first configuration is done, then that scaled by the pace so far."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        if task.completed:
            done_at, ahead = task.fields["done_at"], (task.total or 0.0) - task.completed
            left = ahead * done_at / task.completed - (elapsed - done_at)
        elif task.fields["known"]:
            left = (task.total or 0.0) - elapsed
        else:
            return Text("? s left")
        return Text(f"about {max(left, 0.0):.0f} s left")
