"""Which stream the calling thread runs: a group sends over that stream's communicator.

The executor's business; a phase need not know on which stream it is.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()


@contextmanager
def on_stream(name: str) -> Iterator[None]:
    """Within it, the calling thread runs the stream `name`."""
    before = current_stream()
    _here.name = name
    try:
        yield
    finally:
        _here.name = before


def current_stream() -> str:
    """The calling thread's stream; "" outside any."""
    return getattr(_here, "name", "")
