import subprocess
import sys

import pytest
import torch

from experiments import gpu
from experiments.bench_compare import BOUND, slower
from experiments.environment import ROOT


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


def test_what_runs_on_a_gpu_machine_needs_no_command_line_package():
    code = "import sys; sys.modules['tyro'] = sys.modules['beartype'] = None; import experiments.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
