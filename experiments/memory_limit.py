"""A memory cgroup with a limit, to run a command in: how a table larger than memory is had on any machine.

Version 1 and version 2 of cgroups. `ulimit -v` limits address space, which lazily taken memory does not fill, and
`ulimit -m` nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FILES = {1: ("memory.limit_in_bytes", "memory.max_usage_in_bytes"), 2: ("memory.max", "memory.peak")}
"""Names of the limit and of the most that was used, by version."""


@dataclass(frozen=True)
class Limited:
    """What ran: its output, and the most memory that it took, page cache included."""

    output: str
    peak_bytes: int


def run_limited(command: Sequence[str], limit_bytes: int, timeout_s: float = 600.0) -> Limited:
    """Run `command` with at most `limit_bytes` of memory, without swap.

    Raises PermissionError if no memory cgroup can be made here, with the reason, and RuntimeError if the command fails,
    with the end of its output.
    """
    with _group(limit_bytes) as (folder, version):
        enter = f"import os,sys; open({str(folder / 'cgroup.procs')!r},'w').write(str(os.getpid())); "
        enter += "os.execvp(sys.argv[1], sys.argv[1:])"
        ran = subprocess.run(
            [sys.executable, "-c", enter, *command], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command)}: ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-2000:]}")
        return Limited(ran.stdout, int((folder / FILES[version][1]).read_text()))


@contextmanager
def _group(limit_bytes: int) -> Iterator[tuple[Path, int]]:
    """A new memory cgroup below this process' own, and the version of cgroups; gone afterwards."""
    parent, version = _own()
    folder = parent / f"limited-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / FILES[version][0]).write_text(str(limit_bytes))
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        raise PermissionError(
            f"expected the right to make a memory cgroup in {parent} (root, and cgroups mounted writable), given: "
            f"{error}"
        ) from error
    try:
        yield folder, version
    finally:
        folder.rmdir()


def _own() -> tuple[Path, int]:
    """This process' memory cgroup, and whether it is of version 1 or 2."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/"), 1
    for _, controllers, path in lines:
        if not controllers:
            return ROOT / path.lstrip("/"), 2
    raise PermissionError("expected memory cgroups, given a machine without cgroups")
