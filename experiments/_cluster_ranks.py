"""The processes of a cluster: start one a rank, end all when one dies, leave none behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from experiments._cluster_network import undisturbed

POLL_S = 0.05
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Rank:
    """What to start: a command in an environment and a folder."""

    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path


class RankDied(RuntimeError):
    """A rank ended badly, the first to do so: `rank`, and `code` as in subprocess (-9: killed by SIGKILL)."""

    def __init__(self, rank: int, code: int) -> None:
        super().__init__(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        self.rank, self.code = rank, code


def run_ranks(ranks: Sequence[Rank], prefixed: bool = False) -> None:
    """Run every rank to its end, the output line by line with its number before it if `prefixed`.

    However this returns, all are gone, with their process groups. If this process is killed, so are they.

    Raises:
        RankDied: one ended with another code than 0; the others were ended too.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with _output(prefixed) as forward:
        try:
            for number, rank in enumerate(ranks):
                processes.append(_start(rank, subprocess.PIPE if prefixed else None))
                forward(number, processes[-1])
            _wait(processes)
        finally:
            with undisturbed():
                _end(processes)


def _start(rank: Rank, output: int | None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *rank.command],
        env=rank.env,
        cwd=rank.folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and we end them
    )


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Return when all have ended well; a death by signal comes before the errors that others owe to it."""
    while True:
        codes = {rank: _code(process) for rank, process in enumerate(processes)}
        dead = {rank: code for rank, code in codes.items() if code}
        if dead:
            rank = min(dead, key=lambda rank: (dead[rank] > 0, rank))
            raise RankDied(rank, dead[rank])
        if all(code == 0 for code in codes.values()):
            return
        time.sleep(POLL_S)


def _code(process: "subprocess.Popen[bytes]") -> int | None:
    """Exit code, None while it runs. The process stays a zombie, so that its group's id cannot be another's yet."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End all, and their process groups: politely, then by force."""
    for process in processes:
        _kill_group(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(_code(process) is None for process in processes):
        time.sleep(POLL_S)
    for process in processes:
        _kill_group(process, signal.SIGKILL)
        process.wait()


def _kill_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _output(prefixed: bool) -> "Iterator[_Forward]":
    forward = _Forward(prefixed)
    try:
        yield forward
    finally:
        forward.join()


class _Forward:
    """Copies what ranks print to our own output, whole lines at a time."""

    def __init__(self, prefixed: bool) -> None:
        self.prefixed = prefixed
        self.threads: list[threading.Thread] = []
        self.lock = threading.Lock()

    def __call__(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        pairs = ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)) if self.prefixed else ()
        for source, sink in pairs:
            thread = threading.Thread(target=self._copy, args=(source, sink, f"[rank {rank}] ".encode()), daemon=True)
            thread.start()
            self.threads.append(thread)

    def _copy(self, source: IO[bytes], sink: IO[bytes], prefix: bytes) -> None:
        # who reads us may leave (`| head`): the rank is then told the same way, and dies of it
        with source, suppress(BrokenPipeError):
            for line in source:
                with self.lock:
                    sink.write(prefix + line.removesuffix(b"\n") + b"\n")
                    sink.flush()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(GRACE_S)  # a process that left its group may hold the pipe open
