"""What the threads of one simulated group share. See `comm.group.SimGroup`."""

import threading
from typing import Any


class Exchange:
    """What the threads of one simulated group share: a slot for each rank, and a barrier around reading them."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self._timeout_s, self._parts, self._lock = timeout_s, {}, threading.Lock()

    def part(self, key: Any, size: int) -> "Exchange":
        """What `size` ranks that ask for `key` share: the first to ask makes it."""
        with self._lock:
            return self._parts.setdefault(key, Exchange(size, self._timeout_s))

    def abort(self) -> None:
        """End every wait with an error."""
        with self._lock:
            parts = list(self._parts.values())
        self.barrier.abort()
        for part in parts:
            part.abort()
