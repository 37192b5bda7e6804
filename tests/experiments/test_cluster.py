"""The emulated cluster: what its links let through, and that nothing is left of it however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from comm.group import TorchGroup
from experiments import _cluster_network
from experiments.cluster import Cluster, available, change_rate, link_bytes, main, run
from experiments.environment import ROOT

# namespaces and rates need root and iproute2; without them the same ranks run unshaped, in the tests not marked
NEEDS_ROOT = pytest.mark.skipif(available() is not None, reason=str(available()))
pytestmark = pytest.mark.dist
FLAGS = ["--nodes", "2", "--ranks-per-node", "2", "--rate", "50mbit"]
BURST = 131072  # bytes that a tbf of 128 kb lets through at once


def namespaces(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"emulated-{pid}-*")]


def alive(pids: list[int]) -> list[int]:
    """Those still running; a zombie that init has not collected yet is not."""
    stats = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [
        pid for pid, stat in stats.items() if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    ]


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def start(script: str, folder: Path) -> "subprocess.Popen[str]":
    """The command line in a process of its own, every rank with its pid in `folder`, once all are there."""
    command = [sys.executable, "-m", "experiments.cluster", *FLAGS, "--", "sh", "-c", f"echo $$ > $0/$RANK; {script}"]
    process = subprocess.Popen(
        [*command, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: len(pids(folder)) == 4)
    assert len(namespaces(process.pid)) == 3  # two nodes and the switch
    return process


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("[0-9]") if path.read_text()]


def moved(group: TorchGroup, peers: list[int]) -> dict:
    """Send 300 kB to each of `peers`; seconds until all have everything, and what crossed this node's link."""
    counts = [int(rank in peers) for rank in range(group.size)]
    x = torch.zeros(len(peers), 75_000)
    group.barrier()
    before = link_bytes()
    group.barrier()  # nobody sends before all have read
    begin = time.perf_counter()
    group.all_to_all(x, counts, counts, "x")
    group.barrier()
    seconds, after = time.perf_counter() - begin, link_bytes()
    return {"seconds": seconds, "sent": after.sent - before.sent, "received": after.received - before.received}


def transfers(group: TorchGroup, cluster: Cluster) -> dict:
    node = range(group.node_of(group.rank) * 2, group.node_of(group.rank) * 2 + 2)
    others = [rank for rank in range(4) if rank not in node]
    found = {"rank": group.rank, "nodes": group.nodes, "between": moved(group, others), "inside": moved(group, [*node])}
    faster = change_rate(group, cluster, "400mbit")
    return found | {"faster": moved(group, others), "link": faster.link}


@NEEDS_ROOT
def test_bytes_between_nodes_keep_to_the_rate_and_bytes_inside_a_node_stay_there():
    cluster = Cluster(2, 2, "50mbit")
    results = run(cluster, transfers, cluster)
    assert [(r["rank"], r["nodes"], r["link"]) for r in results] == [(i, 2, "2x2 veth 400mbit") for i in range(4)]
    payload = 2 * 2 * 300_000  # from each rank of a node to each of the other
    for arm, bytes_per_s in (("between", 50e6 / 8), ("faster", 400e6 / 8)):
        for result in results:
            # 66 bytes of headers a packet of 1448, the acknowledgements of as many, and the counts: below 5 %
            assert payload <= result[arm]["sent"] <= 1.05 * payload
            assert payload <= result[arm]["received"] <= 1.05 * payload
        slowest = max(result[arm]["seconds"] for result in results)  # of the rank that was first out of the barrier
        assert slowest >= (payload - BURST) / bytes_per_s
        assert slowest < 10 * payload / bytes_per_s + 1  # far off, however loaded the machine: no link at all
    # what crosses are the barrier and empty messages
    assert all(result["inside"]["sent"] < 0.02 * payload for result in results)
    assert not namespaces(os.getpid())


@NEEDS_ROOT
def test_a_command_runs_once_per_rank_as_under_torchrun(capfd):
    script = (
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $GLOO_SOCKET_IFNAME $CLUSTER_LINK" >&$1'
    )
    for stream in (1, 2):
        assert main([*FLAGS, "--", "sh", "-c", script, "sh", str(stream)]) == 0
        assert sorted(capfd.readouterr()[stream - 1].splitlines()) == [
            f"[rank {rank}] {rank} 4 {rank % 2} 2 10.0.0.1 net0 2x2 veth 50mbit" for rank in range(4)
        ]
    assert not namespaces(os.getpid())


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("end", "others", "code", "cause"),
    [("exit 7", "true", 7, "exit code 7"), ("kill -9 $$", "trap '' TERM", 137, "killed by SIGKILL")],
)
def test_a_rank_that_fails_is_named_and_ends_the_others(end, others, code, cause, tmp_path, capfd):
    script = f"echo $$ > $0/$RANK; {others}; [ $RANK = 2 ] && sleep 0.5 && {end}; sleep 60"
    begin = time.monotonic()
    assert main([*FLAGS, "--", "sh", "-c", script, str(tmp_path)]) == code
    assert time.monotonic() - begin < 30
    assert f"rank 2 of 4 (node 1) died: {cause}" in capfd.readouterr().err
    assert len(pids(tmp_path)) == 4
    assert not alive(pids(tmp_path))
    assert not namespaces(os.getpid())


