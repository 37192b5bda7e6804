"""`python -m experiments.gpu [SECONDS]`: the contract test of every op on a CUDA device, then times; without tyro.

Most important first, within SECONDS (600): contract test, compute-sanitizer on a part of it where the tool is there,
then `kernels/step`'s GPU set, one configuration after another while there is time. Nothing of this ran on a GPU yet.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from experiments.config import load
from experiments.environment import ROOT
from experiments.kernels import step
from experiments.run import Job, report, run

BUDGET_S = 600.0
CONTRACT = (sys.executable, "-m", "pytest", "-q", "tests/kernels/test_contract.py")
SANITIZED = "triton and pooled_lookup and dim16"


def main(budget_s: float = BUDGET_S) -> int:
    """0 if the tests passed and what there was time for ran; exits with what is needed where there is no device."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"make gpu needs a CUDA device and a torch built for it; torch {torch.__version__} sees none here"
        )
    began, console = time.monotonic(), Console()
    checks = [list(CONTRACT)]
    if sanitizer := shutil.which("compute-sanitizer"):
        checks.append([sanitizer, "--error-exitcode=1", *CONTRACT, "-k", SANITIZED])
    else:
        console.print("compute-sanitizer is not on PATH: not run")
    good = all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in checks)
    experiment = load("kernels/step")
    for config in step.GPU:
        spent = time.monotonic() - began
        if spent > budget_s:
            console.print(f"{spent:.0f} s of {budget_s:.0f} spent: left out {config} and what follows")
            break
        good &= report(run([Job(experiment, (config,))], Path("runs"), console), console)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
