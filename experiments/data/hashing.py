"""Counter-based randomness: a number is a function of (key, position), so any process can draw any sample.

`at` is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014, doi 10.1145/2660193.2660195) on key + position *
golden ratio. Integer arithmetic only, so the draws are the same on every machine.
"""

import hashlib

import numpy as np
from numba import njit
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S1, _S2, _S3, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ONE = np.uint64(1)
_ROUNDS = 4


def key_of(*parts: int | str) -> np.uint64:
    """A 64-bit key from a seed and names, e.g. `key_of(seed, "C3", "draw")`."""
    plain = tuple(part if isinstance(part, str) else int(part) for part in parts)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


@njit(cache=True)
def mix(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64, a bijection of 64-bit words."""
    x = (x ^ (x >> _S1)) * _M1
    x = (x ^ (x >> _S2)) * _M2
    return x ^ (x >> _S3)


@njit(cache=True)
def at(key: np.uint64, position: int) -> np.uint64:
    """64 random bits of `key` at `position`."""
    return mix(key + (np.uint64(position) + _ONE) * GOLDEN)


@njit(cache=True)
def mix_all(values: NDArray[np.int64], key: np.uint64) -> NDArray[np.uint64]:
    """64 random bits of `key` for every one of `values` [n]: equal values have equal bits."""
    out = np.empty(len(values), np.uint64)
    for i in range(len(values)):
        out[i] = at(key, values[i])
    return out


@njit(cache=True)
def unit(key: np.uint64, position: int) -> float:
    """A uniform float64 in (0, 1): the middle of one of 2^53 cells, never 0 or 1."""
    return (np.float64(at(key, position) >> _S11) + 0.5) * 2.0**-53


@njit(cache=True)
def uniforms(key: np.uint64, first: int, count: int) -> NDArray[np.float64]:
    """`unit(key, i)` for i in [first, first + count), float64."""
    out = np.empty(count, np.float64)
    for i in range(count):
        out[i] = unit(key, first + i)
    return out


@njit(cache=True)
def permute(x: int, size: int, key: np.uint64) -> np.int64:
    """Image of `x` under a keyed bijection of [0, size): nothing of length `size` is ever built.

    Rounds of odd multiply, add and xor-shift on the smallest k-bit word that holds size, each a bijection; a word that
    falls outside is mapped again (cycle walking), under two rounds on average since 2^k < 2 * size.
    """
    bits = 1
    while (1 << bits) < size:
        bits += 1
    mask = (_ONE << np.uint64(bits)) - _ONE
    shift = np.uint64((bits + 1) // 2)
    word = np.uint64(x)
    while True:
        for r in range(_ROUNDS):
            subkey = at(key, r)
            word = (word * (subkey | _ONE) + (subkey >> _S3)) & mask
            word ^= word >> shift
        if word < np.uint64(size):
            return np.int64(word)


@njit(cache=True)
def permute_all(ranks: NDArray[np.int64], size: int, key: np.uint64) -> NDArray[np.int64]:
    """`permute` of every element of 1-D `ranks`, int64."""
    out = np.empty(len(ranks), np.int64)
    for i in range(len(ranks)):
        out[i] = permute(ranks[i], size, key)
    return out
