"""DeepFM: a factorization machine and an MLP over the same embedding vectors (Guo et al., arXiv 1703.04247)."""

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from models.initialise import init_dense
from models.layers import MLP
from models.ranking import PooledEmbedding, RankingModel, check_top, shared_width


class DeepFM(RankingModel):
    """first + second + deep, -> logits [B].

    The first column of a table's pooled row is its first-order weight, the other D - 1 its vector v_t, so one look-up
    brings both: first = sum of first columns + linear(dense); second = sum over pairs of tables of <v_s, v_t>;
    deep = top(concat(dense, all v)). All tables have one width D >= 2, else ValueError. Initial dense weights depend on
    (seed, parameter name) alone.
    """

    def __init__(
        self,
        embedding: PooledEmbedding,
        dense_features: int = 13,
        top: tuple[int, ...] = (400, 400, 400, 1),
        *,
        dense_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        super().__init__(embedding, dense_features, dense_dtype)
        check_top(top)
        self.width = shared_width("DeepFM", embedding.tables)
        self.linear = nn.Linear(dense_features, 1)
        self.top = MLP(dense_features + len(embedding.tables) * (self.width - 1), top, last_relu=False)
        init_dense(self.linear, seed, "linear")
        init_dense(self.top, seed, "top")

    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, dense_features], pooled [B, F * D] -> [B, 1]."""
        rows = rearrange(pooled, "b (f d) -> b f d", d=self.width)
        first, v = rows[:, :, 0], rows[:, :, 1:]
        # the sum over pairs is half of (square of the sum - sum of the squares), element by element
        pairs = 0.5 * (reduce(v, "b f d -> b d", "sum").square() - reduce(v.square(), "b f d -> b d", "sum"))
        deep = self.top(torch.cat([dense, rearrange(v, "b f d -> b (f d)")], dim=1))
        return self.linear(dense) + first.sum(1, keepdim=True) + pairs.sum(1, keepdim=True) + deep
