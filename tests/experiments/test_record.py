import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from experiments.environment import environment
from experiments.record import KINDS, SCHEMA, Measurement, Writer, last_runs, path_of, read


@dataclass(frozen=True)
class Model:
    dim: int = 16


@dataclass(frozen=True)
class Config:
    zipf: float = 1.05
    mlp: tuple[int, ...] = (8, 1)
    log: Path = Path("a.tsv")
    model: Model = Model()


MACHINE = {"gpu": "none", "cpu": "x", "cores": 2}


def point(ms: float, **more) -> Measurement:
    return Measurement({"backend": "cpu"}, {"step": ms}, {"step": "ms"}, samples=15, **more)


def write(root: Path, *measurements: Measurement, env=MACHINE) -> Path:
    with Writer(root, "toy/one", env) as writer:
        for m in measurements:
            writer.write(Config(), m)
    return writer.path


def test_a_record_is_one_flat_line_and_reads_back_as_a_wide_row(tmp_path):
    path = write(tmp_path, point(2.5, kind="emulated", env={"link": "200 Mbit/s"}))
    assert path == path_of(tmp_path, "toy/one") == tmp_path / "toy" / "one.jsonl"
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["schema"] == SCHEMA
    row = read(path).iloc[0]
    assert row["experiment"] == "toy/one"
    assert row["kind"] == "emulated"
    assert row["samples"] == 15
    assert (row["config.zipf"], row["config.model.dim"], row["config.mlp"], row["config.log"]) == (
        1.05,
        16,
        (8, 1),
        "a.tsv",
    )
    assert (row["point.backend"], row["metrics.step"], row["unit.step"]) == ("cpu", 2.5, "ms")
    assert (row["env.cores"], row["env.link"]) == (2, "200 Mbit/s")
    assert pd.Timestamp(row["time"]).tzname() == "UTC"


def test_floats_survive_the_round_trip_bit_for_bit(tmp_path):
    values = [0.1, 1 / 3, 1e-300, 2.0**60 + 2.0**8, math.pi]
    assert read(write(tmp_path, *map(point, values)))["metrics.step"].tolist() == values


def test_runs_append_and_a_figure_sees_the_last_run_of_each_machine(tmp_path):
    write(tmp_path, point(1.0), env=MACHINE | {"run": "2026-01-01"})
    write(tmp_path, point(2.0), env=MACHINE | {"run": "2026-01-01", "gpu": "H200"})
    path = write(tmp_path, point(3.0), point(4.0), env=MACHINE | {"run": "2026-01-02"})
    assert read(path)["metrics.step"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert last_runs(read(path))["metrics.step"].tolist() == [2.0, 3.0, 4.0]


def test_an_empty_file_is_an_empty_frame(tmp_path):
    path = write(tmp_path)
    assert last_runs(read(path)).empty


def test_a_torn_line_is_counted_and_costs_neither_its_predecessors_nor_the_next_run(tmp_path):
    path = write(tmp_path, point(1.0), point(2.0))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="left out 1 torn line"):
        assert read(path)["metrics.step"].tolist() == [1.0]
    write(tmp_path, point(3.0))
    with pytest.warns(UserWarning, match="left out 1 torn line"):
        assert read(path)["metrics.step"].tolist() == [1.0, 3.0]


def test_every_record_is_on_disk_before_the_next_one_is_made(tmp_path):
    with Writer(tmp_path, "toy/one", MACHINE) as writer:
        for count in (1, 2, 3):
            writer.write(Config(), point(count))
            assert len(read(writer.path)) == count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "line 2: expected a record of schema 1, given 99"),
        ({"kind": "guessed"}, f"line 2: unknown kind 'guessed': one of {', '.join(KINDS)}"),
        ({"time": None}, "line 2: a record needs .* it lacks time"),
    ],
)
def test_a_line_of_another_shape_names_file_and_line(tmp_path, change, message):
    path = write(tmp_path, point(1.0), point(2.0))
    first, second = path.read_text().splitlines()
    changed = {k: v for k, v in (json.loads(second) | change).items() if v is not None}
    path.write_text(f"{first}\n{json.dumps(changed)}\n")
    with pytest.raises(ValueError, match=f"one.jsonl, {message}"):
        read(path)


def test_a_line_that_is_json_but_no_record_is_an_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("3\n")
    with pytest.raises(ValueError, match="line 1: expected a record of schema 1, given 'int'"):
        read(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, {"a": 1.0}, {"a": "ms"}, 1, "guessed"), "unknown kind 'guessed': choose one of measured"),
        (({}, {"a": 1.0}, {"b": "ms"}, 1), "must have the same names"),
        (({}, {}, {}, 1), "must have the same names"),
        (
            ({"alpha": 2}, {"a": math.nan}, {"a": "ms"}, 1),
            r"finite numbers, given \{'a': nan\} at point \{'alpha': 2\}",
        ),
        (({}, {"a": math.inf}, {"a": "ms"}, 1), "finite"),
        (({}, {"a": 1.0}, {"a": "ms"}, 0), "samples must be at least 1, given 0"),
    ],
)
def test_a_measurement_that_says_nothing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Measurement(*arguments)


def test_the_environment_lists_what_a_reader_needs(monkeypatch):
    monkeypatch.setenv("KERNELS_BACKEND", "torch")
    env = environment()
    assert {
        "commit",
        "dirty",
        "gpu",
        "driver",
        "cpu",
        "cores",
        "python",
        "torch",
        "triton",
        "numba",
        "numpy",
    } <= env.keys()
    assert {"backend", "backend_override", "link", "device_time", "thp", "thp_alloc"} <= env.keys()
    assert (env["backend"], env["backend_override"]) == ("torch", "torch")
    assert json.loads(json.dumps(env)) == env


def test_reading_records_and_drawing_them_imports_no_torch():
    code = "import sys, experiments.record, paper_figs.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
