"""What the `_cpu.py` files share: how they are compiled, the thread layer, prefetch, radix sort, cuts of the work.

Everything is strict IEEE: a compiled loop adds in the order it is written, whatever the vector width, the thread count
or the caller.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

ROWS_AHEAD = 64
"""Rows that the loops prefetch ahead, into the second-level cache: 32 kB of rows of 512 B. The first level holds no
more than that and few requests at once: 16 rows ahead into it gave 0.8 to 0.9 of this speed, 32 to 96 all the same."""

NEAR = 2
"""LLVM's prefetch locality: 3 is the first-level cache, 2 the second."""

INDEX_WORK = 1 << 15
"""Fewest positions a thread is woken for to sort or count them: about a millisecond of work, in several short loops
that each wait for the slowest thread, which on a busy machine costs more than it saves."""

ROW_WORK = 1 << 14
"""Fewest numbers of table rows a thread is woken for: a few microseconds of work."""

DIGIT_BITS = 11
"""Most bits of a radix digit: 2^11 counters of 8 B stay in the first-level cache."""


def _require_thread_layer() -> None:
    """Set Numba's thread layer to OpenMP: `workqueue` aborts when two Python threads run kernels at once."""
    chosen = numba.config.THREADING_LAYER
    try:
        running = numba.threading_layer()
    except ValueError:  # none started yet
        running = None
    if running not in (None, "omp", "tbb") or chosen == "workqueue":
        raise RuntimeError(
            f"backend 'cpu' needs Numba's thread layer 'omp' (or 'tbb'), given {running or chosen!r}: unset "
            "NUMBA_THREADING_LAYER, and import the kernels before other Numba code runs in parallel"
        )
    if running is not None or chosen == "tbb":
        return
    try:
        from numba.np.ufunc import omppool  # noqa: F401 (loads libgomp, which is what may be missing)
    except ImportError as error:
        raise RuntimeError(
            f"backend 'cpu' needs Numba's thread layer 'omp', which cannot be loaded ({error}): install libgomp, "
            "or tbb and set NUMBA_THREADING_LAYER=tbb"
        ) from error
    numba.config.THREADING_LAYER = "omp"


_require_thread_layer()

# Numba's cache notices a change of the compiled function's own file only; these are compiled into others'.
_HERE = Path(__file__).parent
_SHARED = sorted([*_HERE.glob("_numba_*.py"), *_HERE.glob("*/_cpu_*.py"), *_HERE.glob("*/rounding.py")])
_HASH = hashlib.sha256(b"".join(path.read_bytes() for path in _SHARED)).hexdigest()[:12]
_CACHE = _HERE / "__pycache__" / f"cpu-{_HASH}"


def kernel(function: Callable) -> Callable:
    """Compile `function` for parallel runs without the GIL, kept on disk until it or a shared file changes."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_CACHE)
    try:
        return njit(parallel=True, nogil=True, cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before


def helper(function: Callable) -> Callable:
    """As `kernel`, for one thread."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_CACHE)
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before


inlined = njit(nogil=True, error_model="numpy")
"""Compile a function that kernels call: it becomes part of each of them."""


@intrinsic
def _prefetch(typingctx, array, offset):  # noqa: ANN001, ANN202 (Numba types)
    """Ask for the cache line of byte `offset` of the data of `array`; any offset is allowed, nothing is read."""
    signature = types.void(array, types.intp)

    def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function_type)
        address = builder.gep(builder.bitcast(data, pointer), [args[1]])
        builder.call(function, [address, i32(0), i32(NEAR), i32(1)])  # for reading; data
        return context.get_dummy_value()

    return signature, codegen


@inlined
def prefetch_row(table, row):  # noqa: ANN001, ANN202
    """Ask for every cache line of `table[row]`; `table` is [rows, dim] or [rows]."""
    first = row * table.strides[0]
    last = first + table.strides[0]
    while first + 512 <= last:  # eight lines at a time: the compiler unrolls a loop whose length it knows
        for line in range(8):
            _prefetch(table, first + 64 * line)
        first += 512
    while first < last:
        _prefetch(table, first)
        first += 64


@contextmanager
def threads_for(work: int, least: int) -> Iterator[int]:
    """Let kernels run on no more threads than have `least` of `work` each, nor than the caller allows."""
    allowed = numba.get_num_threads()
    threads = max(1, min(allowed, work // least))
    numba.set_num_threads(threads)
    try:
        yield threads
    finally:
        numba.set_num_threads(allowed)


@helper
def cut(starts, threads, per_segment):  # noqa: ANN001, ANN202
    """Cut segments into `threads` runs of about equal work: [threads + 1] segment numbers, first 0, last all.

    Segment s holds the positions starts[s] .. starts[s + 1] - 1; it costs one per position and `per_segment` once.
    """
    segments = len(starts) - 1
    total = starts[segments] + per_segment * segments
    cuts = np.empty(threads + 1, np.int64)
    for t in range(threads + 1):
        low, high = 0, segments  # the first segment with at least t / threads of the work before it
        while low < high:
            middle = (low + high) // 2
            if starts[middle] + per_segment * middle < total * t // threads:
                low = middle + 1
            else:
                high = middle
        cuts[t] = low
    cuts[threads] = segments
    return cuts


def cut_evenly(n: int, threads: int) -> np.ndarray:
    """Cut 0 .. n - 1 into `threads` runs of about equal length: [threads + 1] numbers, first 0, last n."""
    return np.arange(threads + 1) * n // threads


def sort_words(words: np.ndarray, shift: int, bits: int, cuts: np.ndarray) -> np.ndarray:
    """`words` [N] int64 sorted by `bits` bits from bit `shift`, stable; overwrites `words`.

    In passes of about equal digits, one thread to each run of `cuts`.
    """
    passes = -(-bits // DIGIT_BITS)
    spare = np.empty_like(words)
    for i in range(passes):
        first, last = bits * i // passes, bits * (i + 1) // passes
        _radix_pass(words, spare, shift + first, last - first, cuts)
        words, spare = spare, words
    return words


@kernel
def _radix_pass(words, out, shift, bits, cuts):  # noqa: ANN001, ANN202
    """Stable counting sort of `words` by `bits` bits from bit `shift` into `out`; any `cuts` give the same result."""
    threads, buckets = len(cuts) - 1, 1 << bits
    at = np.zeros((threads, buckets), np.int64)
    for t in prange(threads):
        for i in range(cuts[t], cuts[t + 1]):
            at[t, (words[i] >> shift) & (buckets - 1)] += 1
    before = 0
    for bucket in range(buckets):
        for t in range(threads):
            count = at[t, bucket]
            at[t, bucket] = before
            before += count
    for t in prange(threads):
        for i in range(cuts[t], cuts[t + 1]):
            bucket = (words[i] >> shift) & (buckets - 1)
            out[at[t, bucket]] = words[i]
            at[t, bucket] += 1
