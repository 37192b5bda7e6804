"""Random bits from counters, and the rounding of float32 numbers to a table's format. Plain torch: the truth.

Row r has 64 random bits, B = mix64(mix64(seed, step) + (key of r + 1) * GOLDEN); column c of it has 32,

    bits = mix32(mix32(low word of B + (c + 1) * STEP) ^ high word of B)           (all modulo 2^32)

so a number's bits depend on (seed, step, key, column) and nothing else: not on slot, rank, program or backend. mix64 is
the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014); mix32
has its form, with the constants of Wellons' search for low bias (hash-prospector, 2018); both stay below 2^31, so that
a product of 32-bit words fits int64.

Stochastic rounding of x, with q the distance of the table's numbers around x and u = (top 24 bits) * 2^-24 uniform:
n = floor(x / q), plus 1 if u < x / q - n. The probability is exact wherever x is normal in the table's format (x / q
then has at most 16 binary places): the mean is x. Below that, it is off by at most 2^-24.
"""

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""2^64 / golden ratio, odd: splitmix64's step, as int64."""
STEP = 0x1E3779B9
MULTIPLIER_1, MULTIPLIER_2 = 0x21F0AAAD, 0x735A2D97
WORD = 2**32 - 1

MANTISSA_BITS = {torch.float16: 10, torch.bfloat16: 7}
LOWEST_EXPONENT = {torch.float16: -14, torch.bfloat16: -126}
"""Exponent of the smallest normal number: numbers below have the same distance."""


def row_bits(seed: int, step: int, keys: Tensor) -> Tensor:
    """64 random bits for each key: [U] int64 -> [U] int64."""
    stream = _mix64(_mix64(keys.new_full((1,), seed)) + keys.new_full((1,), step) * GOLDEN)
    return _mix64(stream + (keys + 1) * GOLDEN)


def cell_bits(of_row: Tensor, dim: int) -> Tensor:
    """32 random bits for each column of each row: [U] int64 -> [U, dim] int64 in 0 .. 2^32 - 1."""
    low, high = of_row[:, None] & WORD, (of_row[:, None] >> 32) & WORD
    column = torch.arange(1, dim + 1, device=of_row.device)
    return _mix32(_mix32((low + column * STEP) & WORD) ^ high)


def rounded(x: Tensor, dtype: torch.dtype, of_row: Tensor | None) -> Tensor:
    """`x` [U, dim] in the table's `dtype`: with the random bits of its rows, or to nearest even without."""
    if of_row is None or dtype not in MANTISSA_BITS:
        return x.to(dtype)
    exponent = torch.frexp(x).exponent - 1
    exponent = (exponent.clamp(min=LOWEST_EXPONENT[dtype]) - MANTISSA_BITS[dtype]).double()
    units = torch.ldexp(x.double(), -exponent)  # exact
    below = units.floor()
    uniform = (cell_bits(of_row, x.shape[1]) >> 8).double() * 2.0**-24
    return torch.ldexp(below + (uniform < units - below), exponent).to(dtype)  # a number of the format: exact


def _mix64(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ _shifted(z, 27)) * (0x94D049BB133111EB - 2**64)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of int64."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mix32(z: Tensor) -> Tensor:
    z = ((z ^ (z >> 16)) * MULTIPLIER_1) & WORD
    z = ((z ^ (z >> 15)) * MULTIPLIER_2) & WORD
    return z ^ (z >> 15)
