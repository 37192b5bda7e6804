"""Records of a file by number, many in flight: O_DIRECT, so that the page cache neither helps nor grows.

One system call a record, from `depth` threads without the interpreter's lock: at depth 1 a disk gives one access per
latency, at depth 16 several times as many.
"""

import ctypes
import fcntl
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numba
import numpy as np

SECTOR = 512
"""Bytes that offset, length and address of direct transfers are multiples of."""

_libc = ctypes.CDLL(None, use_errno=True)
_signature = (ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int64)
_pread, _pwrite = _libc.pread, _libc.pwrite
for _call in (_pread, _pwrite):
    _call.restype, _call.argtypes = ctypes.c_ssize_t, _signature


@numba.njit(nogil=True)
def _read(fd: int, address: int, record: int, rows: np.ndarray, first: int, last: int) -> int:
    """Records `rows[first:last]` to their places at `address`; the first that did not come whole, or -1."""
    for i in range(first, last):
        if _pread(fd, address + i * record, record, rows[i] * record) != record:
            return i
    return -1


@numba.njit(nogil=True)
def _write(fd: int, address: int, record: int, rows: np.ndarray, first: int, last: int) -> int:
    """The same, from their places to the file."""
    for i in range(first, last):
        if _pwrite(fd, address + i * record, record, rows[i] * record) != record:
            return i
    return -1


class DirectFile:
    """A file of `records` of `record` bytes at `path`, made anew (sparse), which this process alone may open.

    Raises ValueError for a record that is no multiple of 512 bytes, BlockingIOError if another process has the file,
    and OSError if the file system has no O_DIRECT.
    """

    def __init__(self, path: str | os.PathLike, records: int, record: int, depth: int = 16) -> None:
        if record < 1 or record % SECTOR or depth < 1:
            raise ValueError(f"record: expected a multiple of {SECTOR} and depth >= 1, given {record} and {depth}")
        self.path, self.record, self.depth = os.fspath(path), record, depth
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            _lock_alone(self._fd, self.path)
            os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, records * record)
        except BaseException:
            os.close(self._fd)
            raise
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="direct-io")
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def buffer(self, records: int) -> np.ndarray:
        """Room for so many records, [records, record] uint8, aligned as direct transfers need; good until the next."""
        size = max(records, 1) * self.record
        if size > len(self._memory):
            self._memory = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        return np.frombuffer(self._memory, np.uint8, records * self.record).reshape(records, self.record)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Records `rows` [n] int64, [n, record] uint8 in the buffer."""
        buffer = self.buffer(len(rows))
        self._each(_read, rows, buffer)
        return buffer

    def write(self, rows: np.ndarray, buffer: np.ndarray) -> None:
        """Records `rows` [n] int64 from `buffer`, which `self.buffer` gave. Raises OSError (a full disk, say)."""
        self._each(_write, rows, buffer)

    def _each(self, call, rows: np.ndarray, buffer: np.ndarray) -> None:  # noqa: ANN001 (compiled)
        address = buffer.ctypes.data if len(rows) else 0
        cuts = [len(rows) * t // self.depth for t in range(self.depth + 1)]
        parts = [(a, b) for a, b in pairwise(cuts) if a < b]
        ended = [self._pool.submit(call, self._fd, address, self.record, rows, a, b) for a, b in parts]
        failed = [future.result() for future in ended]
        for at in (at for at in failed if at >= 0):
            self._raise(call, int(rows[at]), buffer[at])

    def _raise(self, call, row: int, record: np.ndarray) -> None:  # noqa: ANN001
        """Do what failed once more, by a call that says why; a short transfer has no reason of its own."""
        done = (os.preadv if call is _read else os.pwritev)(self._fd, [record.data], row * self.record)
        if done != self.record:
            raise OSError(f"{self.path}: expected {self.record} bytes at record {row}, got {done}")

    def close(self) -> None:
        """Give back threads, memory and file; what is in it is not kept."""
        self._pool.shutdown()
        os.close(self._fd)


def _lock_alone(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            f"{path}: expected a file that no other process has open (it is rewritten all the time), but one has"
        ) from error
