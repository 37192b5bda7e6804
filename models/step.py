"""One training step as a Schedule: embedding forward, dense forward and backward, embedding backward, dense update.

Losses are sums over samples divided by the global batch, so gradients add up over ranks. Dense gradients are summed
in canonical order (`ring=True`: in the library's order, faster, not comparable bit for bit).
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from comm.canonical import canonical_all_reduce, canonical_sum
from comm.schedule import Phase, Schedule
from comm.strategy import INPUTS

from .embedding import ShardedEmbedding

Loss = Callable[[Tensor, Tensor], Tensor]


class Model(Protocol):
    """What a step trains: a module with an embedding and everything else."""

    @property
    def embedding(self) -> object:
        """A ShardedEmbedding."""
        ...

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits [batch] from `dense` [batch, features] and `pooled` [batch, sum of dims]."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the dense part."""
        ...


def cross_entropy_sum(logits: Tensor, label: Tensor) -> Tensor:
    """Sum over samples of the binary cross entropy; `logits`, `label` [batch], computed in at least float32."""
    return binary_cross_entropy_with_logits(logits.float() if logits.dtype != torch.float64 else logits,
                                            label.to(torch.promote_types(logits.dtype, torch.float32)),
                                            reduction="sum")  # fmt: skip


class TrainingStep:
    """Builds the Schedule of one step of `model` (with `.embedding` and `.dense(dense, pooled)`).

    Inputs of the frame: `step`, `lr`, `training`, `bags`, `dense` [batch, features], `label` [batch], `global_batch`
    (int). It gives `loss`, the mean over the global batch, on every rank.
    """

    inputs = (*INPUTS, "bags", "dense", "label", "global_batch")

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss = cross_entropy_sum,
        ring: bool = False,
    ) -> None:
        self.model, self.optimizer, self.loss, self.ring = model, optimizer, loss, ring
        if not isinstance(model.embedding, ShardedEmbedding):
            raise TypeError(f"model.embedding: expected a ShardedEmbedding, given {type(model.embedding).__name__}")
        self.embedding, self.group = model.embedding, model.embedding.group
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def schedule(self) -> Schedule:
        """Every phase of the step, in the order that all ranks share."""
        phases = (
            *self.embedding.forward_phases(),
            Phase("dense", self.dense_share, ("dense", "pooled", "label", "global_batch"),
                  ("local_loss", "pooled_grad", "dense_grad"), "compute"),
            *self.embedding.backward_phases(),
            *self.dense_phases(),
        )  # fmt: skip
        return Schedule(phases, self.inputs)

    def dense_phases(self) -> tuple[Phase, ...]:
        """From this rank's share of loss and dense gradients to the update of the dense part."""
        return (
            Phase("dense_reduce", self._reduce, ("local_loss", "dense_grad"), ("loss", "dense_sum"), "network"),
            Phase("dense_apply", self._apply, ("dense_sum",), (), "compute"),
        )

    def dense_share(
        self, dense: Tensor, pooled: Tensor, label: Tensor, global_batch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Forward and backward of everything but the tables; this rank's share of loss and gradients."""
        pooled = pooled.detach().requires_grad_()
        for parameter in self.parameters:
            parameter.grad = None
        logits = self.model.dense(dense, pooled)
        loss = self.loss(logits, label) / global_batch
        loss.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat = torch.cat([grad.flatten() for grad in grads]) if grads else loss.new_zeros(0)
        assert pooled.grad is not None
        return loss.detach(), pooled.grad, flat

    def _reduce(self, loss: Tensor, flat: Tensor) -> tuple[float, Tensor]:
        """Sum loss and dense gradients over ranks."""
        losses = self.group.all_gather(loss.double().view(1), [1] * self.group.size, "dense_reduce.loss")
        if self.ring:
            total = self.group.all_reduce(flat, "dense_reduce")
        else:
            total = canonical_all_reduce(self.group, flat, "dense_reduce")
        return float(canonical_sum(losses.unbind(0), self.group.ranks_per_node)), total

    def _apply(self, total: Tensor) -> None:
        """The dense optimizer's step, the same on every rank."""
        begin = 0
        for parameter in self.parameters:
            parameter.grad = total[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()
        if self.optimizer is not None:
            self.optimizer.step()
