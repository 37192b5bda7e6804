"""Fair times on a machine that is not quiet: variants take turns, and what is compared are ratios within a round.

A neighbour that slows one round slows all its variants; the median over rounds drops rounds where it hit only one. The
90 % interval is that of order statistics: it holds for any distribution of independent rounds.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numba import prange
from torch import Tensor

from kernels._numba_cpu import ROWS_AHEAD, cut_evenly, kernel, prefetch_row

COVERAGE = 0.9


@dataclass(frozen=True)
class Interval:
    """A median and the ends of an interval that covers the true one with a probability of at least COVERAGE."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Samples:
    """Seconds of one variant, one number a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds."""
        return float(np.median(self.seconds))

    def __add__(self, other: "Samples") -> "Samples":
        """Of the two one after the other, round by round."""
        return Samples(tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True)))

    def over(self, other: "Samples") -> Interval:
        """The ratio self / other, round by round: above 1 where `other` is faster."""
        return median_interval([a / b for a, b in zip(self.seconds, other.seconds, strict=True)])


def median_interval(values: list[float]) -> Interval:
    """Median of `values` and the narrowest symmetric pair of order statistics that covers the true median.

    The true median lies below the k-th smallest of n values with the probability that fewer than k of n fair coins show
    heads (David and Nagaraja, Order Statistics, 2003, section 7.1).

    Raises:
        ValueError: fewer than 5 values; of 4, even least to greatest covers only 0.875.
    """
    n = len(values)
    if n < 5:
        raise ValueError(f"an interval that covers {COVERAGE:.0%} needs 5 values or more, given {n}: time more rounds")
    k, outside = 0, 2 / 2**n
    while outside <= 1 - COVERAGE:  # the pair (k + 1)-th smallest, (k + 1)-th greatest covers enough: try the next
        k += 1
        outside += 2 * math.comb(n, k) / 2**n
    ordered = sorted(values)
    return Interval(float(np.median(ordered)), ordered[k - 1], ordered[n - k])


def interleaved(
    variants: Mapping[str, Callable[[], object]], pairs: int = 15, warmup: int = 3, device: str = "cpu"
) -> dict[str, Samples]:
    """Seconds of each variant over `pairs` rounds, after `warmup` rounds that do not count; see `interleaved_parts`."""
    parts = interleaved_parts({name: {"": call} for name, call in variants.items()}, pairs, warmup, device)
    return {name: samples[""] for name, samples in parts.items()}


def interleaved_parts(
    variants: Mapping[str, Mapping[str, Callable[[], object]]], pairs: int = 15, warmup: int = 3, device: str = "cpu"
) -> dict[str, dict[str, Samples]]:
    """Seconds of each part of each variant, by variant and part, over `pairs` rounds.

    A round runs every variant once, its parts in order; the next round begins with the next variant. On a `cuda` device
    a part is timed by two events on the stream, and waited for.
    """
    names = list(variants)
    seconds: dict[str, dict[str, list[float]]] = {name: {part: [] for part in variants[name]} for name in names}
    clock = _stream_seconds if device == "cuda" else _call_seconds
    for turn in range(warmup + pairs):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            for part, call in variants[name].items():
                taken = clock(call)
                if turn >= warmup:
                    seconds[name][part].append(taken)
    return {name: {part: Samples(tuple(s)) for part, s in parts.items()} for name, parts in seconds.items()}


def touch_rows(table: Tensor, ids: Tensor) -> None:
    """Read the rows `ids` [N] int64 of `table` [rows, dim] float32 and do next to nothing with them.

    On a CPU one word of every cache line is read, row by row; on a GPU the rows are pooled by torch in bags of 64. A
    yardstick, not a bound: a loop that keeps more reads in flight may be a little faster.
    """
    if table.device.type == "cuda":
        F.embedding_bag(ids, table, torch.arange(0, len(ids), 64, device=ids.device), mode="sum")
        return
    words = table.detach().view(torch.int32)  # bits combine in one cycle, where floating sums would wait for each other
    _touch(words.numpy(), ids.numpy(), cut_evenly(len(ids), numba.get_num_threads()))


def random_row_bandwidth(
    row_bytes: int = 512, device: str = "cpu", table_bytes: int = 1 << 29, reads: int = 1 << 17, rounds: int = 7
) -> float:
    """Bytes/s at which rows of `row_bytes` (a multiple of 4) at random places of `table_bytes` can be read.

    The best of `rounds` rounds of `reads` rows.
    """
    table = torch.ones(table_bytes // row_bytes, row_bytes // 4, device=device)
    ids = torch.randint(len(table), (reads,), generator=torch.Generator().manual_seed(0)).to(device)
    samples = interleaved({"read": lambda: touch_rows(table, ids)}, rounds, warmup=2, device=device)["read"]
    return reads * row_bytes / min(samples.seconds)


def copy_bandwidth(device: str = "cpu", bytes_: int = 1 << 28, rounds: int = 7) -> float:
    """Bytes/s, read plus written, at which one tensor of `bytes_` is copied to another: the best of `rounds`."""
    source, target = (torch.ones(bytes_, dtype=torch.uint8, device=device) for _ in range(2))
    samples = interleaved({"copy": lambda: target.copy_(source)}, rounds, warmup=2, device=device)["copy"]
    return 2 * bytes_ / min(samples.seconds)


def _call_seconds(call: Callable[[], object]) -> float:
    """A CPU call is over when it returns."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _stream_seconds(call: Callable[[], object]) -> float:
    """From the first of the call's work on the CUDA stream to the last."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


@kernel
def _touch(table, ids, cuts):  # noqa: ANN001, ANN202 (Numba types)
    total = np.zeros(len(cuts) - 1, np.int32)
    for t in prange(len(cuts) - 1):
        bits = np.int32(0)
        for i in range(cuts[t], cuts[t + 1]):
            if i + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(table, ids[i + ROWS_AHEAD])
            for j in range(0, table.shape[1], 16):  # a cache line is 64 bytes
                bits |= table[ids[i], j]
        total[t] = bits
    return total
