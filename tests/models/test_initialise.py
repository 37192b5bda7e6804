import hashlib
import math

import pytest
import torch
from torch import nn

from models.initialise import init_dense, init_rows, row_scale

MASK = (1 << 64) - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def naive(key, row, column, scale):
    """The documented generator in Python integers: one float32 rounding, then exact."""
    golden = 0x9E3779B97F4A7C15
    row_key = mix((key + (row + 1) * golden) & MASK)
    bits = mix((row_key + (column + 1) * golden) & MASK)
    odd = 2 * (bits >> 40) + 1 - (1 << 24)
    product = torch.tensor(odd, dtype=torch.float64) * torch.tensor(scale, dtype=torch.float32).double() * 2.0**-24
    return product.float()  # 24 + 24 bits fit in the 53 of float64: one rounding


def test_mix_is_splitmix64():
    # First output of the published splitmix64 from state 0.
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_values_match_python_integers():
    rows = torch.tensor([0, 1, 7, 2**31 + 5, 2**40])
    out = init_rows("C3", rows, 5, 11, torch.float32, 0.3)
    key = int.from_bytes(hashlib.blake2b(b"11/'C3'", digest_size=8).digest(), "little")
    expected = torch.stack([torch.stack([naive(key, int(r), c, 0.3) for c in range(5)]) for r in rows])
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_subset_order_and_column_range_has_the_same_bits(dtype):
    whole = init_rows("t", torch.arange(300), 33, 3, dtype, 0.1)
    rows = torch.tensor([299, 0, 17, 17, 4, 123], dtype=torch.int32)
    assert torch.equal(init_rows("t", rows, 33, 3, dtype, 0.1), whole[rows.long()])
    parts = [
        init_rows("t", torch.arange(300), w, 3, dtype, 0.1, first_column=at) for at, w in [(0, 10), (10, 22), (32, 1)]
    ]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert init_rows("t", rows[:0], 33, 3, dtype, 0.1).shape == (0, 33)


def test_float64_is_the_float32_value_widened():
    rows = torch.arange(50)
    wide = init_rows("t", rows, 8, 0, torch.float64, row_scale(50))
    assert torch.equal(wide, init_rows("t", rows, 8, 0, torch.float32, row_scale(50)).double())


def test_seed_table_and_kind_of_name_each_change_the_stream():
    def draw(table, seed):
        return tuple(init_rows(table, torch.arange(4), 4, seed, torch.float32, 1.0).flatten().tolist())

    assert len({draw("0", 0), draw(0, 0), draw(1, 0), draw("0", 1), draw("1", 0)}) == 5


def test_distribution_is_uniform_and_uncorrelated():
    n, dim = 4000, 64
    x = init_rows("t", torch.arange(n), dim, 5, torch.float64, 1.0)
    assert x.abs().max() < 1
    assert (x != 0).all()
    # 5 standard errors of n * dim independent uniforms on (-1, 1). Deviations: value 1/sqrt(3), square sqrt(4/45),
    # product of two 1/3.
    total = n * dim
    assert abs(x.mean()) < 5 / math.sqrt(3 * total)
    assert abs((x**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / total)
    assert abs((x[1:] * x[:-1]).mean()) < 5 / 3 / math.sqrt(total - dim)
    assert abs((x[:, 1:] * x[:, :-1]).mean()) < 5 / 3 / math.sqrt(total - n)
    counts = torch.histc(x, bins=32, min=-1, max=1)
    # Chi-square with 31 degrees of freedom: mean 31, standard deviation sqrt(62).
    assert ((counts - total / 32) ** 2 / (total / 32)).sum() < 31 + 5 * math.sqrt(62)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.tensor([3, -1])}, "given -1 at position 1"),
        ({"rows": torch.zeros(2)}, "expected a 1-D int32 or int64"),
        ({"dtype": torch.float16}, "given torch.float16"),
        ({"scale": float("nan")}, "given nan"),
        ({"scale": 0.0}, "given 0.0"),
        ({"first_column": -1}, "first_column=-1"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"table": "t", "rows": torch.arange(2), "dim": 2, "seed": 0, "dtype": torch.float32, "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        init_rows(**(arguments | change))


def test_init_dense_is_keyed_by_name_and_bounded():
    a, b = nn.Linear(6, 4), nn.Linear(6, 4)
    init_dense(a, 0, "top.0")
    torch.manual_seed(123)
    init_dense(b, 0, "top.0")
    assert torch.equal(a.weight, b.weight)
    assert a.weight.abs().max() < math.sqrt(6 / 10)
    assert torch.count_nonzero(a.bias) == 0
    init_dense(b, 0, "top.1")
    assert not torch.equal(a.weight, b.weight)
    wide = nn.Linear(6, 4, dtype=torch.float64)
    init_dense(wide, 0, "top.0")
    assert torch.equal(wide.weight, a.weight.double())


def test_init_dense_refuses_what_it_has_no_rule_for():
    with pytest.raises(ValueError, match=r"parameter c\.weight: expected 1 or 2 dimensions"):
        init_dense(nn.Conv1d(2, 2, 3), 0, "c")
