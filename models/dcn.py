"""DLRM-DCNv2: DLRM with low-rank cross layers in place of the dots (Wang et al., arXiv 2008.13535).

The form MLPerf Training uses.
"""

import torch
from torch import Tensor

from models.initialise import init_dense
from models.layers import MLP, LowRankCross
from models.ranking import PooledEmbedding, TwoPartModel, check_top


class DLRMDCNv2(TwoPartModel):
    """top(cross(concat(bottom(dense), pooled))): -> logits [B].

    Tables may have any widths. Initial dense weights depend on (seed, parameter name) alone.
    """

    def __init__(
        self,
        embedding: PooledEmbedding,
        dense_features: int = 13,
        bottom: tuple[int, ...] = (512, 256, 64),
        top: tuple[int, ...] = (512, 256, 1),
        *,
        cross_layers: int = 3,
        cross_rank: int = 64,
        dense_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        super().__init__(embedding, dense_features, dense_dtype)
        check_top(top)
        self.bottom = MLP(dense_features, bottom, last_relu=True)
        width = bottom[-1] + sum(t.dim for t in embedding.tables)
        self.cross = LowRankCross(width, cross_layers, cross_rank)
        self.top = MLP(width, top, last_relu=False)
        init_dense(self.bottom, seed, "bottom")
        init_dense(self.cross, seed, "cross")
        init_dense(self.top, seed, "top")

    def above(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        """bottom [B, its width], pooled [B, sum of dims] -> [B, 1]."""
        return self.top(self.cross(torch.cat([bottom, pooled], dim=1)))
