"""cache_probe with Numba on the CPU: a thread probes its run of rows, and owns the sets that its run admits to."""

import numpy as np
from numba import prange
from torch import Tensor

from .._numba_cpu import INDEX_WORK, ROWS_AHEAD, cut_evenly, inlined, kernel, prefetch_row, sort_words, threads_for

PROBE_WORK = 1 << 12
"""Fewest rows a thread is woken for: each waits for its set's tags, about 100 ns if nothing hides it."""
LEAVE, SET, COUNT = 0, 1, 2
CODES = {"peek": LEAVE, "lru": SET, "lfu": COUNT}


@inlined
def _set_of(row, sets):
    word = np.int64(0xFFFFFFFF)
    x = (row ^ (row >> 32)) & word
    x ^= x >> 16
    x = x * np.int64(0x7FEB352D) & word
    x ^= x >> 15
    x = x * np.int64(0x846CA68B - 2**32) & word  # minus 2^32: the same word, and the product stays within int64
    x ^= x >> 16
    return x * sets >> 32


def cache_probe(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor) -> Tensor:
    slots = tags.new_empty(len(rows))
    given = (x.numpy() for x in (slots, rows.long(), tags, stamps, step))
    with threads_for(len(rows), PROBE_WORK) as threads:
        _probe(*given, CODES[policy], cut_evenly(len(rows), threads))
    return slots


@kernel
def _probe(slots, rows, tags, stamps, step, policy, cuts):
    sets, ways = tags.shape
    for t in prange(len(cuts) - 1):
        for i in range(cuts[t], cuts[t + 1]):
            if i + ROWS_AHEAD < cuts[t + 1]:
                prefetch_row(tags, _set_of(rows[i + ROWS_AHEAD], sets))
            of = _set_of(rows[i], sets)
            slots[i] = -1
            for way in range(ways):
                if tags[of, way] == rows[i]:
                    slots[i] = of * ways + way
                    if policy == SET:
                        stamps[of, way] = step[i if len(step) > 1 else 0]
                    elif policy == COUNT:
                        stamps[of, way] += 1


def cache_admit(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor
) -> tuple[Tensor, Tensor]:
    slots, evicted = tags.new_empty(len(rows)), tags.new_empty(len(rows))
    given = tuple(x.numpy() for x in (tags, stamps, locks, step))
    keys = rows.long().numpy()
    if len(rows) and (keys[1:] < keys[:-1]).any():
        ascending = np.argsort(keys)
    else:
        ascending = np.arange(len(keys))  # as they come from unique_ids
    position_bits, set_bits = len(rows).bit_length(), (len(tags) - 1).bit_length()
    with threads_for(len(rows), INDEX_WORK) as threads:
        words = _words(keys, ascending, len(tags), position_bits)
        order = sort_words(words, position_bits, set_bits, cut_evenly(len(rows), threads))
    with threads_for(len(rows), PROBE_WORK) as threads:
        cuts = cut_evenly(len(rows), threads)
        _admit(slots.numpy(), evicted.numpy(), keys, ascending, order, position_bits, *given, CODES[policy], cuts)
    return slots, evicted


@kernel
def _words(rows, ascending, sets, position_bits):
    words = np.empty(len(rows), np.int64)
    for k in prange(len(rows)):
        words[k] = _set_of(rows[ascending[k]], sets) << position_bits | k
    return words


@kernel
def _admit(slots, evicted, rows, ascending, words, position_bits, tags, stamps, locks, step, policy, cuts):
    n, ways = len(words), tags.shape[1]
    for t in prange(len(cuts) - 1):
        taken = np.empty(ways, np.bool_)
        k = cuts[t]
        while 0 < k < n and words[k] >> position_bits == words[k - 1] >> position_bits:
            k += 1  # the set that a cut divides belongs to the thread before
        while k < cuts[t + 1]:
            of = words[k] >> position_bits
            taken[:] = False
            while k < n and words[k] >> position_bits == of:
                at = ascending[words[k] & ((1 << position_bits) - 1)]
                slots[at], evicted[at] = -1, -1
                way = _victim(tags[of], stamps[of], locks[of], taken)
                if way >= 0:
                    taken[way] = True
                    slots[at], evicted[at] = of * ways + way, tags[of, way]
                    tags[of, way] = rows[at]
                    stamps[of, way] = step[at if len(step) > 1 else 0] if policy == SET else 1
                k += 1


@inlined
def _victim(tags, stamps, locks, taken):
    best = -1
    for way in range(len(tags)):
        if locks[way] == 0 and not taken[way]:
            if tags[way] < 0:
                return way
            if best < 0 or stamps[way] < stamps[best]:
                best = way
    return best


def cache_lock(slots: Tensor, locks: Tensor, by: int) -> None:
    at = slots.numpy()
    with threads_for(len(slots), PROBE_WORK) as threads:
        _lock(at, locks.view(-1).numpy(), np.int32(by), cut_evenly(len(slots), threads))


@kernel
def _lock(slots, locks, by, cuts):
    for t in prange(len(cuts) - 1):
        for i in range(cuts[t], cuts[t + 1]):
            if slots[i] >= 0:
                locks[slots[i]] += by
