"""Groups of ranks: the collectives, over real processes (`TorchGroup`) or threads (`SimGroup`), every byte counted.

Every call to torch.distributed in this project is in this file. Calls block; what runs beside them is the executor's
business (a blocking collective in a thread releases the interpreter). All ranks must make the same calls in the same
order.
"""

import datetime
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from .exchange import Exchange
from .schedule import RESOURCES
from .streams import current_stream


class Group(ABC):
    """`size` ranks, `ranks_per_node` of them to a node, node-major; this one is `rank`.

    `sent[label]` [size] int64 counts the bytes that this rank sent to each other rank under that label (nothing to
    itself); `calls[label, collective]` counts the calls, an all_gather as the all_to_all that it is.
    """

    def __init__(
        self, rank: int, size: int, ranks_per_node: int | None = None, whole: "Group | None" = None,
        members: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.rank, self.size = rank, size
        self.members = tuple(members) or tuple(range(size))  # ranks in the whole group
        self.ranks_per_node = size if ranks_per_node is None else ranks_per_node
        if self.ranks_per_node < 1 or size % self.ranks_per_node:
            raise ValueError(f"ranks_per_node: expected a divisor of {size} ranks, given {self.ranks_per_node}")
        self.sent: dict[str, Tensor] = (
            whole.sent if whole else defaultdict(lambda: torch.zeros(size, dtype=torch.int64))
        )
        self.calls: Counter[tuple[str, str]] = whole.calls if whole else Counter()
        self._channels: dict[str, Any] = {}
        self._parts: list[Group] = []

    def open(self, streams: Sequence[str]) -> None:
        """Give each of `streams` a communicator of its own, here and in the parts: calls from two streams then need no
        common order. All ranks must call it, at the same point; streams named as resources share the first one.
        """
        for stream in sorted(set(streams) - set(RESOURCES) - set(self._channels)):
            self._channels[stream] = self._channel(stream)
        for part in self._parts:
            part.open(streams)

    def _communicator(self, first: Any) -> Any:
        """The one of the stream whose thread this is; `first` unless it has its own."""
        stream = current_stream()
        if not stream or stream in RESOURCES:
            return first
        if stream not in self._channels:
            raise ValueError(f"stream {stream!r}: expected `group.open` to have named it, on all ranks, before it runs")
        return self._channels[stream]

    @abstractmethod
    def _channel(self, stream: str) -> Any:
        """One more communicator of these ranks."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.size // self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """Node of `rank`."""
        return rank // self.ranks_per_node

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int], label: str) -> Tensor:
        """Send `send[r]` leading entries of `x` to each rank r in order; returns what came, rank-major, `receive[r]`
        from r.
        """
        if len(send) != self.size or len(receive) != self.size or sum(send) != len(x) or min(*send, *receive) < 0:
            raise ValueError(
                f"{label}: expected {self.size} splits >= 0 that sum to {len(x)}, given {list(send)}, {list(receive)}"
            )
        entry = x[:1].numel() * x.itemsize if len(x) else 0
        self._count(label, "all_to_all", [n * entry for n in send])
        return self._all_to_all(x.contiguous(), list(send), list(receive))

    def exchange(self, x: Tensor, label: str) -> Tensor:
        """Send row r of `x` [size, ...] to rank r; returns [size, ...], row r from rank r."""
        ones = [1] * self.size
        return self.all_to_all(x, ones, ones, label)

    def all_gather(self, x: Tensor, sizes: Sequence[int], label: str) -> Tensor:
        """Every rank's `x` [sizes[rank], ...], rank-major. Sent directly to each peer: (size - 1) * bytes of x a
        rank.
        """
        copies = x.repeat(self.size, *[1] * (x.ndim - 1))
        return self.all_to_all(copies, [len(x)] * self.size, sizes, label)

    def all_reduce(self, x: Tensor, label: str) -> Tensor:
        """Sum of every rank's `x`, in the order of the library: fast, not canonical. Bytes as in a ring."""
        chunks = [len(part) * x.itemsize for part in torch.tensor_split(x.flatten(), self.size)]
        after, twice = (self.rank + 1) % self.size, (self.rank + 2) % self.size
        bytes_ = 2 * sum(chunks) - chunks[after] - chunks[twice]
        self._count(label, "all_reduce", [bytes_ if r == after else 0 for r in range(self.size)])
        return self._all_reduce(x)

    def reduce_scatter(self, x: Tensor, label: str) -> Tensor:
        """Sum over ranks of row `rank` of their `x` [size, ...], in the order of the library. Bytes as in a ring."""
        after = (self.rank + 1) % self.size
        bytes_ = (self.size - 1) * x[0].numel() * x.itemsize
        self._count(label, "reduce_scatter", [bytes_ if r == after else 0 for r in range(self.size)])
        return self._reduce_scatter(x)

    def _count(self, label: str, collective: str, bytes_: Sequence[int]) -> None:
        self.calls[label, collective] += 1
        counted = torch.tensor(bytes_, dtype=torch.int64)
        counted[self.rank] = 0
        self.sent[label][list(self.members)] += counted

    @cached_property
    def node(self) -> "Group":
        """The ranks of this rank's node. All ranks must ask for it, at the same point."""
        local = self.ranks_per_node
        return self._part([range(node * local, (node + 1) * local) for node in range(self.nodes)], local)

    @cached_property
    def rail(self) -> "Group":
        """The ranks that have this rank's place in every node. All ranks must ask for it, at the same point."""
        return self._part([range(place, self.size, self.ranks_per_node) for place in range(self.ranks_per_node)], 1)

    def _part(self, parts: Sequence[Sequence[int]], ranks_per_node: int) -> "Group":
        part = self._split(parts, ranks_per_node)
        part.open(tuple(self._channels))
        self._parts.append(part)
        return part

    @abstractmethod
    def _split(self, parts: Sequence[Sequence[int]], ranks_per_node: int) -> "Group":
        """The one of `parts`, disjoint lists of ranks, that holds this rank; bytes count with the whole group's."""

    def barrier(self) -> None:
        """Return once every rank is here."""
        self._barrier()

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _all_to_all(self, x: Tensor, send: list[int], receive: list[int]) -> Tensor: ...

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _reduce_scatter(self, x: Tensor) -> Tensor: ...


class PeerLost(RuntimeError):
    """A collective failed under this rank, most likely because another rank died: that one is to be looked at."""


@contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a collective failed, most likely because another rank died: {error}") from error


class TorchGroup(Group):
    """Ranks as processes under torch.distributed: NCCL on GPUs, gloo on CPUs, started by torchrun."""

    def __init__(
        self, ranks_per_node: int | None = None, whole: "TorchGroup | None" = None, members: Sequence[int] = ()
    ) -> None:
        self._processes: Any = dist.new_group(list(members)) if whole else None
        rank, size = dist.get_rank(), dist.get_world_size()
        if whole:
            rank, size = (members.index(rank), len(members)) if rank in members else (0, len(members))
        super().__init__(rank, size, ranks_per_node, whole, members)

    def _channel(self, stream: str) -> Any:
        return dist.new_group(list(self.members), use_local_synchronization=True)

    def _split(self, parts: Sequence[Sequence[int]], ranks_per_node: int) -> "TorchGroup":
        made = [TorchGroup(ranks_per_node, self, part) for part in parts]  # every rank takes part in making each
        return next(group for group, part in zip(made, parts, strict=True) if self.rank in part)

    @staticmethod
    def start(timeout_s: float = 30.0) -> "TorchGroup":
        """Join the process group that torchrun describes in the environment. A peer silent for `timeout_s` is an
        error.
        """
        if "RANK" not in os.environ:
            raise RuntimeError("expected to be started by torchrun (RANK, WORLD_SIZE, MASTER_ADDR are not set)")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
        return TorchGroup(int(os.environ["LOCAL_WORLD_SIZE"]))

    def stop(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    @_peers()
    def _barrier(self) -> None:
        dist.barrier(self._communicator(self._processes))

    @_peers()
    def _all_to_all(self, x: Tensor, send: list[int], receive: list[int]) -> Tensor:
        out = x.new_empty((sum(receive), *x.shape[1:]))
        dist.all_to_all_single(out, x, receive, send, self._communicator(self._processes))
        return out

    @_peers()
    def _all_reduce(self, x: Tensor) -> Tensor:
        out = x.clone()
        dist.all_reduce(out, group=self._communicator(self._processes))
        return out

    @_peers()
    def _reduce_scatter(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x[0])
        dist.reduce_scatter(out, list(x.unbind(0)), group=self._communicator(self._processes))
        return out


_LAUNCHERS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

PATIENCE_S = 5.0
"""How long a rank that lost a peer waits to be ended by the launcher, which names the rank that it sees die first."""


def launch(size: int, run: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `run(group, *args)` on `size` processes of this machine under torchrun's launcher; returns what each
    returned.

    `run`, `args` and the results must pickle. One thread a rank. A rank that dies ends the others; the error names
    it.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=f"{run.__name__}-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="spawn",
        max_restarts=0,
        monitor_interval=0.2,
    )
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with mock.patch.dict(os.environ, one_thread), _signal_handlers_kept():
        try:
            results = elastic_launch(config, rank_main)(run, *args)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise RuntimeError(f"rank {rank} of {size} died: {_cause(failure)}") from error
        except SignalException as error:  # how the launcher ends the ranks on Ctrl-C
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from error
            raise
    return [results[rank] for rank in range(size)]


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """The launcher sets handlers of its own and leaves them: a later Ctrl-C would not be a KeyboardInterrupt."""
    before = {number: signal.getsignal(number) for number in _LAUNCHERS_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # it sets them there only
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


@record
def rank_main(run: Callable[..., Any], *args: Any) -> Any:
    """What a process that torchrun's variables make a rank does: join, `run(group, *args)`, leave.

    An exception also goes to the file TORCHELASTIC_ERROR_FILE. A rank that lost a peer waits first: see `PATIENCE_S`.
    """
    torch.set_num_threads(1)
    group = TorchGroup.start()
    try:
        result = run(group, *args)
    except Exception as error:
        if _is_peer_lost(error):
            time.sleep(PATIENCE_S)
        raise
    group.stop()
    return result


def _is_peer_lost(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, PeerLost) or _is_peer_lost(error.__cause__))


def cause_of_death(exit_code: int, error_file: Path) -> str:
    """What ended a process of `rank_main`, in words: `exit_code` as in subprocess, `error_file` if it left one."""
    return _cause(ProcessFailure(-1, -1, exit_code, str(error_file)))


def _cause(failure: ProcessFailure) -> str:
    """What ended a process, in words."""
    if failure.exitcode < 0:
        return f"killed by {signal.Signals(-failure.exitcode).name}"
    message: Any = failure.message  # a dict for a Python exception, whatever the annotation says
    return message["message"] if isinstance(message, dict) else str(message)


class SimGroup(Group):
    """Ranks as threads of this process: exact and quick, for tests and byte counts. See `simulate`."""

    def __init__(
        self, rank: int, size: int, ranks_per_node: int | None, shared: Exchange, whole: "SimGroup | None" = None,
        members: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(rank, size, ranks_per_node, whole, members)
        self._first = shared

    @property
    def _shared(self) -> Exchange:
        return self._communicator(self._first)

    def _channel(self, stream: str) -> Any:
        return self._first.part(stream, self.size)

    def _split(self, parts: Sequence[Sequence[int]], ranks_per_node: int) -> "SimGroup":
        members = next(tuple(part) for part in parts if self.rank in part)
        shared = self._first.part(members, len(members))
        return SimGroup(members.index(self.rank), len(members), ranks_per_node, shared, self, members)

    def _barrier(self) -> None:
        self._shared.barrier.wait()

    def _post(self, value: Any) -> list[Any]:
        """Every rank's `value`. The second barrier keeps a fast rank from overwriting what a slow one still reads."""
        self._shared.slots[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.slots)
        self._shared.barrier.wait()
        return values

    def _all_to_all(self, x: Tensor, send: list[int], receive: list[int]) -> Tensor:
        arrived = [parts[self.rank] for parts in self._post(torch.split(x, send))]
        if [len(part) for part in arrived] != receive:
            raise ValueError(f"rank {self.rank}: expected {receive} entries, given {[len(part) for part in arrived]}")
        out = torch.cat(arrived)
        self._shared.barrier.wait()  # the sender may reuse its buffer only once everybody has copied
        return out

    def _all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._post(x.clone())).sum(0)

    def _reduce_scatter(self, x: Tensor) -> Tensor:
        return torch.stack([other[self.rank] for other in self._post(x.clone())]).sum(0)


def simulate(
    size: int, run: Callable[[SimGroup], Any], ranks_per_node: int | None = None, timeout_s: float = 60.0
) -> list[Any]:
    """Run `run(group)` on `size` ranks as threads; returns what each returned. The first rank that fails is named."""
    shared = Exchange(size, timeout_s)
    results: list[Any] = [None] * size
    failures: list[tuple[int, BaseException]] = []

    def rank_main(rank: int) -> None:
        numba.set_num_threads(1)  # ranks share the machine
        try:
            results[rank] = run(SimGroup(rank, size, ranks_per_node, shared))
        except BaseException as error:
            failures.append((rank, error))
            shared.abort()

    threads = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        rank, error = failures[0]
        raise RuntimeError(f"rank {rank} of {size} failed: {type(error).__name__}: {error}") from error
    return results
