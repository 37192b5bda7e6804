"""row_copy keeps its bounds over every magnitude, packs to bytes that can travel, and touches only the rows named."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels.row_copy import FORMATS, dim_of, new_rows

U = 2.0**-24
every_backend = pytest.mark.parametrize("backend", kernels.BACKENDS)
# The interpreter and the simulator compute with numpy scalars, which warn where a GPU silently gives inf or NaN.
numpy_warns = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def converted(src, dtype, backend):
    dst = new_rows(len(src), dim_of(src), dtype)
    kernels.row_copy(src, dst, backend=backend)
    return dst


def there_and_back(x, dtype, backend):
    return converted(converted(x, dtype, backend), x.dtype, backend)


def same_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


wide = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows_of = st.integers(1, 5).flatmap(lambda dim: st.lists(st.lists(wide, min_size=dim, max_size=dim), min_size=1))


@settings(max_examples=60)
@given(rows=rows_of)
def test_every_format_keeps_its_bound_at_any_magnitude(rows):
    x = torch.tensor(rows, dtype=torch.float64)
    size = x.abs()
    half, brain = (there_and_back(x, dtype, "cpu") for dtype in (torch.float16, torch.bfloat16))
    fits = size < 65520
    assert ((half - x).abs() <= (2.0**-11 + U) * size + 2.0**-25)[fits].all()
    assert half[~fits].isinf().all()
    finite = brain.isfinite()  # the last half unit below float32's limit rounds up to inf
    assert ((brain - x).abs() <= (2.0**-8 + U) * size + 2.0**-134)[finite].all()
    assert (size[~finite] >= torch.finfo(torch.bfloat16).max).all()
    packed = converted(x, torch.uint8, "cpu")
    bytes_ = converted(packed, torch.float64, "cpu")
    scale = packed[:, -8:-4].clone(memory_format=torch.contiguous_format).view(torch.float32).double()
    largest = size.amax(1, keepdim=True)
    whole = scale.isfinite().flatten()
    assert ((bytes_ - x).abs() <= scale / 2 + 9 * U * largest + 2.0**-142)[whole].all()
    assert bytes_[~whole].isnan().all()
    assert ((x.amax(1) - x.amin(1))[~whole] >= torch.finfo(torch.float32).max).all()


SPECIAL = torch.tensor(
    [
        [0.0, -0.0, 1.0, -1.0],
        [65504.0, 65519.96, 65520.0, -7e4],  # the last float16, and what still rounds to it
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8],  # ties of float16 and bfloat16: to even
        [2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-25 + 2.0**-40],  # subnormal float16, ties among them
        [2.0**-149, 2.0**-133, 2.0**-126, -(2.0**-134)],  # subnormal float32
        [3e38, -3e38, 0.0, 1.0],  # max - min overflows
        [float("inf"), 1.0, 2.0, 3.0],
        [float("nan"), 1.0, 2.0, 3.0],
        [7.25, 7.25, 7.25, 7.25],
        [-0.0, -0.0, -0.0, -0.0],
    ]
)


@numpy_warns
@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8], ids=FORMATS.get)
def test_every_backend_gives_the_same_bits_of_special_numbers(dtype, backend):
    truth, got = (converted(SPECIAL, dtype, b) for b in ("torch", backend))
    if dtype == torch.uint8:
        assert torch.equal(got[:, :4], truth[:, :4])
        truth, got = (converted(packed, torch.float32, "torch") for packed in (truth, got))
    assert torch.equal(got.isnan(), truth.isnan())
    known = ~truth.isnan()
    word = torch.int16 if got.dtype != torch.float32 else torch.int32
    assert torch.equal(got.view(word)[known], truth.view(word)[known])


def test_rounds_to_even_and_reads_constant_rows_back_exactly():
    half, brain, packed = (there_and_back(SPECIAL, d, "cpu") for d in (torch.float16, torch.bfloat16, torch.uint8))
    assert half[2, :2].tolist() == [1.0, 1 + 4 * 2.0**-11]
    assert brain[2, 2:].tolist() == [1.0, 1 + 4 * 2.0**-8]
    assert packed[8].tolist() == [7.25] * 4
    assert packed[9].tolist() == [0.0] * 4
    assert packed[5:8].isnan().all(), "expected rows that int8 cannot hold to read back as NaN"


@every_backend
def test_copies_bits_between_equal_formats_and_leaves_other_rows_alone(backend):
    random = torch.Generator().manual_seed(1)
    for dtype, dim in product(FORMATS, (2, 3)):
        src, dst = (new_rows(4, dim, dtype).view(torch.uint8) for _ in range(2))
        for rows in (src, dst):
            rows.copy_(torch.randint(256, rows.shape, generator=random))  # NaNs of any payload among them
        before = dst.clone()
        index = torch.tensor([3, -1, 0, 1]), torch.tensor([1, 0, -1, 2])
        kernels.row_copy(src.view(dtype), dst.view(dtype), *index, backend=backend)
        assert torch.equal(dst[[1, 2]], src[[3, 1]])
        assert torch.equal(dst[[0, 3]], before[[0, 3]])


def test_a_packed_row_travels_as_bytes():
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    wire = bytes(converted(x, torch.uint8, "cpu").flatten().tolist())
    assert len(wire) == 3 * (5 + 8)
    received = torch.frombuffer(bytearray(wire), dtype=torch.uint8).view(3, 13)
    got = converted(received, torch.float32, "cpu")
    assert same_bits(got, there_and_back(x, torch.uint8, "torch"))
    assert ((got - x).abs() <= (x.amax(1) - x.amin(1))[:, None] / 255 / 2 * (1 + 2.0**-20) + 9 * U * 5).all()


def test_reads_an_unaligned_slice():
    wire = torch.randn(2 * 3 * 4 + 1, generator=torch.Generator().manual_seed(1)).view(torch.uint8)[1:-3]
    src = wire.view(-1, 3 + 8 + 5)[:6]
    for backend in ("cpu", "triton"):
        dst = torch.zeros_like(src)
        kernels.row_copy(src, dst, backend=backend)
        assert torch.equal(src, dst)


TABLE = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": TABLE.int()}, "src: expected a contiguous 2-D tensor of torch.float64"),
        ({"dst": torch.zeros(3, 4).t()}, "dst: expected a contiguous"),
        ({"dst": torch.zeros(4, 8, dtype=torch.uint8)}, r"dim >= 1 \(uint8: dim \+ 8 bytes a row\)"),
        ({"dst": torch.zeros(4, 12, dtype=torch.uint8)}, "dst: expected rows of 3 numbers like src, given 4"),
        ({"src_rows": torch.zeros(4)}, "src_rows: expected .* int32 or int64"),
        ({"src_rows": torch.tensor([1])}, "as many to read as to write, given 1 and 4"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        kernels.row_copy(**{"src": TABLE, "dst": TABLE.clone(), "backend": "torch", **changes})
