"""`python -m experiments.gpu`: the contract test of every op, then kernels/step, on a CUDA device; without tyro."""

import subprocess
import sys
from pathlib import Path

import torch
from rich.console import Console

from experiments.config import load
from experiments.environment import ROOT
from experiments.run import Job, report, run


def main() -> int:
    """0 if the tests passed and the experiment ran; exits with what is needed where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"make gpu needs a CUDA device and a torch built for it; torch {torch.__version__} sees none here"
        )
    tests = subprocess.run([sys.executable, "-m", "pytest", "tests/kernels/test_contract.py"], cwd=ROOT, check=False)
    console = Console()
    step = load("kernels/step")
    good = report(run([Job(step, step.sets["laptop"], step.budget_s)], Path("runs"), console), console)
    return int(not (good and tests.returncode == 0))


if __name__ == "__main__":
    sys.exit(main())
