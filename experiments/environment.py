"""Where a record was made: commit, machine, versions and switches. Imports torch when called, not before."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from experiments.record import Value

ROOT = Path(__file__).parents[1]
RESULTS = ("experiments/results", "paper_figs/out")
"""What a run itself may change, so it does not make the checkout dirty."""


def environment() -> dict[str, Value]:
    """The environment of a run, collected once. An experiment that shapes links or compute says so in its own `env`.

    commit and dirty (changes other than results) of this checkout; gpu and driver; cpu model and the cores this process
    may use; versions; backend (what the kernels run by default here) and backend_override (KERNELS_BACKEND); thp
    (Linux's transparent huge page mode), thp_alloc (torch's huge-page switch) and omp_wait_policy (whether idle threads
    spin). `none` stands for what is not there.
    """
    import torch

    from kernels import _backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "commit": _git("rev-parse", "HEAD") or "none",
        "dirty": bool(_git("status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in RESULTS))),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else "none",
        "driver": _driver() if device.type == "cuda" else "none",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "triton", "numba", "numpy")},
        "backend": _backend.default(device),
        "backend_override": os.environ.get(_backend.VARIABLE, "none"),
        "link": os.environ.get("CLUSTER_LINK", "unshaped"),  # set for the ranks of experiments/cluster.py
        "device_time": "real",
        "thp": _thp_mode(),
        "thp_alloc": os.environ.get("THP_MEM_ALLOC_ENABLE", "0"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "none"),
    }


def _git(*arguments: str) -> str:
    """Output of a git command on this checkout; empty where this is no git checkout."""
    if not (ROOT / ".git").exists():
        return ""
    run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _thp_mode() -> str:
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return mode.read_text(encoding="utf-8").partition("[")[2].partition("]")[0] if mode.exists() else "none"
