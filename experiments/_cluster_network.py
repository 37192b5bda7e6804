"""The network of an emulated cluster: a namespace a node, one more for the switch, a shaped veth pair between.

Each node has one interface, `net0`, whose other end is a port of a bridge. Both ends send at no more than the rate
(`tc tbf`), so a node sends and receives at the rate at most, like a network card. Inside a node the kernel routes its
own address over loopback.

Everything is inside namespaces whose names begin with `emulated-<pid>-<start time of that process>-`: whoever finds
one whose process is gone may remove it.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "net0"
BURST = "128kb"  # more than the 64 KiB that the kernel hands over at once
LIMIT = "3000000"  # bytes that queue before any is dropped
MAX_NODES = 254

_PREFIX = "emulated"
_NAMESPACES = Path("/run/netns")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_numbers = itertools.count()


def missing() -> list[str]:
    """What this machine lacks to build a network, in words; nothing if it can."""
    if sys.platform != "linux":
        return [f"Linux (this is {sys.platform})"]
    lacks = [f"{tool} (package iproute2)" for tool in ("ip", "tc") if shutil.which(tool) is None]
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    rights = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return lacks + ([f"root ({' and '.join(rights)})"] if rights else [])


@dataclass(frozen=True)
class Network:
    """A network that stands. Made by `network`."""

    name: str

    def node(self, node: int) -> str:
        """Namespace of a node."""
        return f"{self.name}-n{node}"

    @property
    def switch(self) -> str:
        """Namespace of the bridge; its port `p<node>` leads to that node."""
        return f"{self.name}-switch"


@contextmanager
def network(nodes: int, rate: str) -> Iterator[Network]:
    """A network of `nodes`, removed at the end with every process still in it, whatever ended it.

    Raises:
        RuntimeError: `ip` or `tc` failed; the message has its command and its words.
    """
    remove_leftovers()
    net = Network(f"{_PREFIX}-{os.getpid()}-{_start_time(os.getpid())}-{next(_numbers)}")
    try:
        _build(net, nodes, rate)
        yield net
    finally:
        with undisturbed():
            _remove(net.name + "-")


def shape(rate: str, interface: str, namespace: str | None = None) -> None:
    """Let `interface`, of this namespace or another, send at no more than `rate` from now on."""
    where = () if namespace is None else ("-n", namespace)
    tool("tc", *where, "qdisc", "replace", "dev", interface, "root", "tbf",
         "rate", rate, "burst", BURST, "limit", LIMIT)  # fmt: skip


def remove_leftovers() -> None:
    """Remove the networks of processes that are gone, with what still runs in them."""
    for name in _existing(f"{_PREFIX}-"):
        pid, started = name.split("-")[1:3]
        if _start_time(int(pid)) != int(started):
            _remove(name)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP do not cut this short (they reach the main thread only)."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _handlers(dict.fromkeys(numbers, signal.SIG_IGN)):
        yield


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that what was built is removed."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    with _handlers({signal.SIGTERM: leave, signal.SIGHUP: leave}):
        yield


@contextmanager
def _handlers(handlers: dict[signal.Signals, "signal._HANDLER"]) -> Iterator[None]:
    """Set these signal handlers for a while; only the main thread may, and only it is interrupted by signals."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def tool(*command: str) -> str:
    """Output of `ip` or `tc`. It is out of reach of a terminal's Ctrl-C: no half-done steps."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _build(net: Network, nodes: int, rate: str) -> None:
    quiet = ("addrgenmode", "none")  # no IPv6 chatter: counters are held against counted bytes
    tool("ip", "netns", "add", net.switch)
    tool("ip", "-n", net.switch, "link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
    tool("ip", "-n", net.switch, "link", "set", "switch", *quiet, "up")
    for node in range(nodes):
        name, port = net.node(node), f"p{node}"
        tool("ip", "netns", "add", name)
        tool("ip", "-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", net.switch)
        tool("ip", "-n", net.switch, "link", "set", port, *quiet, "master", "switch", "up")
        tool("ip", "-n", name, "address", "add", f"{address(node)}/24", "dev", INTERFACE)
        tool("ip", "-n", name, "link", "set", INTERFACE, *quiet, "up")
        tool("ip", "-n", name, "link", "set", "lo", "up")
        shape(rate, INTERFACE, name)
        shape(rate, port, net.switch)


def address(node: int) -> str:
    """IP address of a node; nothing outside its network sees it."""
    return f"10.0.0.{node + 1}"


def _remove(prefix: str) -> None:
    """Remove every namespace whose name begins with `prefix`, and what runs in it; another process may be at it too."""
    for name in _existing(prefix):
        try:
            for pid in tool("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            tool("ip", "netns", "delete", name)  # its veth pair and rates go with it
        except RuntimeError:
            if (_NAMESPACES / name).exists():
                raise


def _existing(prefix: str) -> list[str]:
    return [path.name for path in sorted(_NAMESPACES.glob(f"{prefix}*"))]


def _start_time(pid: int) -> int | None:
    """When a process began, in ticks since boot, which tells it from a later one of the same id; None if it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])
