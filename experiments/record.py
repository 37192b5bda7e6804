"""Record: one measurement as one flat JSON line, with everything needed to read it later. Imports no torch.

    schema       SCHEMA                          experiment   its name, `group/name`
    config       fields by dotted name           point        what places this measurement in its sweep
    metrics      finite numbers by name          unit         the unit of each metric
    samples      repetitions behind it           kind         one of KINDS: a figure draws them differently
    env          commit, machine, versions, switches (experiments/environment.py), and `run`, when its run began
    time         when it was written, ISO 8601, UTC

Files are append-only and every line is flushed: an interrupted run leaves what it had measured readable.
"""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import pandas as pd

SCHEMA = 1
Kind = Literal["measured", "emulated", "simulated", "predicted", "paper"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""`measured`: a clock or a counter here. `emulated`: a clock on shaped links or stand-in compute. `simulated`: the
simulator priced it. `predicted`: a cost model did. `paper`: a number somebody published."""

Value = str | int | float | bool
FIELDS = ("schema", "experiment", "config", "point", "metrics", "unit", "samples", "kind", "env", "time")
MACHINE = ("env.gpu", "env.cpu", "env.cores")


@dataclass(frozen=True)
class Measurement:
    """One point that was measured, or whatever `kind` says it was.

    `point` places it (backend, alpha, ranks ...), `metrics` holds finite numbers, `unit` the unit of each metric by the
    same name, `samples` the number of repetitions behind them. `env` adds to the record's environment, or overrides it:
    an emulated experiment states its link shaping (`link`) and stand-in compute (`device_time`) there.

    Raises:
        ValueError: unknown kind, a metric without unit or that is not a finite number, or samples below 1.
    """

    point: dict[str, Value]
    metrics: dict[str, float]
    unit: dict[str, str]
    samples: int
    kind: Kind = "measured"
    env: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}: choose one of {', '.join(KINDS)}")
        if not self.metrics or self.metrics.keys() != self.unit.keys():
            raise ValueError(f"metrics and unit must have the same names: {list(self.metrics)} and {list(self.unit)}")
        bad = {n: v for n, v in self.metrics.items() if not isinstance(v, int | float) or not math.isfinite(v)}
        if bad:
            raise ValueError(f"metrics must be finite numbers, given {bad} at point {self.point}")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, given {self.samples}")


def now() -> str:
    """The time in UTC, ISO 8601 to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def flat(config: object, prefix: str = "") -> dict[str, Any]:
    """Fields of a (nested) dataclass by dotted name, as JSON values; paths become strings, tuples lists."""
    found: dict[str, Any] = {}
    for name, value in ((f.name, getattr(config, f.name)) for f in fields(config)):  # pyright: ignore[reportArgumentType]
        if is_dataclass(value):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = str(value) if isinstance(value, Path) else value
    return found


def path_of(root: Path, experiment: str) -> Path:
    """The file of an experiment's records below `root`."""
    return root / f"{experiment}.jsonl"


class Writer:
    """Appends records of one run of one experiment to `path_of(root, experiment)`; use it as a context manager."""

    def __init__(self, root: Path, experiment: str, env: Mapping[str, Value]) -> None:
        self.path = path_of(root, experiment)
        self.experiment = experiment
        self.env = {"run": now(), **env}
        self.count = 0

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        if self._file.tell() and (self._file.seek(-1, 2), self._file.read(1))[1] != b"\n":
            self._file.write(b"\n")  # an earlier run was killed in mid-line: keep its torn line off ours
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, config: object, measurement: Measurement) -> None:
        """Append one record of `measurement`, made under `config` (a dataclass), and flush it."""
        line = {
            "schema": SCHEMA,
            "experiment": self.experiment,
            "config": flat(config),
            "point": measurement.point,
            "metrics": measurement.metrics,
            "unit": measurement.unit,
            "samples": measurement.samples,
            "kind": measurement.kind,
            "env": self.env | measurement.env,
            "time": now(),
        }
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.count += 1


def read(path: Path) -> pd.DataFrame:
    """The records of one file as a wide frame, one row a record, in the order written.

    Columns: experiment, samples, kind, time, config.<field>, point.<name>, metrics.<name>, unit.<name>, env.<name>;
    what a record does not have is NaN. Torn lines (cut off when a run was killed) are left out, with a warning that
    counts them.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line is no record, or has another schema; the message names file and line.
    """
    rows, torn = [], 0
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            torn += 1
            continue
        rows.append(_columns(record, f"{path}, line {number}"))
    if torn:
        warnings.warn(f"{path}: left out {torn} torn line(s), cut off when a run was killed", stacklevel=2)
    return pd.DataFrame(rows)


def last_runs(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the latest run on each machine (env.gpu, env.cpu, env.cores): what a figure shows."""
    if records.empty:
        return records
    latest = records.groupby(list(MACHINE), dropna=False)["env.run"].transform("max")
    return records.loc[records["env.run"] == latest].reset_index(drop=True)


def _columns(record: Any, where: str) -> dict[str, Any]:
    """One row of the frame; raises ValueError, naming `where`, for what is no record of this schema."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        given = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{where}: expected a record of schema {SCHEMA}, given {given!r}: run the experiment again")
    if missing := [name for name in FIELDS if name not in record]:
        raise ValueError(f"{where}: a record needs {', '.join(FIELDS)}; it lacks {', '.join(missing)}")
    if record["kind"] not in KINDS:
        raise ValueError(f"{where}: unknown kind {record['kind']!r}: one of {', '.join(KINDS)}")
    row = {name: record[name] for name in ("experiment", "samples", "kind", "time")}
    for group in ("config", "point", "metrics", "unit", "env"):
        values = {f"{group}.{name}": value for name, value in record[group].items()}
        row |= {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return row
