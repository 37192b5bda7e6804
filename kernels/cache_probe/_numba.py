"""cache_probe in Numba CUDA, to be read: a thread probes a row; a thread admits the rows of a set, one by one."""

from numba import cuda
from torch import Tensor

from .._numba_common import launch
from ._torch import by_set


@cuda.jit(device=True)
def set_of(row, sets):
    x = (row ^ (row >> 32)) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * (0x846CA68B - 0x100000000) & 0xFFFFFFFF  # minus 2^32: the product stays within int64
    x ^= x >> 16
    return x * sets >> 32


@cuda.jit
def probe_kernel(slots, rows, tags, stamps, step, lru, lfu):
    i = cuda.grid(1)
    if i < rows.shape[0]:
        sets, ways = tags.shape
        of = set_of(rows[i], sets)
        slots[i] = -1
        for way in range(ways):
            if tags[of, way] == rows[i]:
                slots[i] = of * ways + way
                if lru:
                    stamps[of, way] = step[i]
                if lfu:
                    stamps[of, way] += 1


@cuda.jit(device=True)
def better(tags, stamps, of, way, best):
    # Whether `way` goes before `best`: an empty line before a used one, then the lower stamp.
    if tags[of, best] < 0:
        return False
    return tags[of, way] < 0 or stamps[of, way] < stamps[of, best]


@cuda.jit
def admit_kernel(slots, evicted, rows, order, tags, stamps, locks, step, lru):
    # `slots` and `evicted` come as -1. A way given out in this call is known by its slot, in `slots`.
    k = cuda.grid(1)
    n = rows.shape[0]
    if k < n:
        sets, ways = tags.shape
        of = set_of(rows[order[k]], sets)
        if k > 0 and set_of(rows[order[k - 1]], sets) == of:
            return  # not the first of its set
        first = k
        while k < n and set_of(rows[order[k]], sets) == of:
            best = -1
            for way in range(ways):
                free = locks[of, way] == 0
                for earlier in range(first, k):
                    free = free and slots[order[earlier]] != of * ways + way
                if free and (best < 0 or better(tags, stamps, of, way, best)):
                    best = way
            if best >= 0:
                at = order[k]
                slots[at] = of * ways + best
                evicted[at] = tags[of, best]
                tags[of, best] = rows[at]
                stamps[of, best] = step[at] if lru else 1
            k += 1


@cuda.jit
def lock_kernel(locks, slots, by):
    i = cuda.grid(1)
    if i < slots.shape[0] and slots[i] >= 0:
        locks[slots[i]] += by


def cache_probe(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor) -> Tensor:
    rows = rows.long()
    slots, steps = tags.new_empty(len(rows)), step.expand(len(rows)).contiguous()
    launch(probe_kernel, len(rows), slots, rows, tags, stamps, steps, policy == "lru", policy == "lfu")
    return slots


def cache_admit(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor
) -> tuple[Tensor, Tensor]:
    rows = rows.long()
    slots, evicted = tags.new_full((len(rows),), -1), tags.new_full((len(rows),), -1)
    order, steps = by_set(rows, len(tags)), step.expand(len(rows)).contiguous()
    launch(admit_kernel, len(rows), slots, evicted, rows, order, tags, stamps, locks, steps, policy == "lru")
    return slots, evicted


def cache_lock(slots: Tensor, locks: Tensor, by: int) -> None:
    launch(lock_kernel, len(slots), locks.view(-1), slots, by)
