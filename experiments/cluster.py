"""An emulated cluster: real processes on one Linux machine, a network namespace a node, a shaped link between nodes.

    python -m experiments.cluster --nodes 2 --ranks-per-node 2 --rate 200mbit -- COMMAND ...

runs COMMAND once per rank with the variables that torchrun sets, forwards what the ranks print with `[rank N]` before
it, and exits with the code of the first rank that fails (128 + the signal that killed it). `run` does the same to a
Python function. Ranks see no GPU: they talk over gloo. Needs root and iproute2; `--no-shaping` does without, on plain
loopback.
"""

import dataclasses
import os
import pickle
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tyro

from experiments._cluster_network import (
    INTERFACE,
    MAX_NODES,
    address,
    ended_by_signals,
    missing,
    network,
    shape,
)
from experiments._cluster_ranks import Rank, RankDied, run_ranks

if TYPE_CHECKING:  # what a rank imports, every rank waits for: no torch and no pandas through this file
    from comm.group import Group
    from experiments.record import Kind

ROOT = Path(__file__).parents[1]
LINK = "CLUSTER_LINK"
"""Variable that tells a rank its links, in the words of `Cluster.link`; records made there carry it."""
_SWITCH = "CLUSTER_SWITCH"
_PORT = 29500  # torchrun's default; free, since a network has its own ports
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`nodes` with `ranks_per_node` ranks each, node-major. A node sends to and receives from the others at `rate`
    at most, in each direction (`200mbit`; kbit, mbit or gbit); without `shaping`, all ranks share plain loopback.

    Raises:
        ValueError: a number below 1, more nodes than addresses, or no such rate.
    """

    nodes: int
    ranks_per_node: int
    rate: str = "200mbit"
    shaping: bool = True

    def __post_init__(self) -> None:
        if not (1 <= self.nodes <= MAX_NODES and self.ranks_per_node >= 1):
            raise ValueError(
                f"expected 1 to {MAX_NODES} nodes and ranks_per_node >= 1, given {self.nodes} and {self.ranks_per_node}"
            )
        if not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", self.rate) or not self.bytes_per_s:
            raise ValueError(f"rate: expected a number and kbit, mbit or gbit, such as 200mbit, given {self.rate!r}")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes per second, in each direction of a node's link."""
        return float(self.rate[:-4]) * _UNITS[self.rate[-4:]] / 8

    @property
    def link(self) -> str:
        """The links in words."""
        return f"{self.nodes}x{self.ranks_per_node} veth {self.rate}" if self.shaping else "loopback"

    @property
    def kind(self) -> "Kind":
        """The kind of records made here: emulated if shaped; what plain loopback does is simply measured."""
        return "emulated" if self.shaping else "measured"

    def env(self) -> dict[str, str | int | float | bool]:
        """What a record made here adds to its environment."""
        return {"link": self.link}


class LinkBytes(NamedTuple):
    """Bytes on a node's link, headers included, since the cluster began."""

    sent: int
    received: int


def available() -> str | None:
    """What this machine lacks to run a shaped cluster, in a sentence that says what to do; None if nothing."""
    lacks = missing()
    if not lacks:
        return None
    return f"an emulated cluster needs {', '.join(lacks)}; shaping=False (--no-shaping) runs on plain loopback"


