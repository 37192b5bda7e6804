"""The format in which values travel: the tables' own numbers, or fewer bytes and a stated error.

    table   the table's dtype: exact                              itemsize * dim bytes a row
    bf16    rounded to nearest even: half a unit, 2^-8 |x|        2 * dim
    fp16    rounded to nearest even: half a unit, 2^-11 |x|       2 * dim       (infinite from 65,520)
    int8    255 steps between the row's ends: half a step         dim + 8

Packed and unpacked by `kernels.row_copy`, whose contract has the exact bounds; each is of one exchange. What a rank
sends to itself is rounded too, so that a value does not depend on where its row lives. Sums are taken after unpacking,
in the table's dtype.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from kernels import row_copy
from kernels.row_copy import new_rows

from .group import Group

Wire = Literal["table", "bf16", "fp16", "int8"]
WIRES: tuple[str, ...] = get_args(Wire)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.uint8}


def row_bytes(dim: int, dtype: torch.dtype, wire: Wire) -> int:
    """Bytes of one row of `dim` numbers of `dtype` on the wire."""
    return new_rows(1, dim, _DTYPES.get(wire, dtype), "meta").nbytes


def pack(x: Tensor, wire: Wire) -> Tensor:
    """`x` [n, dim] as it travels: [n, ...] of some dtype, `row_bytes` a row."""
    if wire == "table":
        return x
    packed = new_rows(len(x), x.shape[1], _DTYPES[wire], x.device)
    row_copy(x.contiguous(), packed)
    return packed


def unpack(packed: Tensor, dim: int, dtype: torch.dtype, wire: Wire) -> Tensor:
    """What `pack` made of [n, dim] numbers of `dtype`."""
    if wire == "table":
        return packed
    x = packed.new_empty(len(packed), dim, dtype=dtype)
    row_copy(packed, x)
    return x


def send_values(group: Group, x: Tensor, send: Sequence[int], receive: Sequence[int], label: str, wire: Wire) -> Tensor:
    """`group.all_to_all` of the rows `x` [n, dim] in the format `wire`."""
    return unpack(group.all_to_all(pack(x, wire), send, receive, label), x.shape[-1], x.dtype, wire)
