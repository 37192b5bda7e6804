"""float16 and bfloat16, number by number: read exactly, rounded to nearest even, on every backend that runs here."""

import math

import pytest
import torch

import kernels

# NaN and infinity are among the numbers meant; numpy, behind the interpreter and the simulator, warns of them.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")

HALVES = (torch.float16, torch.bfloat16)

every_format = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
every_backend = pytest.mark.parametrize("backend", kernels.BACKENDS)


def rows(values, backend, out_dtype):
    """Each of `values` [n] as a row of its own."""
    n = 1 if backend == "numba" else 32  # the simulator pays per number, the interpreter per row
    table = values[: len(values) // n * n].view(-1, n).contiguous()
    ids, offsets = torch.arange(len(table)), torch.tensor([0, len(table)])
    return table, kernels.pooled_lookup(table, ids, offsets, pooling="none", backend=backend, out_dtype=out_dtype)


def assert_equal(given, expected):
    assert given.dtype == expected.dtype
    torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)


@every_format
@every_backend
def test_every_number_is_read_exactly(dtype, backend):
    bits = torch.arange(0, 2**16, 251 if backend == "numba" else 1)  # 251 is prime: every exponent is met
    values = bits.to(torch.uint16).view(dtype)
    table, out = rows(values, backend, torch.float32)
    assert_equal(out, table.float())


@every_format
@every_backend
def test_what_lies_between_two_numbers_goes_to_the_nearest_or_the_even_one(dtype, backend):
    bits = torch.arange(0, 2**15 - 1, 499 if backend == "numba" else 7)
    low, high = (b.to(torch.uint16).view(dtype).double() for b in (bits, bits + 1))
    between = [low + part * (high - low) for part in (0.25, 0.5, 0.75)]  # all are float32 numbers, or inf, NaN
    special = torch.tensor([math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 65519.0, 65520.0, 1e-45, 0.0] * 8)
    values = torch.cat([torch.cat(between).float(), -torch.cat(between).float(), special])
    table, out = rows(values, backend, dtype)
    assert_equal(out, table.to(dtype))


@every_backend
def test_of_equal_numbers_the_first_position_wins_and_a_nan_only_where_it_is_first(backend):
    table = torch.tensor([[1.0, math.nan, 2.0], [1.0, 5.0, math.nan], [-3.0, 6.0, 2.0]])
    ids, offsets = torch.tensor([2, 0, 1, 2, 0, 1]), torch.tensor([0, 1, 1, 4, 6])
    found = kernels.pooled_max(table, ids, offsets, backend=backend)
    assert found.winner.tolist() == [[0, 0, 0], [-1, -1, -1], [1, 1, 1], [4, 4, 4]]
    assert_equal(found.out, torch.tensor([[-3.0, 6.0, 2.0], [0, 0, 0], [1.0, math.nan, 2.0], [1.0, math.nan, 2.0]]))
