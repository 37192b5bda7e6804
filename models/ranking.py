"""What every click model here is: one embedding module, and a dense part that turns pooled rows into a logit."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from einops import rearrange
from torch import Tensor, nn

from kernels.bags import Bags, TableSpec

DENSE_DTYPES = (torch.float32, torch.bfloat16)


class PooledEmbedding(Protocol):
    """The embedding module a model stands on: an `nn.Module` with its tables, `bags -> pooled [B, sum of dims]`."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables, in the order of their columns in `pooled`."""
        ...

    def __call__(self, bags: Bags) -> Tensor:
        """Table-major bags of B samples -> pooled rows [B, sum of dims], in table order."""
        ...


class RankingModel(nn.Module, ABC):
    """Base of the click models. A model gives `interact`: the dense arithmetic, without dtype handling or checks.

    `dense_features` numbers per sample come beside the ids, already scaled. `dense_dtype` bfloat16 runs `interact`
    under `torch.autocast`: parameters, pooled rows, their gradients, the logits and so the loss stay float32.
    """

    def __init__(self, embedding: PooledEmbedding, dense_features: int, dense_dtype: torch.dtype) -> None:
        super().__init__()
        if not embedding.tables:
            raise ValueError("embedding: expected at least one table, given none")
        if dense_features < 1:
            raise ValueError(f"dense_features: expected >= 1, given {dense_features}")
        if dense_dtype not in DENSE_DTYPES:
            names = " or ".join(str(d) for d in DENSE_DTYPES)
            raise ValueError(
                f"dense_dtype: expected {names}, given {dense_dtype}; for float64 call .double() on the model"
            )
        self.embedding = embedding
        self.dense_features = dense_features
        self.dense_dtype = dense_dtype

    @abstractmethod
    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, dense_features], pooled [B, sum of dims] -> [B, 1]."""

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Everything except the embedding: dense [B, dense_features], pooled [B, sum of dims] -> logits [B].

        Both inputs and the parameters share one dtype, float32 or float64; the logits have it too. Raises ValueError
        for another dtype or shape.
        """
        self._check(dense, pooled)
        with self._autocast(pooled.device):
            logits = self.interact(dense, pooled)
        return rearrange(logits, "b 1 -> b").to(pooled.dtype)

    def _autocast(self, device: torch.device) -> torch.autocast:
        low = self.dense_dtype != torch.float32
        return torch.autocast(device.type, self.dense_dtype if low else None, enabled=low)

    def forward(self, dense: Tensor, bags: Bags) -> Tensor:
        """dense [B, dense_features], table-major bags of B samples -> logits [B]."""
        return self.dense(dense, self.embedding(bags))

    def _check(self, dense: Tensor, pooled: Tensor) -> None:
        width = sum(t.dim for t in self.embedding.tables)
        if dense.ndim != 2 or dense.shape[1] != self.dense_features:
            raise ValueError(f"dense: expected [B, {self.dense_features}], given {tuple(dense.shape)}")
        if pooled.shape != (len(dense), width):
            raise ValueError(
                f"pooled: expected [{len(dense)}, {width}] (batch of dense, sum of dims), given {tuple(pooled.shape)}"
            )
        dtypes = {"dense": dense.dtype, "pooled": pooled.dtype, "parameters": self.parameters_dtype}
        expected = (torch.float32,) if self.dense_dtype != torch.float32 else (torch.float32, torch.float64)
        if len(set(dtypes.values())) != 1 or pooled.dtype not in expected:
            given = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
            names = " or ".join(str(d) for d in expected)
            raise ValueError(
                f"expected one dtype, {names}, given {given} (dense_dtype {self.dense_dtype}); convert with .to(dtype)"
            )

    @property
    def parameters_dtype(self) -> torch.dtype:
        """Dtype of the dense parameters."""
        return next(p.dtype for name, p in self.named_parameters() if not name.startswith("embedding."))


class TwoPartModel(RankingModel):
    """A model whose dense part begins without the embedding: `bottom` first, then `above` with the pooled rows.

    The two run apart where pooled rows are on their way while `bottom` computes; together they are `dense`.
    """

    bottom: nn.Module

    @abstractmethod
    def above(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        """What `bottom` gave [B, its width], pooled [B, sum of dims] -> [B, 1]."""

    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, dense_features], pooled [B, sum of dims] -> [B, 1]."""
        return self.above(self.bottom(dense), pooled)

    def first_part(self, dense: Tensor) -> Tensor:
        """dense [B, dense_features] -> what `bottom` gives [B, its width], in `dense_dtype`."""
        with self._autocast(dense.device):
            return self.bottom(dense)

    def second_part(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        """What `first_part` gave, pooled [B, sum of dims] -> logits [B] in the dtype of `pooled`."""
        with self._autocast(pooled.device):
            logits = self.above(bottom, pooled)
        return rearrange(logits, "b 1 -> b").to(pooled.dtype)


def check_top(top: tuple[int, ...]) -> None:
    """Raise ValueError unless the top MLP ends in one logit."""
    if not top or top[-1] != 1:
        raise ValueError(f"top: expected widths that end in 1 (the logit), given {top}")


def shared_width(model: str, tables: tuple[TableSpec, ...]) -> int:
    """The one width of all `tables`, of which the first column is a weight; ValueError if they have several, or 1."""
    width = tables[0].dim
    other = [t for t in tables if t.dim != width or t.dim < 2]
    if other:
        raise ValueError(
            f"{model}: expected tables of one width of at least 2 (a weight and a vector), given {tables[0].name!r} of "
            f"dim {width} and {other[0].name!r} of dim {other[0].dim}; DLRMDCNv2 takes mixed dims"
        )
    return width
