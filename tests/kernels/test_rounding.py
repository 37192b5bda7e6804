"""Half-precision tables: nearest even, or random bits keyed by (seed, step, key, column) that leave the mean alone."""

import pytest
import torch

import kernels
from kernels import Optimizer
from kernels.sparse_update.rounding import cell_bits, rounded, row_bits

HALVES = [torch.float16, torch.bfloat16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
every_backend = pytest.mark.parametrize("backend", kernels.BACKENDS)


def numbers(rows, dim, dtype):
    """Float32 numbers over the format's range, its smallest and their fractions among them."""
    random = torch.Generator().manual_seed(1)
    low = -30 if dtype == torch.float16 else -100
    exponents = torch.randint(low, 16, (rows, dim), generator=random)
    return torch.ldexp(torch.randn(rows, dim, generator=random), exponents)


def subtract(values, dtype, optimizer, backend, step=1, rows=None, row_keys=None):
    """A zero table of `dtype` minus float32 `values`: the result before rounding is exact in every backend."""
    rows = torch.arange(len(values)) if rows is None else rows
    table = torch.zeros(int(rows.max()) + 1, values.shape[1], dtype=dtype)
    kernels.update_rows(table, (), rows, values, optimizer, 1.0, step, row_keys=row_keys, backend=backend)
    return table


@every_half
@every_backend
def test_tables_round_to_nearest_even(backend, dtype):
    values = numbers(5, 33, dtype)
    values[0, 0] = -torch.inf
    if backend != "triton":  # its interpreter warns of a cast that overflows
        values[0, 1] = 65520.0
    values[1, :4] = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8])  # ties
    assert torch.equal(subtract(values, dtype, Optimizer("sgd"), backend), -values.to(dtype))


@every_half
@every_backend
def test_every_backend_rounds_the_same_number_the_same_way(backend, dtype):
    values = numbers(5, 33, dtype)
    optimizer = Optimizer("sgd", stochastic_rounding=True, seed=3)
    found = subtract(values, dtype, optimizer, backend, step=7)
    truth = rounded(-values, dtype, row_bits(3, 7, torch.arange(5)))
    assert torch.equal(found, truth)
    assert not torch.equal(found, -values.to(dtype))  # nearest would do otherwise


@every_half
def test_rounding_is_unbiased(dtype):
    unit = torch.finfo(dtype).eps
    rows, dim = 64, 64
    n = rows * dim
    bits = row_bits(0, 1, torch.arange(rows))
    tiny = torch.finfo(dtype).tiny * unit
    for base, distance in ((1.0, unit), (-4 * (1 + unit), 4 * unit), (7 * tiny, tiny)):
        for share in (0.0, 1 / 16, 0.3, 0.5, 0.9):
            x = torch.full((rows, dim), base + share * distance, dtype=torch.float64).float()
            share_kept = (float(x[0, 0]) - base) / distance  # what float32 leaves of it
            ups = int((rounded(x, dtype, bits).double() > base).sum())
            # A binomial count: five standard deviations, which a right generator misses once in 1.7 million.
            assert abs(ups - n * share_kept) <= 5 * (n * share_kept * (1 - share_kept)) ** 0.5
            below = rounded(x, dtype, bits).double()
            assert ((below == base) | (below == base + distance)).all()


@every_half
def test_small_steps_add_up_in_the_mean_and_vanish_to_nearest(dtype):
    rows, dim, steps = 32, 64, 20
    unit = torch.finfo(dtype).eps
    grads = torch.full((rows, dim), -0.125 * unit)
    moved = {}
    for stochastic in (False, True):
        table = torch.ones(rows, dim, dtype=dtype)
        optimizer = Optimizer("sgd", stochastic_rounding=stochastic)
        for step in range(1, steps + 1):
            kernels.update_rows(table, (), torch.arange(rows), grads, optimizer, 1.0, step, backend="cpu")
        moved[stochastic] = (table.double() - 1) / unit
    assert not moved[False].any()
    # Each step moves one unit up with probability 1/8: mean steps / 8; five standard deviations of the mean.
    deviation = (steps * 0.125 * 0.875 / (rows * dim)) ** 0.5
    assert abs(float(moved[True].mean()) - steps * 0.125) <= 5 * deviation
    assert moved[True].std() > 1  # about 1.5: weights move apart


@every_backend
def test_bits_follow_the_key_not_the_slot(backend):
    values = numbers(4, 5, torch.bfloat16)
    optimizer = Optimizer("sgd", stochastic_rounding=True)
    keys = torch.tensor([70, 3, 2**40, 9])
    first = subtract(values, torch.bfloat16, optimizer, backend, row_keys=keys)
    order = torch.tensor([2, 0, 3, 1])
    slots = torch.tensor([5, 1, 0, 3])
    second = subtract(values[order], torch.bfloat16, optimizer, backend, rows=slots, row_keys=keys[order])
    assert torch.equal(second[slots], first[order])


def test_without_keys_a_row_is_known_by_its_number():
    values = numbers(4, 5, torch.float16)
    optimizer = Optimizer("sgd", stochastic_rounding=True)
    given = subtract(values, torch.float16, optimizer, "cpu", row_keys=torch.arange(4))
    assert torch.equal(subtract(values, torch.float16, optimizer, "cpu"), given)


def test_seed_step_key_and_column_each_give_other_bits():
    keys = torch.arange(100)
    bits = cell_bits(row_bits(0, 1, keys), 50)
    assert len(bits.unique()) > 4990  # of 5000 in 2^32: 0.003 equal pairs expected
    for other in (row_bits(1, 1, keys), row_bits(0, 2, keys), row_bits(0, 1, keys + 100)):
        assert (cell_bits(other, 50) != bits).all()
    assert torch.equal(cell_bits(row_bits(0, 1, keys), 20), bits[:, :20])


def test_bits_are_balanced_and_neighbours_unrelated():
    bits = cell_bits(row_bits(0, 1, torch.arange(256)), 256)
    n = bits.numel()
    later = cell_bits(row_bits(0, 2, torch.arange(256)), 256)
    pairs = (bits, bits[1:] ^ bits[:-1], bits[:, 1:] ^ bits[:, :-1], bits ^ later)
    for words in pairs:
        for place in range(32):
            ones = int((words >> place & 1).sum())
            # A fair coin: 128 counts in all, five standard deviations each.
            assert abs(ones - words.numel() / 2) <= 5 * (n / 4) ** 0.5
