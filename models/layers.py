"""The dense layers of click models, each a plain module of one idea. Shapes: B samples, F vectors, D their width."""

from collections.abc import Sequence

import torch
from einops import einsum, rearrange
from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear layers of the given widths with ReLU between them: [B, inputs] -> [B, widths[-1]].

    `last_relu` says whether the last one has a ReLU too: yes for a bottom MLP, no for a top MLP, which gives logits.
    """

    def __init__(self, inputs: int, widths: Sequence[int], last_relu: bool) -> None:
        if not widths or min(inputs, *widths) < 1:
            raise ValueError(
                f"MLP: expected one or more widths, all >= 1, given inputs={inputs}, widths={tuple(widths)}"
            )
        layers: list[nn.Module] = []
        for before, after in zip((inputs, *widths), widths, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*(layers if last_relu else layers[:-1]))


class DotInteraction(nn.Module):
    """Dot products of all pairs of vectors, each pair once: [B, F, D] -> [B, F (F - 1) / 2].

    Order: the strict lower triangle by rows, <x1, x0>, <x2, x0>, <x2, x1>, ...
    Source: DLRM, arXiv 1906.00091, section 2.
    """

    pairs: Tensor  # [F (F - 1) / 2] int64, positions in the flattened F x F matrix

    def __init__(self, vectors: int) -> None:
        super().__init__()
        i, j = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", i * vectors + j, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, F, D] -> [B, F (F - 1) / 2]."""
        products = einsum(x, x, "b i d, b j d -> b i j")
        # A position is chosen once at most, so the backward's scatter has one term a place and no order to depend on.
        return rearrange(products, "b i j -> b (i j)").index_select(1, self.pairs)


class LowRankCross(nn.Module):
    """Cross layers with a low-rank matrix: x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, * elementwise.

    [B, W] -> [B, W]. V_l is [rank, W], U_l is [W, rank], b_l is [W]; `layers` of them.
    Source: DCN-V2, arXiv 2008.13535.
    """

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        if min(width, layers, rank) < 1:
            raise ValueError(
                f"LowRankCross: expected width, layers, rank >= 1, given width={width}, layers={layers}, rank={rank}"
            )
        self.V = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.U = nn.ModuleList(nn.Linear(rank, width) for _ in range(layers))

    def forward(self, x0: Tensor) -> Tensor:
        """x0 [B, W] -> [B, W]."""
        x = x0
        for v, u in zip(self.V, self.U, strict=True):
            x = x0 * u(v(x)) + x
        return x
