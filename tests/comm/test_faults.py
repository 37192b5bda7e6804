"""kill -9 of a rank in the middle of a step of a running cluster: who died is named, and nobody is left waiting."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comm.group import TorchGroup
from comm.plan import Plan
from comm.schedule import Phase, Schedule
from experiments.cluster import Cluster, available, run
from kernels import Bags, TableSpec
from models.embedding import ShardedEmbedding
from models.executor import Executor

# namespaces and rates need root and iproute2; without them the same ranks run unshaped, in the tests not marked
NEEDS_ROOT = pytest.mark.skipif(available() is not None, reason=str(available()))
pytestmark = pytest.mark.dist
VICTIM = 1
BATCH, DIM = 4096, 64
"""Partial sums of a megabyte for each rank: between two nodes of two ranks, 0.7 s at 50 Mbit/s."""
MIDWAY_S = 0.1
COMPUTE = ("gather", "owner_reduce")
NETWORK = ("keys", "send", "grad_send")


def killed_in(phase: Phase, midway: bool) -> Phase:
    """The phase, in which this rank kills itself: as it begins, so that the others are in it alone, or midway."""

    def kill(*_values):
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_midway(*values):
        threading.Timer(MIDWAY_S, kill).start()
        return phase.run(*values)

    return replace(phase, run=kill_midway if midway else kill)


def dies_in(group: TorchGroup, name: str, midway: bool, folder: Path) -> None:
    """One step; the victim is killed in its phase `name`, the others write what that did to them and when."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # else the launcher may end them before they have noticed
    plan = Plan.uniform((TableSpec("t", 1000, DIM),), "rowwise", group.size)
    embedding = ShardedEmbedding(plan, group)
    phases = (*embedding.forward_phases(), *embedding.backward_phases())
    if group.rank == VICTIM:
        phases = tuple(killed_in(p, midway) if p.name.endswith(f".{name}") else p for p in phases)
    bags = Bags(torch.arange(BATCH) % 1000, torch.arange(BATCH + 1))
    frame = {"step": 0, "lr": 0.1, "training": True, "bags": bags, "pooled_grad": torch.ones(BATCH, DIM)}
    (folder / f"pid-{group.rank}").write_text(str(os.getpid()))
    group.barrier()
    try:
        Executor().run(Schedule(phases, tuple(frame)), frame)
        group.barrier()  # who dies after the last exchange is missed here
    except RuntimeError as error:
        (folder / f"error-{group.rank}").write_text(str(error))
        raise


def assert_named_and_gone(cluster: Cluster, name: str, midway: bool, folder: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"rank {VICTIM} of {cluster.size} .* died: killed by SIGKILL"):
        run(cluster, dies_in, name, midway, folder)
    assert time.monotonic() - begin < 30  # the start of the ranks, most of it, included
    pids = [int(path.read_text()) for path in folder.glob("pid-*")]
    assert len(pids) == cluster.size
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not list(Path("/run/netns").glob(f"emulated-{os.getpid()}-*"))
    # who waits for a survivor, not for the victim, is ended by the launcher before it has heard
    errors = [path.read_text() for path in folder.glob("error-*")]
    assert errors
    assert all("another rank died" in error for error in errors), errors
    if midway:
        # what the victim handed to its kernel still arrives, so its loss may show one exchange later, or at the end
        before = NETWORK[: NETWORK.index(name)]
        assert not any(f".{earlier}' failed" in error for error in errors for earlier in before), errors
    elif name in NETWORK:
        assert any(f".{name}' failed" in error for error in errors), errors


def test_a_rank_killed_in_a_step_is_named_and_the_others_name_the_phase(tmp_path):
    assert_named_and_gone(Cluster(2, 1, shaping=False), "send", False, tmp_path)


@NEEDS_ROOT
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "midway"),
    [*((name, False) for name in (*COMPUTE, *NETWORK)), ("send", True), ("grad_send", True)],
)
def test_a_rank_killed_in_any_phase_of_a_shaped_cluster_leaves_nothing(name, midway, tmp_path):
    assert_named_and_gone(Cluster(2, 2, "50mbit"), name, midway, tmp_path)
