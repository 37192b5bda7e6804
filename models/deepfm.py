"""DeepFM: a factorization machine and an MLP over the same embedding vectors (Guo et al., arXiv 1703.04247)."""

import torch
from einops import rearrange, reduce
from torch import Tensor

from models.ranking import PooledEmbedding
from models.wide_deep import WideDeep


class DeepFM(WideDeep):
    """first + second + deep, -> logits [B]: Wide & Deep, whose parts are first and deep, and the products of pairs.

    second = sum over pairs of tables of <v_s, v_t>, v_t being a pooled row without its first column. All tables have
    one width D >= 2, else ValueError. Initial dense weights depend on (seed, parameter name) alone.
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
        super().__init__(embedding, dense_features, top, dense_dtype=dense_dtype, seed=seed)

    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, dense_features], pooled [B, F * D] -> [B, 1]."""
        v = rearrange(pooled, "b (f d) -> b f d", d=self.width)[:, :, 1:]
        # the sum over pairs is half of (square of the sum - sum of the squares), element by element
        pairs = 0.5 * (reduce(v, "b f d -> b d", "sum").square() - reduce(v.square(), "b f d -> b d", "sum"))
        return super().interact(dense, pooled) + pairs.sum(1, keepdim=True)
