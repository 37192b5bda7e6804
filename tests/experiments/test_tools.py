import subprocess
import sys

import pytest
import torch

from experiments import gpu
from experiments.bench_compare import BOUND, slower
from experiments.environment import ROOT
from experiments.kernels import device


def test_a_benchmark_is_slower_only_if_it_is_in_every_round():
    base = {"steady": 1.0, "slow": 1.0, "noisy": 1.0, "gone": 1.0}
    rounds = [
        (base, {"steady": 1.0, "slow": 1.5, "noisy": 1.5, "new": 9.0}),
        (base, {"steady": BOUND, "slow": 1.3, "noisy": 1.0}),
    ]
    assert slower(rounds) == {"slow": [1.5, 1.3]}


def test_make_gpu_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="make gpu needs a CUDA device"):
        gpu.main()


@pytest.mark.parametrize(
    "verb", ["reproduce", "record", "figs", "bench", "bench-compare", "gpu", "test", "test-slow", "lint"]
)
def test_help_lists_every_verb(verb):
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"make {verb} " in said


def test_what_runs_on_a_gpu_machine_imports_only_what_is_there():
    absent = (
        "tyro",
        "rich",
        "typer",
        "beartype",
        "pyarrow",
        "matplotlib",
        "scipy",
        "sklearn",
        "torchrec",
        "fbgemm_gpu",
    )
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import experiments.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_gpu_configurations_run_in_order_while_their_time_is_left():
    now, ran, said = [0.0], [], []
    seconds = {"a": 10.0, "b": 30.0, "c": 5.0, "d": 5.0}
    for config in gpu.within(seconds, ends=110.0, clock=lambda: now[0], say=said.append):
        ran.append(config)
        now[0] += seconds[config]
    assert ran == ["a", "b", "c", "d"]  # before d 65 s are left, more than twice 30
    now[0], ran = 50.0, []
    for config in gpu.within(seconds, ends=110.0, clock=lambda: now[0], say=said.append):
        ran.append(config)
        now[0] += seconds[config]
    assert ran == ["a", "b"]
    assert said[-2:] == ["no time left for c", "no time left for d"]


@pytest.mark.parametrize("tables", ["single", "dcnv2", "t200", "t510"])
@pytest.mark.parametrize("gigabytes", [1, 86, 4000])
def test_tables_of_a_card_take_no_more_than_they_are_given(tables, gigabytes):
    config = device.Config(tables=tables, dtype="float16")
    shapes, scale = device.shapes_of(config, gigabytes << 30)
    took = sum(rows * (2 * dim + 4) for rows, _, dim in shapes)
    assert took <= gigabytes << 30
    assert all(rows >= 2 for rows, _, _ in shapes)
    if tables != "single" and scale < 1:
        assert took > 0.9 * (gigabytes << 30)


def test_the_gpu_sets_hold_what_was_promised_most_important_first():
    sets = {config.tables for config in device.GPU}
    assert sets == {"single", "dcnv2", "t200", "t510"}
    assert {c.dim for c in device.GPU} == {64, 128, 256}
    assert {c.hotness for c in device.GPU} == {1, 20, 100}
    assert {c.dtype for c in device.GPU} == {"float32", "float16"}
    assert device.GPU[0] == device.Config(memory_bytes=8 << 30)
    assert all(c.memory_bytes == 0 and c.share == 0.6 for c in device.GPU if c.tables != "single")
