"""What the `_cpu.py` files share: how they are compiled, the thread layer, prefetch, radix sort, sums of segments.

Everything but `dot` is strict IEEE: a compiled loop adds in the order it is written, whatever the vector width, the
thread count or the caller. `dot` may differ between processors, not between runs.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS_AHEAD = 16
"""Rows that the loops prefetch ahead: enough to hide a memory latency of about 100 ns behind rows of 512 B."""

INDEX_WORK = 1 << 17
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
        builder.call(function, [address, i32(0), i32(3), i32(1)])  # for reading, keep in all caches, data
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


def _row_sums(vectors: int, weighted: bool) -> Callable:
    """Make an intrinsic that sums `vectors` cache lines of rows in registers, which no loop in Python compiles to.

    (out, bag, table, ids, weights, low, high, last, column): for the columns j of the block,
    out[bag, j] = sum over i = low .. high - 1 of  weights[i] * table[ids[i], j],  one i after another, while the lines
    of rows up to ids[last - 1] are fetched ahead. Without `weighted` the weights count as ones.
    """

    @intrinsic
    def row_sums(typingctx, out, bag, table, ids, weights, low, high, last, column):  # noqa: ANN001, ANN202
        index = types.intp
        signature = types.void(out, index, table, ids, weights, index, index, index, index)

        def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
            number = context.get_value_type(table.dtype)
            lanes = 512 // table.dtype.bitwidth
            vector = ir.VectorType(number, lanes)
            views = [context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 3, 4)]
            out_view, table_view, ids_view, weights_view = views
            bag, low, high, last, column = (args[k] for k in (1, 5, 6, 7, 8))
            i8p, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
            dim = builder.extract_value(table_view.shape, 1)

            def lines(view, row):  # noqa: ANN001, ANN202
                first = builder.gep(view.data, [builder.add(builder.mul(row, dim), column)])
                first = builder.bitcast(first, vector.as_pointer())
                return [builder.gep(first, [i32(v)]) for v in range(vectors)]

            sums = [cgutils.alloca_once(builder, vector) for _ in range(vectors)]
            for total in sums:
                builder.store(ir.Constant(vector, [0.0] * lanes), total)
            prefetch_type = ir.FunctionType(ir.VoidType(), [i8p, i32, i32, i32])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [i8p], prefetch_type)
            with cgutils.for_range_slice(builder, low, high, low.type(1), low.type) as (i, _):
                row = builder.load(builder.gep(ids_view.data, [i]))
                ahead = builder.add(i, i.type(ROWS_AHEAD))
                ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, i)
                later = builder.load(builder.gep(ids_view.data, [ahead]))
                for line in lines(table_view, later):
                    builder.call(prefetch, [builder.bitcast(line, i8p), i32(0), i32(3), i32(1)])
                if weighted:
                    weight = builder.load(builder.gep(weights_view.data, [i]))
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), weight, i32(0))
                    weight = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))
                for line, total in zip(lines(table_view, row), sums, strict=True):
                    term = builder.load(line, align=table.dtype.bitwidth // 8)
                    term = builder.fmul(weight, term) if weighted else term
                    builder.store(builder.fadd(builder.load(total), term), total)
            for line, total in zip(lines(out_view, bag), sums, strict=True):
                builder.store(builder.load(total), line, align=table.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return signature, codegen

    return row_sums


sum_eight_lines, sum_four_lines, sum_one_line = (_row_sums(n, weighted=False) for n in (8, 4, 1))
weigh_eight_lines, weigh_four_lines, weigh_one_line = (_row_sums(n, weighted=True) for n in (8, 4, 1))


@njit(nogil=True, fastmath={"reassoc"})
def dot(a, b):  # noqa: ANN001, ANN202
    """Sum of a[j] * b[j], in the order the compiler finds best for this processor: a function of the length alone."""
    total = a.dtype.type(0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@inlined
def sum_segment(total, grad_out, bag_of, weights, order, low, high):  # noqa: ANN001, ANN202
    """total[:] = sum over i = low .. high - 1 of  weights[order[i]] * grad_out[bag_of[order[i]]],  one i after another.

    `weights` of length 0 count as ones. segment_grads and sparse_update both call this: their sums agree bit for bit.
    """
    dim = grad_out.shape[1]
    for j in range(dim):
        total[j] = 0
    for i in range(low, high):
        if i + ROWS_AHEAD < len(order):
            prefetch_row(grad_out, bag_of[order[i + ROWS_AHEAD]])
        position = order[i]
        bag = bag_of[position]
        weight = weights[position] if len(weights) else total.dtype.type(1)  # times 1 is exact
        for j in range(dim):
            total[j] += weight * grad_out[bag, j]


def bag_of_position(offsets: np.ndarray) -> np.ndarray:
    """The bag of each position, [N] int32."""
    with threads_for(int(offsets[-1]), INDEX_WORK):
        return _bag_of_position(offsets)


@kernel
def _bag_of_position(offsets):  # noqa: ANN001, ANN202
    bag_of = np.empty(offsets[-1], np.int32)
    for bag in prange(len(offsets) - 1):
        for position in range(offsets[bag], offsets[bag + 1]):
            bag_of[position] = bag
    return bag_of


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


def cut(starts: np.ndarray, threads: int, per_segment: int) -> np.ndarray:
    """Cut segments into `threads` runs of about equal work: [threads + 1] segment numbers, first 0, last all.

    Segment s holds the positions starts[s] .. starts[s + 1] - 1; it costs one per position and `per_segment` once.
    """
    segments = len(starts) - 1
    total = int(starts[-1]) + per_segment * segments
    cuts = np.empty(threads + 1, np.int64)
    for t in range(threads + 1):
        cuts[t] = bisect_left(range(segments), total * t // threads, key=lambda s: int(starts[s]) + per_segment * s)
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
