"""unique_ids with Numba on the CPU: a radix sort of (id, position) packed into one 64-bit word."""

import numba
import numpy as np
import torch
from numba import prange
from torch import Tensor

from .._numba_cpu import cut_evenly, kernel, sort_words


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keys, n = ids.long().numpy(), len(ids)
    cuts = cut_evenly(n, numba.get_num_threads())
    seen = int(np.bitwise_or.reduce(keys))  # how many bits the ids need; negative if one of them is
    if seen < 0:
        raise ValueError(f"ids: expected >= 0, given {int(keys.min())} at position {int(keys.argmin())}")
    place_bits, id_bits = max(n - 1, 0).bit_length(), seen.bit_length()
    room = 63 - place_bits  # bits of an id that fit above its position: one round, unless ids are astronomically large
    words = np.empty(0, np.int64)
    for low in range(0, max(id_bits, 1), room):
        words = _pack(keys, words, low, room, place_bits)
        words = sort_words(words, place_bits, min(room, id_bits - low), cuts)
    rows, inverse, order, starts = map(torch.from_numpy, _index(keys, words, (1 << place_bits) - 1, cuts))
    return rows.to(ids.dtype), inverse, order, starts


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
def _index(ids, words, places, cuts):
    """(rows, inverse, order, starts) from the sorted words."""
    n, threads = len(ids), len(cuts) - 1
    first = np.zeros(threads + 1, np.int64)  # distinct ids that begin before thread t's run of words
    for t in prange(threads):
        count = 0
        for i in range(cuts[t], cuts[t + 1]):
            count += i == 0 or ids[words[i] & places] != ids[words[i - 1] & places]
        first[t + 1] = count
    for t in range(threads):
        first[t + 1] += first[t]
    rows, starts = np.empty(first[threads], np.int64), np.empty(first[threads] + 1, np.int64)
    inverse, order = np.empty(n, np.int64), np.empty(n, np.int64)
    starts[first[threads]] = n
    for t in prange(threads):
        u = first[t] - 1
        for i in range(cuts[t], cuts[t + 1]):
            position = words[i] & places
            if i == 0 or ids[position] != ids[words[i - 1] & places]:
                u += 1
                rows[u] = ids[position]
                starts[u] = i
            order[i] = position
            inverse[position] = u
    return rows, inverse, order, starts
