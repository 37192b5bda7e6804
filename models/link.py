"""The link between a device and the slower tier behind it, paced on a machine that has none.

One token bucket per direction, shared by everything that moves rows: demand and prefetch wait for each other as they
would on the wire. Times that such a link makes are of kind `emulated`.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Link:
    """`bytes_per_s` each way, and `row_s` seconds more for each row (a request's latency over those in flight).

    With `duplex` each direction has a bucket of its own, else both share one. A transfer holds its directions from when
    they are free; the caller's own copying is part of that time, and the rest of it is slept. Nothing is saved up while
    the link is idle. Raises ValueError unless `bytes_per_s` > 0 and `row_s` >= 0.
    """

    def __init__(self, bytes_per_s: float, row_s: float = 0.0, duplex: bool = False) -> None:
        if not bytes_per_s > 0 or not row_s >= 0:
            raise ValueError(f"link: expected bytes_per_s > 0 and row_s >= 0, given {bytes_per_s} and {row_s}")
        self.bytes_per_s, self.row_s, self.duplex = bytes_per_s, row_s, duplex
        self._free = [0.0, 0.0]  # when each direction is free again, on the clock of `time.perf_counter`
        self._lock = threading.Lock()

    def seconds(self, rows: int, bytes_: int) -> float:
        """How long one direction is held."""
        return bytes_ / self.bytes_per_s + rows * self.row_s

    @contextmanager
    def transfer(self, inward: tuple[int, int], outward: tuple[int, int]) -> Iterator[None]:
        """Hold the link for (rows, bytes) to the device and from it; returns when both are over."""
        times = [self.seconds(*inward), self.seconds(*outward)]
        with self._lock:
            now = time.perf_counter()
            if self.duplex:
                self._free = [max(now, free) + taken for free, taken in zip(self._free, times, strict=True)]
                end = max((free for free, taken in zip(self._free, times, strict=True) if taken), default=now)
            else:
                end = max(now, *self._free) + sum(times) if any(times) else now
                self._free = [max(end, free) for free in self._free]
        yield
        rest = end - time.perf_counter()
        if rest > 0:
            time.sleep(rest)

    def env(self) -> dict[str, float | bool | str]:
        """What a record says of the link."""
        return {
            "host_link": "token bucket",
            "host_link_bytes_per_s": self.bytes_per_s,
            "host_link_row_s": self.row_s,
            "host_link_duplex": self.duplex,
        }
