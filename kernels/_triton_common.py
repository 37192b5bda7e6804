# ruff: noqa: ANN001, ANN202
"""What the Triton kernels share: a program's tile of rows, IEEE division and root, what to compile ahead of time."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

LOAD_BYTES = 16
"""The widest load of a lane."""
LANES = 64 if torch.version.hip else 32
"""Lanes of a warp (NVIDIA) or wave (AMD) of the GPUs that torch was built for."""
MAX_COLS = 1024
"""Columns of a tile: a wider row takes several programs, or several tiles of registers."""
INTERPRETED_ITEMS = 32
"""Items per program in the interpreter, which pays per program (milliseconds) and hardly per element."""


def row_tile(dim: int, dtype: torch.dtype, whole_row: bool = False, lanes: int = LANES) -> dict[str, int]:
    """Launch parameters of a kernel whose program holds ITEMS rows of COLS columns: every lane loads 16 bytes of a row.

    One NVIDIA warp holds one row of 128 float32 or several narrower ones; a wider row takes up to 8 warps. With
    `whole_row`, COLS covers `dim`.
    """
    warp = lanes * LOAD_BYTES // dtype.itemsize
    cols = 1 << (dim - 1).bit_length()
    if not whole_row:
        cols = min(cols, MAX_COLS)
    items = INTERPRETED_ITEMS if knobs.runtime.interpret else max(1, warp // cols)
    return {"ITEMS": items, "COLS": cols, "num_warps": min(8, max(1, cols // warp))}


@triton.jit
def divide(x, y):
    # `/` on float32 is an approximation in Triton (2 ulp); this one is rounded, as in torch.
    if x.dtype == tl.float32:
        quotient = tl.math.div_rn(x, y)
    else:
        quotient = x / y
    return quotient


@triton.jit
def root(x):
    if x.dtype == tl.float32:
        result = tl.math.sqrt_rn(x)
    else:
        result = tl.sqrt(x)
    return result


@triton.jit
def as_dtype(scalar, dtype: tl.constexpr):
    # `scalar` is an fp64 argument when compiled and a Python float when interpreted; this keeps every bit in both.
    return (scalar * tl.full([1], 1, dtype)).to(dtype)


@triton.jit
def widen(x):
    # What sums are kept in: float32, float64 for float64. Arithmetic on bfloat16 blocks is wrong in the interpreter,
    # and so is its `.to(float32)` of bfloat16 numbers below the normal ones: move the bits, here and compiled.
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x


@triton.jit
def to_nearest(x, dtype: tl.constexpr):
    # `x.to(dtype)`, to nearest even. The interpreter cuts bits off in `.to(bfloat16)`: round them, here and compiled.
    if dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        near = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), bits | 0x400000)  # a NaN stays one when cut
        result = (near >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(dtype)
    return result


REALS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
}
"""Triton's names of the dtypes of tables."""


@dataclass(frozen=True)
class Variant:
    """One specialisation of a kernel to compile ahead of time.

    `signature` types the run-time arguments in Triton's words (`*fp32`, `i64`), `constants` the others; `aligned` names
    the arguments known to be multiples of 16; `row_bytes` is the load width expected of a lane (0: none in particular).
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[str, ...]
    row_bytes: int
    num_warps: int


def row_variant(
    name: str,
    kernel: Any,
    dim: int,
    dtype: torch.dtype,
    signature: dict[str, str],
    constants: dict[str, Any],
    config: dict[str, int],
) -> Variant:
    """The Variant of a row kernel at `dim` columns of `dtype`: pointers are aligned, `dim` is if a multiple of 16."""
    real = REALS[dtype]
    signature = {argument: kind.replace("real", real) for argument, kind in signature.items()}
    aligned = [argument for argument, kind in signature.items() if kind.startswith("*")]
    if dim % 16 == 0:
        aligned.append("dim")
    constants = {**constants, **config}
    warps = constants.pop("num_warps")
    row_bytes = LOAD_BYTES if dim % 16 == 0 else 0
    return Variant(f"{name}-{dim}-{real}", kernel, signature, constants, tuple(aligned), row_bytes, warps)
