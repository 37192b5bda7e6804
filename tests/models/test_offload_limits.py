"""Memory that is not there, disks that are full, processes that are killed."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments import memory_limit
from experiments.memory_limit import run_limited
from kernels import Optimizer
from models import memory
from models.cache import CachedStore
from models.host_tier import HostTier
from models.tier import StoreSpec
from tests.models import offload_child


def spec_of(rows: int) -> StoreSpec:
    def initial(some: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(some), 128)

    return StoreSpec("team", rows, 128, torch.float32, Optimizer(), initial, lambda: initial(torch.arange(rows)), str)


def test_a_host_tier_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with pytest.raises(MemoryError, match=r"host tier of 'team': expected at most 1,000,000,000 .*needs 1,040,000,000"):
        HostTier(spec_of(2_000_000), eager=True)
    HostTier(spec_of(2_000_000)).close()  # takes what is written


def test_the_memory_of_the_cgroup_counts(monkeypatch, tmp_path):
    (tmp_path / "used").write_text("1000\n")
    (tmp_path / "limit").write_text("5000\n")
    monkeypatch.setattr(memory, "_cgroup", lambda: [(tmp_path / "used", tmp_path / "limit")])
    assert memory.available() == 4000
    (tmp_path / "limit").write_text("max\n")
    assert memory.available() > 10**6


def test_too_little_address_space_is_named(monkeypatch):
    tier = HostTier(spec_of(1000))
    now = memory._kib("/proc/self/status", "VmSize")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (now + 2**20, now + 2**20))
    with pytest.raises(MemoryError, match=r"cache of 'team': expected at most [\d,]+ bytes \(what `ulimit -v` leaves"):
        CachedStore(tier, 4096, 1000)


def test_a_memory_cgroup_that_cannot_be_made_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_limit, "_own", lambda: (tmp_path / "nowhere", 2))
    with pytest.raises(PermissionError, match="expected the right to make a memory cgroup"):
        run_limited(["true"], 10**9)


def cgroup_or_skip() -> None:
    try:
        run_limited(["true"], 2**28)
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_table_three_times_the_memory_trains_from_a_file(tmp_path):
    cgroup_or_skip()
    limit = 2**20 * 640
    assert 3 * limit < offload_child.ROWS * 1024
    child = [sys.executable, "-m", "tests.models.offload_child"]
    limited = run_limited([*child, "file", str(tmp_path / "rows")], limit)
    assert limited.peak_bytes <= limit
    whole = subprocess.run([*child, "memory"], capture_output=True, text=True, check=True)
    assert limited.output == whole.stdout


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    """A tmpfs of 1 MiB in a mount namespace of its own."""
    if not shutil.which("unshare"):
        pytest.skip("expected `unshare` to make a mount namespace")
    child = f"{sys.executable} -m tests.models.offload_child file {tmp_path}/rows"
    script = f"mount -t tmpfs -o size=1m none {tmp_path} && exec {child}"
    ran = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True, check=False)
    if "mount:" in ran.stderr or "unshare:" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode != 0
    assert "no room for its changed rows in" in ran.stderr
    assert Path(tmp_path).is_dir()
