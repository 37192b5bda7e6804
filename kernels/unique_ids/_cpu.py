"""unique_ids with Numba on the CPU: a radix sort of (id, position) packed into one 64-bit word."""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .._numba_cpu import INDEX_WORK, cut_evenly, kernel, sort_words, threads_for


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keys, n = ids.long().numpy(), len(ids)
    seen = int(np.bitwise_or.reduce(keys))  # how many bits the ids need; negative if one of them is
    if seen < 0:
        raise ValueError(f"ids: expected >= 0, given {int(keys.min())} at position {int(keys.argmin())}")
    with threads_for(n, INDEX_WORK) as threads:
        rows, inverse, order, starts = map(torch.from_numpy, _group(keys, seen.bit_length(), cut_evenly(n, threads)))
    return rows.to(ids.dtype), inverse, order, starts


def _group(keys: np.ndarray, id_bits: int, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(rows, inverse, order, starts) of ids that need `id_bits` bits."""
    place_bits = max(len(keys) - 1, 0).bit_length()
    room = 63 - place_bits  # bits of an id that fit above its position: one round, unless ids are astronomically large
    words = np.empty(0, np.int64)
    for low in range(0, max(id_bits, 1), room):
        words = _pack(keys, words, low, room, place_bits)
        words = sort_words(words, place_bits, min(room, id_bits - low), cuts)
    order = words & ((1 << place_bits) - 1)
    rows, inverse, starts = _index(words >> place_bits if id_bits <= room else keys[order], order, cuts)
    return rows, inverse, order, starts


@kernel
def _pack(ids, words, low, room, place_bits):
    """Words of bits low .. low + room - 1 of an id above its position: in order, or in the order of `words`."""
    packed = np.empty(len(ids), np.int64)
    places, id_mask = (1 << place_bits) - 1, (1 << room) - 1
    for i in prange(len(ids)):
        position = words[i] & places if len(words) else np.int64(i)
        packed[i] = ((ids[position] >> low & id_mask) << place_bits) | position
    return packed


@kernel
def _index(keys, order, cuts):
    """(rows, inverse, starts) from the sorted ids and the position of each."""
    n, threads = len(keys), len(cuts) - 1
    first = np.zeros(threads + 1, np.int64)  # distinct ids that begin before thread t's run
    for t in prange(threads):
        count = 0
        for i in range(cuts[t], cuts[t + 1]):
            count += i == 0 or keys[i] != keys[i - 1]
        first[t + 1] = count
    for t in range(threads):
        first[t + 1] += first[t]
    rows, starts = np.empty(first[threads], np.int64), np.empty(first[threads] + 1, np.int64)
    inverse = np.empty(n, np.int64)
    starts[first[threads]] = n
    for t in prange(threads):
        u = first[t] - 1
        for i in range(cuts[t], cuts[t + 1]):
            if i == 0 or keys[i] != keys[i - 1]:
                u += 1
                rows[u] = keys[i]
                starts[u] = i
            inverse[order[i]] = u
    return rows, inverse, starts
