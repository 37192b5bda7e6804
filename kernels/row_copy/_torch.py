"""The truth of row_copy: plain torch."""

import torch
from torch import Tensor


def row_copy(src: Tensor, dst: Tensor, src_rows: Tensor | None, dst_rows: Tensor | None) -> None:
    n = len(src) if src_rows is None else len(src_rows)
    everything = torch.arange(n, device=dst.device)
    src_rows = everything if src_rows is None else src_rows.long()
    dst_rows = everything if dst_rows is None else dst_rows.long()
    kept = (src_rows >= 0) & (dst_rows >= 0)
    rows = src[src_rows[kept]]
    if src.dtype != dst.dtype:
        numbers = unpack(rows) if src.dtype == torch.uint8 else rows.float()
        rows = pack(numbers) if dst.dtype == torch.uint8 else numbers.to(dst.dtype)
    dst[dst_rows[kept]] = rows


def pack(numbers: Tensor) -> Tensor:
    """float32 [n, dim] -> uint8 [n, dim + 8]."""
    low, high = numbers.aminmax(dim=1, keepdim=True)  # NaN if the row holds one
    bias, scale = low + 0.0, (high - low) / 255
    known = scale.isfinite()  # not with a NaN or an infinity in the row
    quotient = ((numbers - bias) / torch.where(scale > 0, scale, 1)).round().clamp(max=255)
    quotient = torch.where(known & (scale > 0), quotient, 0)
    tail = torch.where(known, torch.cat([scale, bias], 1), torch.nan)
    return torch.cat([quotient.to(torch.uint8), tail.view(torch.uint8)], 1)


def unpack(packed: Tensor) -> Tensor:
    """uint8 [n, dim + 8] -> float32 [n, dim]."""
    scale, bias = packed[:, -8:].clone(memory_format=torch.contiguous_format).view(torch.float32).split(1, 1)
    return packed[:, :-8].float() * scale + bias