@NEEDS_ROOT
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_behind(number, code, tmp_path):
    process = start("sleep 60", tmp_path)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert not alive(pids(tmp_path))
    assert not namespaces(process.pid)


@NEEDS_ROOT
def test_the_next_cluster_removes_what_a_killed_one_left_and_no_living_one(tmp_path, capfd):
    folders = [tmp_path / name for name in ("killed", "living")]
    for folder in folders:
        folder.mkdir()
    killed = start("setsid sleep 61 & echo $! > $0/child-$RANK; sleep 60", folders[0])
    until(lambda: len(list(folders[0].glob("child-*"))) == 4)
    living = start("until [ -e $0/go ]; do sleep 0.05; done; echo went", folders[1])
    killed.kill()
    killed.communicate(timeout=20)
    until(lambda: not alive(pids(folders[0])))  # the kernel ends the ranks with their owner
    children = [int(path.read_text()) for path in folders[0].glob("child-*")]
    assert len(namespaces(killed.pid)) == 3

    assert main([*FLAGS, "--", "true"]) == 0

    assert not namespaces(killed.pid)
    until(lambda: not alive(children))
    assert len(namespaces(living.pid)) == 3
    (folders[1] / "go").touch()
    assert sorted(living.communicate(timeout=20)[0].splitlines()) == [f"[rank {rank}] went" for rank in range(4)]
    assert living.returncode == 0
    assert not namespaces(living.pid)


def dies(group: TorchGroup, how: str) -> None:
    group.barrier()
    if group.rank == 2:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("bad luck on this rank")
    group.barrier()


@NEEDS_ROOT
@pytest.mark.slow
@pytest.mark.parametrize(("how", "cause"), [("killed", "killed by SIGKILL"), ("raises", ".*bad luck on this rank")])
def test_a_function_that_fails_on_a_rank_is_named(how, cause):
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"rank 2 of 4 \(node 1\) died: {cause}"):
        run(Cluster(2, 2), dies, how)
    assert time.monotonic() - begin < 30
    assert not namespaces(os.getpid())


def greets(group: TorchGroup, word: str) -> tuple:
    with pytest.raises(RuntimeError, match="plain loopback has no links"):
        link_bytes()
    return word, group.rank, group.ranks_per_node, int(group.all_reduce(torch.ones(1), "x"))


@pytest.mark.slow
def test_without_shaping_it_runs_on_plain_loopback():
    assert run(Cluster(2, 1, shaping=False), greets, "hello") == [("hello", 0, 1, 2), ("hello", 1, 1, 2)]


def test_without_iproute2_it_refuses_and_says_so(monkeypatch, capfd):
    monkeypatch.setattr(_cluster_network.shutil, "which", lambda tool: None)
    assert main([*FLAGS, "--", "true"]) == 1
    error = capfd.readouterr().err
    assert "ip (package iproute2), tc (package iproute2)" in error
    assert "--no-shaping" in error
    assert main([*FLAGS, "--no-shaping", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $CLUSTER_LINK"]) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == [f"[rank {rank}] {rank} {rank % 2} loopback" for rank in range(4)]


@NEEDS_ROOT
def test_without_root_it_refuses_and_says_so():
    command = [sys.executable, "-m", "experiments.cluster", *FLAGS, "--", "true"]
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-net_admin", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "needs root (CAP_NET_ADMIN)" in done.stderr


def test_a_cluster_says_what_its_records_are():
    shaped, plain = Cluster(2, 4, "1.5gbit"), Cluster(2, 4, shaping=False)
    assert (shaped.size, shaped.bytes_per_s, shaped.kind) == (8, 1.5e9 / 8, "emulated")
    assert shaped.env() == {"link": "2x4 veth 1.5gbit"}
    assert (plain.kind, plain.env()) == ("measured", {"link": "loopback"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "expected 1 to 254 nodes .* given 0 and 2"),
        ({"nodes": 300}, "expected 1 to 254 nodes"),
        ({"ranks_per_node": 0}, "ranks_per_node >= 1"),
        ({"rate": "200"}, "such as 200mbit, given '200'"),
        ({"rate": "0mbit"}, "given '0mbit'"),
    ],
)
def test_no_such_cluster_is_refused(arguments, message, capsys):
    with pytest.raises(ValueError, match=message):
        Cluster(**{"nodes": 2, "ranks_per_node": 2} | arguments)


def test_a_command_line_without_command_is_refused(capsys):
    assert main(FLAGS) == 1
    assert "expected `-- COMMAND" in capsys.readouterr().err
