"""Rows between tiers and onto the wire: gather, convert, scatter, in one pass.

    dst[dst_rows[i]] = convert(src[src_rows[i]])        for i = 0 .. n - 1

| argument | shape, dtype | |
|---|---|---|
| src | [rows, dim] in a format below | contiguous, dim >= 1 |
| dst | [rows', dim] in a format below | changed in place; shares no memory with `src` |
| src_rows | [n] int32, int64, or None | None: row i (a scatter) |
| dst_rows | [n] int32, int64, or None | None: row i (a gather); distinct, two equal rows race |

A pair with a negative row on either side is skipped, so slots and evicted rows of `cache_probe` go in as they are. Rows
not named keep their bits. Rows beyond the end are not checked here.

The dtype is the format; `uint8` is the packed int8 form: [rows, dim + 8], one contiguous string of bytes a row (what
goes on a wire), q[0 .. dim - 1] and then scale and bias, two float32 in the machine's byte order.
Between equal formats the bits are copied. Between others x is first rounded to float32, then to the format, to nearest
even. So every backend gives the same bits (a NaN stays a NaN, of any payload). u = 2^-24:

| format | bytes a row | convert(x) | abs(result - x) <= |
|---|---|---|---|
| float64 | 8 dim | exact | u abs(x) from float64 through int8 and the rest; else 0 |
| float32 | 4 dim | round | u abs(x) + 2^-150 from float64, else 0 |
| float16 | 2 dim | round; inf from 65520 | (2^-11 + u) abs(x) + 2^-25 |
| bfloat16 | 2 dim | round | (2^-8 + u) abs(x) + 2^-134 |
| int8 | dim + 8 | q = min(round((x - bias) / scale), 255); reads back as q scale + bias | scale / 2 + 9u M + 2^-142 |

with, for a row whose largest abs(x) is M: bias = min(x) + 0 (so -0 becomes 0), scale = (max(x) - min(x)) / 255, each
operation rounded in float32 (no fma). A row of scale 0 has q = 0 and reads back as its bias: a constant row is exact. A
row with a NaN, or whose max - min is not finite, has q = 0 and NaN for scale and bias: it reads back as NaN, not as a
wrong number. The int8 bound: the quotient is off by two roundings (2u R with R = max - min <= 2M) and the half that
`round` leaves, or by clamping (2u R + 2^-142) instead; the product rounds by u R, the sum by u M, x itself by u M from
float64: 8u M, and one more for what is of second order.

Bytes: n rows of src read, n rows of dst written, at random, + the index. Bound by memory, or by the host link.
Errors: ValueError with the expected and the given for a wrong shape, dtype, layout or device. With `triton`, one of src
and dst may lie in pinned host memory beside a CUDA tensor: the kernel reads or writes it over the link.
Source: scale and bias behind the row are FBGEMM's "fused 8-bit rowwise quantized" layout.
"""

import torch
from torch import Tensor

from .. import _backend

FORMATS = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.uint8: "int8",
}
"""Name of the format of a tensor of rows, by dtype."""

PACKED_TAIL = 8
"""Bytes of scale and bias behind a packed int8 row."""


def dim_of(rows: Tensor) -> int:
    """Numbers in a row of a tensor in any of the FORMATS."""
    return rows.shape[1] - PACKED_TAIL if rows.dtype == torch.uint8 else rows.shape[1]


def new_rows(n: int, dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Uninitialised [n, dim] rows in the format of `dtype` ([n, dim + 8] for `torch.uint8`, packed int8)."""
    return torch.empty(n, dim + PACKED_TAIL if dtype == torch.uint8 else dim, dtype=dtype, device=device)


def row_copy(
    src: Tensor,
    dst: Tensor,
    src_rows: Tensor | None = None,
    dst_rows: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Copy rows of `src` into `dst`, converted to its format. See the module's docstring for the contract."""
    _check(src, dst, src_rows, dst_rows)
    device = dst.device if dst.is_cuda else src.device
    name = _backend.resolve(backend, device)
    if src.device != dst.device:
        host = src if dst.is_cuda else dst
        if name != "triton" or not host.is_pinned():
            raise ValueError(
                f"src and dst: expected one device, or with backend 'triton' pinned host memory (tensor.pin_memory()) "
                f"beside CUDA, given {src.device} and {dst.device} with backend {name!r}"
            )
    _row_copy(src, dst, src_rows, dst_rows, name)


def _check(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None) -> None:
    for name, rows in (("src", src), ("dst", dst)):
        if rows.ndim != 2 or not rows.is_contiguous() or rows.dtype not in FORMATS or dim_of(rows) < 1:
            raise ValueError(
                f"{name}: expected a contiguous 2-D tensor of {', '.join(map(str, FORMATS))} with dim >= 1 (uint8: "
                f"dim + {PACKED_TAIL} bytes a row), given {rows.dtype} {tuple(rows.shape)} with strides {rows.stride()}"
            )
    if dim_of(src) != dim_of(dst):
        raise ValueError(f"dst: expected rows of {dim_of(src)} numbers like src, given {dim_of(dst)}")
    for name, index in (("src_rows", src_rows), ("dst_rows", dst_rows)):
        if index is not None and (
            index.ndim != 1 or index.dtype not in (torch.int32, torch.int64) or not index.is_contiguous()
        ):
            raise ValueError(
                f"{name}: expected a contiguous 1-D int32 or int64 tensor, given {index.dtype} {tuple(index.shape)}"
            )
    given = [len(src) if src_rows is None else len(src_rows), len(dst) if dst_rows is None else len(dst_rows)]
    if given[0] != given[1]:
        raise ValueError(f"rows: expected as many to read as to write, given {given[0]} and {given[1]}")


@torch.library.custom_op(f"{_backend.NAMESPACE}::row_copy", mutates_args=("dst",))
def _row_copy(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None, backend: str) -> None:
    _backend.load("row_copy", backend).row_copy(src, dst, src_rows, dst_rows)


@_row_copy.register_fake
def _(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None, backend: str) -> None:
    return None
