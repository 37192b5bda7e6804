"""Rows up to 2^33 are addressed right: a table of 48 GiB that occupies a few pages, a sparse file mapped into memory.

Compiled Triton kernels are held to 64-bit products by test_aot.py. Numba CUDA has no other (its arrays are indexed by
64-bit integers); its simulator copies what it is given, so it can't be run here.
"""

from itertools import chain

import pytest
import torch

import kernels

ROWS, DIM = 2**33, 3
# Around what 31, 32 and 33 bits can hold as a row, an element and a byte.
EDGES = (2**31 // (2 * DIM), 2**31 // DIM, 2**32 // DIM, 2**31, 2**32, 2**33 - 1)
TOUCHED = sorted(set(chain.from_iterable((edge - 1, edge) for edge in EDGES)) | {0})
OFFSETS = torch.tensor([0, 5, 5, len(TOUCHED)])

every_backend = pytest.mark.parametrize("backend", ["torch", "cpu", "triton"])


def mapped(path, shape, dtype):
    """A tensor of zeros of any size: pages are allocated when written."""
    with path.open("wb") as file:
        file.truncate(shape[0] * shape[1] * dtype.itemsize)
    return torch.from_file(str(path), shared=True, size=shape[0] * shape[1], dtype=dtype).view(shape)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    table = mapped(tmp_path_factory.mktemp("table") / "rows", (ROWS, DIM), torch.float16)
    rows = torch.randn(len(TOUCHED), DIM, generator=torch.Generator().manual_seed(0)).half()
    for row, values in zip(TOUCHED, rows, strict=True):
        table[row] = values
    return table, rows


@every_backend
@pytest.mark.parametrize("pooling", ["sum", "max"])
def test_rows_beyond_32_bits_are_read_and_get_their_gradients(table, backend, pooling):
    table, rows = table
    small, large = rows.clone().requires_grad_(), table.detach().requires_grad_()
    options = {"pooling": pooling, "sparse_grad": True}
    expected = kernels.pooled_lookup(small, torch.arange(len(TOUCHED)), OFFSETS, backend=backend, **options)
    given = kernels.pooled_lookup(large, torch.tensor(TOUCHED), OFFSETS, backend=backend, **options)
    assert torch.equal(given, expected)
    factor = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).half()
    (of_small,) = torch.autograd.grad(expected, small, factor)
    (of_large,) = torch.autograd.grad(given, large, factor)
    assert of_large.shape == (ROWS, DIM)
    assert of_large._indices().tolist() == [TOUCHED]
    assert torch.equal(of_large._values(), of_small.to_dense())


@every_backend
def test_scales_and_biases_beyond_32_bits_are_read(tmp_path, backend):
    table = mapped(tmp_path / "rows", (ROWS, DIM), torch.uint8)
    scale_bias = mapped(tmp_path / "scale_bias", (ROWS, 2), torch.float32)
    for value, row in enumerate(TOUCHED):
        table[row] = value
        scale_bias[row, 0], scale_bias[row, 1] = 2.0, 0.5
    ids, offsets = torch.tensor(TOUCHED), torch.arange(len(TOUCHED) + 1)
    given = kernels.pooled_lookup(table, ids, offsets, scale_bias=scale_bias, backend=backend)
    assert given.tolist() == [[2.0 * value + 0.5] * DIM for value in range(len(TOUCHED))]


@every_backend
def test_weights_of_rows_beyond_32_bits_get_their_gradients(table, backend):
    table, rows = table
    weights = torch.ones(len(TOUCHED), requires_grad=True)
    kernels.pooled_lookup(
        table, torch.tensor(TOUCHED), OFFSETS, weights, backend=backend, out_dtype=torch.float32
    ).sum().backward()
    # Three terms below 4 in float32, in any order: some units of round-off (2^-24).
    torch.testing.assert_close(weights.grad, rows.float().sum(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "cpu", pytest.param("triton", marks=pytest.mark.slow)])
def test_a_large_batch_and_a_long_bag(backend):
    table = torch.arange(4.0).view(4, 1)
    many = 131_072
    lengths = torch.zeros(many, dtype=torch.int64)
    lengths[[0, 7, many - 1]] = torch.tensor([10_000, 1, 3])
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    ids = torch.arange(10_004) % 4
    out = kernels.pooled_lookup(table, ids, offsets, backend=backend)[:, 0]
    assert out[[0, 7, many - 1]].tolist() == [15_000.0, 0.0, 6.0]  # integers: exact
    assert torch.count_nonzero(out) == 2
