"""`python -m experiments.gpu [SECONDS]`: every op held to the truth on a CUDA device, then times.

Most important first, within SECONDS (600): the contract test, compute-sanitizer on a part of it where the tool is
there, then the GPU sets of `kernels/device` and `kernels/step`, one configuration after another while the time left
covers twice the slowest of its experiment so far. Records go to runs/. Needs torch, triton, numba, numpy, einops,
pandas, jaxtyping, pytest and hypothesis, nothing else. Nothing of this ran on a GPU yet.
"""

import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from experiments.environment import ROOT, environment
from experiments.kernels import device, step
from experiments.record import Writer

BUDGET_S = 600.0
CONTRACT = (sys.executable, "-m", "pytest", "-q", "tests/kernels/test_contract.py")
SANITIZED = "triton and pooled_lookup and dim16"
CHECKS_SHARE = 0.5
"""Of the time, for the checks at the most: a run that is only checked says nothing about speed."""
JOBS: tuple[tuple[str, ModuleType], ...] = (("kernels/device", device), ("kernels/step", step))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(budget_s: float = BUDGET_S) -> int:
    """0 if the checks passed and what there was time for ran; exits with what is needed where there is no device."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"make gpu needs a CUDA device and a torch built for it; torch {torch.__version__} sees none here"
        )
    ends = time.monotonic() + budget_s
    good = checked(time.monotonic() + CHECKS_SHARE * budget_s)
    for name, experiment in JOBS:
        with Writer(Path("runs"), name, environment()) as writer:
            for config in within(experiment.GPU, ends):
                good &= timed(experiment, config, writer)
        _say(f"{name}: {writer.count} records -> {writer.path}")
    return int(not good)


def checked(ends: float) -> bool:
    """Run the contract test, then compute-sanitizer on a part of it, until `ends` (time.monotonic) at the latest."""
    commands = [list(CONTRACT)]
    if sanitizer := shutil.which("compute-sanitizer"):
        commands.append([sanitizer, "--error-exitcode=1", *CONTRACT, "-k", SANITIZED])
    else:
        _say("compute-sanitizer is not on PATH: not run")
    good = True
    for command in commands:
        try:
            left = max(ends - time.monotonic(), 1.0)
            good &= subprocess.run(command, cwd=ROOT, check=False, timeout=left).returncode == 0
        except subprocess.TimeoutExpired:
            _say(f"stopped, its time is over: {' '.join(command)}")
            good = False
    return good


def within(
    configs: Iterable[Any],
    ends: float,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], object] = _say,
) -> Iterator[Any]:
    """The configurations in order, each while the time until `ends` covers twice the slowest so far; names the rest."""
    slowest, left_out = 0.0, []
    configs = list(configs)
    for number, config in enumerate(configs, start=1):
        began = clock()
        if ends - began <= 2 * slowest:
            left_out.append(config)
            continue
        say(f"{number} of {len(configs)}, {ends - began:.0f} s left: {config}")
        yield config
        slowest = max(slowest, clock() - began)
    for config in left_out:
        say(f"no time left for {config}")


def timed(experiment: ModuleType, config: Any, writer: Writer) -> bool:
    """Write the measurements of one configuration; False, and why, where it failed."""
    try:
        for measurement in experiment.measure(config):
            writer.write(config, measurement)
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in measurement.metrics.items())
            _say(f"{' '.join(map(str, measurement.point.values()))}: {numbers}")
    except Exception:
        _say(f"failed: {config}\n{traceback.format_exc()}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
