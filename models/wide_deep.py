"""Wide & Deep: a linear model and an MLP, trained together (Cheng et al., arXiv 1606.07792)."""

import torch
from einops import rearrange
from torch import Tensor, nn

from models.initialise import init_dense
from models.layers import MLP
from models.ranking import PooledEmbedding, RankingModel, check_top, shared_width


class WideDeep(RankingModel):
    """wide + deep, -> logits [B].

    The first column of a table's pooled row is its weight in the wide part, the other D - 1 its vector in the deep one,
    so one look-up brings both: wide = sum of first columns + linear(dense); deep = top(concat(dense, all vectors)). The
    paper's hand-made cross products of features would be tables of their own. All tables have one width D >= 2, else
    ValueError. Initial dense weights depend on (seed, parameter name) alone.
    """

    def __init__(
        self,
        embedding: PooledEmbedding,
        dense_features: int = 13,
        top: tuple[int, ...] = (1024, 512, 256, 1),
        *,
        dense_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        super().__init__(embedding, dense_features, dense_dtype)
        check_top(top)
        self.width = shared_width(type(self).__name__, embedding.tables)
        self.linear = nn.Linear(dense_features, 1)
        self.top = MLP(dense_features + len(embedding.tables) * (self.width - 1), top, last_relu=False)
        init_dense(self.linear, seed, "linear")
        init_dense(self.top, seed, "top")

    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, dense_features], pooled [B, F * D] -> [B, 1]."""
        rows = rearrange(pooled, "b (f d) -> b f d", d=self.width)
        deep = self.top(torch.cat([dense, rearrange(rows[:, :, 1:], "b f d -> b (f d)")], dim=1))
        return self.linear(dense) + rows[:, :, 0].sum(1, keepdim=True) + deep