def run(cluster: Cluster, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(group, *arguments)` on every rank; returns what each returned, in rank order.

    `group` is a TorchGroup that knows the nodes. `function` (importable by its name), arguments and results must
    pickle. One thread a rank. However it ends, processes and network are removed.

    Raises:
        RuntimeError: this machine cannot (see `available`); or a rank died, by name, and the others were ended.
    """
    from comm.group import cause_of_death

    if function.__module__ == "__main__":
        raise ValueError(f"expected a function that ranks can import, given {function.__qualname__} of __main__")
    with tempfile.TemporaryDirectory(prefix="cluster-") as name, _ranks(cluster) as (prefixes, envs):
        folder = Path(name)
        call = pickle.dumps((sys.path, str(Path.cwd()))) + pickle.dumps((function, arguments))
        (folder / "call").write_bytes(call)
        errors = [folder / f"error-{rank}" for rank in range(cluster.size)]
        command = [sys.executable, "-m", "experiments._cluster_call", name]
        ranks = [
            Rank([*prefix, *command], env | {"TORCHELASTIC_ERROR_FILE": str(error)}, ROOT)
            for prefix, env, error in zip(prefixes, envs, errors, strict=True)
        ]
        try:
            run_ranks(ranks)
        except RankDied as death:
            cause = cause_of_death(death.code, errors[death.rank])
            raise RuntimeError(f"{_who(cluster, death.rank)} died: {cause}") from death
        return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(cluster.size)]


def link_bytes() -> LinkBytes:
    """What crossed the link of the node that this rank is on, counted by the kernel. Sum over nodes, not ranks.

    Read it between two barriers: data that others sent already counts, whether or not this rank has asked for it.

    Raises:
        RuntimeError: this process is no rank of a shaped cluster.
    """
    _require_shaped()
    counters = Path("/sys/class/net") / INTERFACE / "statistics"
    return LinkBytes(*(int((counters / f"{way}_bytes").read_text(encoding="utf-8")) for way in ("tx", "rx")))


def change_rate(group: "Group", cluster: Cluster, rate: str) -> Cluster:
    """Give every link another rate; all ranks call this, none while data is on its way. Returns the cluster as it is
    now.

    Raises:
        RuntimeError: this process is no rank of a shaped cluster.
    """
    switch = _require_shaped()
    changed = dataclasses.replace(cluster, rate=rate)
    group.barrier()
    if group.rank % group.ranks_per_node == 0:
        shape(rate, INTERFACE)
        shape(rate, f"p{group.node_of(group.rank)}", switch)
    os.environ[LINK] = changed.link
    group.barrier()
    return changed


def _require_shaped() -> str:
    if _SWITCH not in os.environ:
        raise RuntimeError("expected a rank of a shaped cluster (see experiments.cluster): plain loopback has no links")
    return os.environ[_SWITCH]


@contextmanager
def _ranks(cluster: Cluster) -> Iterator[tuple[list[list[str]], list[dict[str, str]]]]:
    """What comes before each rank's command, and its environment, in rank order; the network stands meanwhile."""
    ranks = range(cluster.size)
    with ended_by_signals():
        if not cluster.shaping:
            port = _free_port()
            yield [[] for _ in ranks], [_env(cluster, rank, "127.0.0.1", port, "lo") for rank in ranks]
            return
        if lacking := available():
            raise RuntimeError(lacking)
        with network(cluster.nodes, cluster.rate) as net:
            prefixes = [["ip", "netns", "exec", net.node(rank // cluster.ranks_per_node)] for rank in ranks]
            envs = [_env(cluster, rank, address(0), _PORT, INTERFACE) | {_SWITCH: net.switch} for rank in ranks]
            yield prefixes, envs


def _env(cluster: Cluster, rank: int, host: str, port: int, interface: str) -> dict[str, str]:
    """What torchrun sets, and what keeps ranks to one thread, gloo to the interface and torch to the CPU."""
    set_here = {
        "RANK": rank,
        "WORLD_SIZE": cluster.size,
        "LOCAL_RANK": rank % cluster.ranks_per_node,
        "LOCAL_WORLD_SIZE": cluster.ranks_per_node,
        "GROUP_RANK": rank // cluster.ranks_per_node,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": 1,
        "NUMBA_NUM_THREADS": 1,
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # else: our addresses have no host names
        LINK: cluster.link,
    }
    return {**os.environ, **{name: str(value) for name, value in set_here.items()}}


def _free_port() -> int:
    """A port of loopback that nobody has now; the kernel hands it out again late."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _who(cluster: Cluster, rank: int) -> str:
    return f"rank {rank} of {cluster.size} (node {rank // cluster.ranks_per_node})"


def main(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    flags, command = arguments[:at], arguments[at + 1 :]
    try:
        cluster = tyro.cli(Cluster, args=flags, prog="python -m experiments.cluster", description=__doc__)
        if not command:
            raise ValueError("expected `-- COMMAND ...` after the flags: what every rank runs")
        return _run_command(cluster, command)
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: every rank was ended and the network removed\n")
        return 130


def _run_command(cluster: Cluster, command: list[str]) -> int:
    with _ranks(cluster) as (prefixes, envs):
        ranks = [
            Rank([*prefix, *command], env | {"PYTHONUNBUFFERED": "1"}, Path.cwd())
            for prefix, env in zip(prefixes, envs, strict=True)
        ]
        try:
            run_ranks(ranks, prefixed=True)
        except RankDied as death:
            sys.stderr.write(f"error: {_who(cluster, death.rank)} died: {death}\n")
            return death.code if death.code > 0 else 128 - death.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
