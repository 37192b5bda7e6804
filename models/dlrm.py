"""DLRM: pairwise dots of the embedding vectors and of the dense features' vector (Naumov et al., arXiv 1906.00091)."""

import torch
from einops import rearrange
from torch import Tensor

from models.initialise import init_dense
from models.layers import MLP, DotInteraction
from models.ranking import PooledEmbedding, TwoPartModel, check_top


class DLRM(TwoPartModel):
    """top(concat(z, dots(z, e_1 .. e_F))) with z = bottom(dense) and e_t the pooled row of table t: -> logits [B].

    All tables have width `bottom[-1]`, else ValueError. Initial dense weights depend on (seed, parameter name) alone.
    """

    def __init__(
        self,
        embedding: PooledEmbedding,
        dense_features: int = 13,
        bottom: tuple[int, ...] = (512, 256, 64),
        top: tuple[int, ...] = (512, 256, 1),
        *,
        dense_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        super().__init__(embedding, dense_features, dense_dtype)
        check_top(top)
        self.bottom = MLP(dense_features, bottom, last_relu=True)
        other = [t for t in embedding.tables if t.dim != bottom[-1]]
        if other:
            raise ValueError(
                f"DLRM: expected every table's dim to be bottom[-1] = {bottom[-1]}, given dim {other[0].dim} of table "
                f"{other[0].name!r} ({len(other)} of {len(embedding.tables)} tables differ); DLRMDCNv2 takes mixed dims"
            )
        vectors = len(embedding.tables) + 1
        self.dots = DotInteraction(vectors)
        self.top = MLP(bottom[-1] + vectors * (vectors - 1) // 2, top, last_relu=False)
        init_dense(self.bottom, seed, "bottom")
        init_dense(self.top, seed, "top")

    def above(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        """bottom [B, D], pooled [B, F * D] -> [B, 1]."""
        e = rearrange(pooled, "b (f d) -> b f d", d=bottom.shape[1])
        x = torch.cat([rearrange(bottom, "b d -> b 1 d"), e], dim=1)
        return self.top(torch.cat([bottom, self.dots(x)], dim=1))
