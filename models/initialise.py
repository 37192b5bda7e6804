"""Initial weights as a function of their name: (seed, table, row, column) and nothing else.

Never of slot, rank, program, device or the order in which modules are built, so any sharding starts from the same bits,
and a row can be made again when it is first touched. A counter-based generator gives that: the splitmix64 finaliser
(Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) of a key per row, stepped by column.
"""

import hashlib
import math
import mmap
from typing import Literal

import numba
import numpy as np
import torch
from torch import Tensor, nn

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: splitmix64's step
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
Init = Literal["uniform", "zeros"]
"""How rows begin."""


def row_scale(rows: int) -> float:
    """Half-width 1 / sqrt(rows) of a table's initial values, as in DLRM (arXiv 1906.00091, its published code)."""
    return 1.0 / math.sqrt(rows)


def init_rows(
    table: str | int,
    rows: Tensor,
    dim: int,
    seed: int,
    dtype: torch.dtype,
    scale: float,
    first_column: int = 0,
) -> Tensor:
    """Initial values [n, dim] of the given rows of a table: uniform in (-scale, scale), symmetric, never 0.

    `rows` [n] int32 or int64 are row numbers within the table (any subset, any order, repeats allowed); columns are
    `first_column .. first_column + dim - 1`, so a column shard asks for its own part. `table` is a name or an index;
    "0" and 0 are different streams. `dtype` is float32, or float64 for the float32 value widened, so that precisions
    start equal. `scale` is rounded to float32 first. The result is on the device of `rows`; it is computed on the CPU
    (and copied), by one thread, with the GIL released.

    Raises ValueError for a negative row, another dtype, or a scale that is not finite and positive.
    """
    if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"rows: expected a 1-D int32 or int64 tensor, given {rows.ndim}-D {rows.dtype}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: expected torch.float32 or torch.float64, given {dtype}")
    if dim < 0 or first_column < 0:
        raise ValueError(f"expected dim >= 0 and first_column >= 0, given dim={dim}, first_column={first_column}")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: expected a finite positive number, given {scale}")
    host = rows.detach().to("cpu", torch.int64).contiguous()
    if len(host) and int(host.min()) < 0:
        raise ValueError(f"rows: expected row numbers >= 0, given {int(host.min())} at position {int(host.argmin())}")
    out = torch.empty(len(host), dim, dtype=dtype)
    # 2**-24 is a power of two: the product is exact, and each value below is rounded once.
    step = np.float32(scale) * np.float32(2.0**-24)
    _fill(out.numpy(), host.numpy(), np.uint64(stream_key(seed, table)), np.uint64(first_column), step)
    return out.to(rows.device)


def zero_rows(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Zeros [rows, dim] on the CPU whose pages are taken when first touched, as the operating system hands them out.

    For tables larger than memory of which a run touches few rows. `torch.zeros` writes every page, and NumPy asks for
    huge ones: a touched row would then take 2 MiB.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: expected torch.float32 or torch.float64, given {dtype}")
    if not rows * dim:
        return torch.zeros(rows, dim, dtype=dtype)
    memory = mmap.mmap(-1, rows * dim * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(rows, dim)


def init_dense(module: nn.Module, seed: int, name: str) -> None:
    """Set every parameter of `module` in place: matrices [out, in] Glorot uniform, vectors (biases) zero.

    Keyed by (seed, `name` + the parameter's name within the module). The variance 2 / (in + out) is that of DLRM's code
    (Glorot and Bengio, AISTATS 2010). Raises ValueError for a parameter of more than two dimensions.
    """
    for inner, parameter in module.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 1:
                parameter.zero_()
            elif parameter.ndim == 2:
                rows, columns = parameter.shape
                scale = math.sqrt(6.0 / (rows + columns))
                values = init_rows(f"{name}.{inner}", torch.arange(rows), columns, seed, torch.float32, scale)
                parameter.copy_(values)
            else:
                raise ValueError(
                    f"parameter {name}.{inner}: expected 1 or 2 dimensions, given shape {tuple(parameter.shape)}; "
                    "initialise it where it is made"
                )


def stream_key(seed: int, name: str | int) -> int:
    """64-bit key of a named stream: the same on every machine and in every process (unlike `hash`)."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name!r}".encode(), digest_size=8).digest(), "little")


@numba.njit(cache=True)
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> np.uint64(30))) * MULTIPLIER_1
    z = (z ^ (z >> np.uint64(27))) * MULTIPLIER_2
    return z ^ (z >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def _fill(out: np.ndarray, rows: np.ndarray, key: np.uint64, first_column: np.uint64, step: np.float32) -> None:
    for i in range(len(rows)):
        row_key = _mix(key + (np.uint64(rows[i]) + np.uint64(1)) * GOLDEN)
        for column in range(out.shape[1]):
            bits = _mix(row_key + (first_column + np.uint64(column) + np.uint64(1)) * GOLDEN)
            # An odd integer below 2**24 in magnitude: exact in float32, and symmetric around 0.
            odd = (np.int64(bits >> np.uint64(40)) << np.int64(1)) + np.int64(1 - (1 << 24))
            out[i, column] = np.float32(odd) * step
