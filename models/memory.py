"""Whether an allocation fits, asked before it is made: Linux promises memory that it does not have."""

import resource
from pathlib import Path


def require_memory(bytes_: int, what: str, touched: bool) -> None:
    """Raise MemoryError, naming `what`, unless `bytes_` more can be had: as address space (`ulimit -v`), and if all of
    them will be `touched`, as memory too (what the machine has left, and the memory cgroup allows).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        left = limit - _kib("/proc/self/status", "VmSize")
        if bytes_ > left:
            raise MemoryError(
                f"{what}: expected at most {left:,} bytes (what `ulimit -v` leaves of address space), needs "
                f"{bytes_:,}: raise the limit, or take fewer lines or rows"
            )
    left = available()
    if touched and bytes_ > left:
        raise MemoryError(
            f"{what}: expected at most {left:,} bytes (memory available), needs {bytes_:,}: use a FileTier, more "
            "ranks, or rows that are made when they are first touched"
        )


def available() -> int:
    """Bytes of memory that this process can still take: of the machine, or of its memory cgroup if that has less."""
    left = _kib("/proc/meminfo", "MemAvailable")
    for used, limit in _cgroup():
        if limit.is_file() and (most := limit.read_text().strip()) != "max":
            left = min(left, int(most) - int(used.read_text()))
    return max(left, 0)


def _cgroup() -> list[tuple[Path, Path]]:
    """Usage and limit files of the process' memory cgroup, version 1 and version 2."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = Path("/sys/fs/cgroup") / path.lstrip("/")
            found.append((folder / "memory.current", folder / "memory.max"))
        elif "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory") / path.lstrip("/")
            found.append((folder / "memory.usage_in_bytes", folder / "memory.limit_in_bytes"))
    return found


def _kib(path: str, key: str) -> int:
    """Bytes behind `key:` in a file of /proc, which counts in KiB."""
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
