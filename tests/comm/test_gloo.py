"""Real processes over gloo: the same bits and bytes as threads, and a rank that dies is named."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from comm.group import Group, TorchGroup, launch, simulate
from tests.comm.workload import ARMS, Work, digest, train

pytestmark = pytest.mark.dist

KIND = {"optimizer": "rowwise_adagrad", "weighted": True, "steps": 2}
WORKS = (
    *(Work(strategy, split, **KIND) for strategy, split in ARMS),
    *(Work(strategy, ahead=1, overlap=True, **KIND) for strategy in ("unique", "hierarchical")),
)


def everything(group: Group, ranks_per_node: int | None) -> tuple[dict[str, list], list[tuple[str, dict]]]:
    """Each collective, and each strategy with a group of its own to count bytes: one launch, for each costs seconds."""
    results = [train(TorchGroup(ranks_per_node), work) for work in WORKS]
    return collectives(group), [(digest(result), result.sent) for result in results]


@pytest.mark.parametrize(("world", "ranks_per_node"), [(2, None), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_processes_give_the_bits_and_bytes_of_threads(world, ranks_per_node):
    handler = signal.getsignal(signal.SIGINT)
    over_gloo = launch(world, everything, ranks_per_node)
    assert signal.getsignal(signal.SIGINT) is handler  # Ctrl-C is a KeyboardInterrupt as before
    expected = simulate(world, collectives)
    assert [of_rank[0] for of_rank in over_gloo] == expected
    for i, work in enumerate(WORKS):
        threads = simulate(world, lambda group, work=work: train(group, work), ranks_per_node)
        assert [of_rank[1][i] for of_rank in over_gloo] == [(digest(result), result.sent) for result in threads], work
    assert not multiprocessing.active_children()


def collectives(group: Group) -> dict[str, list]:
    """Each collective once, ragged and with empty parts."""
    rank, size = group.rank, group.size
    mine = torch.arange(rank * 2.0).view(rank, 2) + 10 * rank  # rank r has r entries
    outgoing = torch.full((sum(range(size)), 2), float(rank))  # rank r is sent r entries
    group.barrier()
    results = {
        "all_to_all": group.all_to_all(outgoing, list(range(size)), [rank] * size, "a"),
        "exchange": group.exchange(torch.arange(size) + 100 * rank, "e"),
        "all_gather": group.all_gather(mine, list(range(size)), "g"),
        "all_reduce": group.all_reduce(torch.arange(5.0) * (rank + 1), "r"),
        "reduce_scatter": group.reduce_scatter(torch.arange(size * 3.0).view(size, 3) * (rank + 1), "s"),
    }
    return {name: value.tolist() for name, value in results.items()} | {
        f"{label} bytes": bytes_.tolist() for label, bytes_ in group.sent.items()
    }


def dies(group: TorchGroup, how: str, when: Path) -> None:
    """Rank 1 ends in the middle of a step; the others wait for it in a collective."""
    group.exchange(torch.zeros(group.size), "before")
    if group.rank == 1:
        when.write_text(str(time.time()))
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        group.stop()
        time.sleep(1)  # the others notice before this rank has failed
        raise ValueError("bad luck on this rank")
    group.exchange(torch.zeros(group.size), "after")


@pytest.mark.parametrize(
    ("how", "message"), [("killed", "rank 1 of 2 died: killed by SIGKILL"), ("raises", "rank 1 of 2 died: .*bad luck")]
)
def test_a_rank_that_dies_ends_the_others_and_is_named(how, message, tmp_path):
    with pytest.raises(RuntimeError, match=message):
        launch(2, dies, how, tmp_path / "when")
    assert time.time() - float((tmp_path / "when").read_text()) < 30
    assert not multiprocessing.active_children()


def waits(group: TorchGroup, ready: Path) -> None:
    group.barrier()
    if group.rank == 0:
        ready.touch()
    time.sleep(60)


@pytest.mark.slow
def test_an_interrupt_ends_every_rank_and_stays_one(tmp_path):
    def interrupt():
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(2, waits, tmp_path / "ready")
    thread.join()
    assert time.monotonic() - begin < 55
    assert not multiprocessing.active_children()
