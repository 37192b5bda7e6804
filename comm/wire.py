"""The format in which values travel: the tables' own numbers, or fewer bytes and a stated error.

    table   the table's dtype: exact                                         itemsize * dim bytes a row
    bf16    rounded to nearest even: |error| <= 2^-8 |x|                     2 * dim
    fp16    rounded to nearest even: |error| <= 2^-11 |x| where normal       2 * dim
    int8    x / s rounded, s = max |row| / 127 : |error| <= s / 2            dim + 4

In fp16 a number above 65,504 becomes infinite. The bounds are of one exchange, half a unit in the last place of the
format. What a rank sends to itself is rounded too, so that a value does not depend on where its row lives. Sums are
taken after unpacking, in the table's dtype.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from .group import Group

Wire = Literal["table", "bf16", "fp16", "int8"]
WIRES: tuple[str, ...] = get_args(Wire)

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def row_bytes(dim: int, dtype: torch.dtype, wire: Wire) -> int:
    """Bytes of one row of `dim` numbers of `dtype` on the wire."""
    if wire == "int8":
        return dim + 4
    return dim * _HALF.get(wire, dtype).itemsize


def pack(x: Tensor, wire: Wire) -> Tensor:
    """`x` [n, dim] as it travels: [n, ...] of some dtype, `row_bytes` a row."""
    if wire == "table":
        return x
    if wire in _HALF:
        return x.to(_HALF[wire])
    scale = (x.abs().amax(1) / 127).float()
    q = torch.round(x / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).to(torch.int8)
    return torch.cat([q.view(torch.uint8), scale.view(torch.uint8).view(-1, 4)], dim=1)


def unpack(packed: Tensor, dtype: torch.dtype, wire: Wire) -> Tensor:
    """What `pack` made, as `dtype` [n, dim]."""
    if wire != "int8":
        return packed.to(dtype)
    q, scale = packed[:, :-4].view(torch.int8), packed[:, -4:].flatten().clone().view(torch.float32)
    return q.to(dtype) * scale.to(dtype)[:, None]


def send_values(group: Group, x: Tensor, send: Sequence[int], receive: Sequence[int], label: str, wire: Wire) -> Tensor:
    """`group.all_to_all` of the rows `x` [n, dim] in the format `wire`."""
    return unpack(group.all_to_all(pack(x, wire), send, receive, label), x.dtype, wire)
