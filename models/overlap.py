"""The training step with overlap: exchanges under compute within a step, and the next batch's keys one step ahead.

EMBark's two overlaps. Which phase runs under which is `comm/overlap.py` and `comm/pipeline.ahead`; what is added here
is a dense part in three, so that there is compute to run beside the exchanges: the bottom MLP while pooled rows come,
its backward while their gradients go. Bit for bit the same training as the plain step.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from comm._pooled import PooledExchange
from comm.overlap import overlapped
from comm.padded_keys import PaddedKeys
from comm.pipeline import Pipeline, Staged, ahead
from comm.schedule import Phase, Schedule
from comm.unique import Unique
from comm.unique_node import UniqueNode

from .embedding import ShardedEmbedding
from .ranking import TwoPartModel
from .step import Loss, TrainingStep, cross_entropy_sum

TURN = "top"
"""The phase that gives the gradient of the pooled rows."""


class OverlappedStep(TrainingStep):
    """A TrainingStep in the order of `overlapped`: run it with `Executor(overlap=True)`.

    `schedule` is one step; `pipeline` also brings the keys of the batch `depth` steps later, for PipelinedTraining.
    """

    def __init__(
        self,
        model: TwoPartModel,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss = cross_entropy_sum,
        ring: bool = False,
    ) -> None:
        super().__init__(model, optimizer, loss, ring)
        lacks = [name for name in ("first_part", "second_part", "bottom") if not hasattr(model, name)]
        if lacks:
            raise TypeError(
                f"model: expected one in two parts (models.ranking.TwoPartModel), given {type(model).__name__}, which "
                f"lacks {', '.join(lacks)}: use TrainingStep, or split its dense part"
            )
        self.parts = model
        mine = {id(p) for p in model.bottom.parameters()}
        self.of_bottom = [id(p) in mine for p in self.parameters]

    def schedule(self) -> Schedule:
        """Every phase of the step, in the order that all ranks share."""
        phases = (*forward_in_order(self.embedding), *self._dense_parts(), *self.dense_phases())
        turn = next(at for at, phase in enumerate(phases) if phase.name == TURN) + 1
        phases = (*phases[:turn], *backward_in_order(self.embedding), *phases[turn:])
        return Schedule(overlapped(phases, TURN), self.inputs)

    def pipeline(self, depth: int = 1) -> Pipeline:
        """The same with what reads ids alone `depth` batches ahead."""
        return keys_ahead(self.schedule(), depth)

    def _dense_parts(self) -> tuple[Phase, ...]:
        given = ("local_loss", "pooled_grad", "bottom_grad", "top_grads")
        return (
            Phase("bottom", self.parts.first_part, ("dense",), ("bottom_out",), "compute"),
            Phase(TURN, self._top, ("bottom_out", "pooled", "label", "global_batch"), given, "compute"),
            Phase("bottom_backward", self._bottom_backward, ("bottom_out", "bottom_grad", "top_grads"),
                  ("dense_grad",), "compute"),
        )  # fmt: skip

    def _top(
        self, bottom: Tensor, pooled: Tensor, label: Tensor, global_batch: int
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Loss, and the gradients of pooled rows, of what the bottom gave, and of the parameters above it."""
        bottom, pooled = bottom.detach().requires_grad_(), pooled.detach().requires_grad_()
        parameters = [p for p, is_bottom in zip(self.parameters, self.of_bottom, strict=True) if not is_bottom]
        loss = self.loss(self.parts.second_part(bottom, pooled), label) / global_batch
        of_pooled, of_bottom, *others = _gradients(loss, [pooled, bottom, *parameters], None)
        return loss.detach(), of_pooled, of_bottom, others

    def _bottom_backward(self, bottom: Tensor, grad: Tensor, top_grads: list[Tensor]) -> Tensor:
        """All dense gradients, flat, in the order of the parameters."""
        parameters = [p for p, is_bottom in zip(self.parameters, self.of_bottom, strict=True) if is_bottom]
        below, above = iter(_gradients(bottom, parameters, grad) if parameters else ()), iter(top_grads)
        grads = [next(below if is_bottom else above) for is_bottom in self.of_bottom]
        return torch.cat([g.flatten() for g in grads]) if grads else grad.new_zeros(0)


def forward_in_order(embedding: ShardedEmbedding) -> tuple[Phase, ...]:
    """The embedding's forward phases; look-ups of replicated tables, which wait for nobody, after all exchanges."""
    return _replicated_last(embedding, embedding.forward_phases())


def backward_in_order(embedding: ShardedEmbedding) -> tuple[Phase, ...]:
    """The embedding's backward phases; gradients of replicated tables after all others, beside the dense ones."""
    return _replicated_last(embedding, embedding.backward_phases())


def keys_ahead(schedule: Schedule, depth: int = 1) -> Pipeline:
    """`schedule` with what reads ids alone `depth` batches ahead, whose exchanges let the step's own go first."""
    staged = ahead(schedule.phases, depth)
    return Pipeline((_yielding(s) if s.ahead else s for s in staged), schedule.inputs)


def _yielding(staged: Staged) -> Staged:
    return replace(staged, phase=replace(staged.phase, yields=staged.phase.resource == "network"))


def _replicated_last(embedding: ShardedEmbedding, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Stable; `split` and `pool`, the ends of a forward pass, keep their places."""
    replicated = tuple(f"{team.label}." for team in embedding.teams if not team.strategy.shards.placements[0].ranks)
    last = [phase for phase in phases if phase.name.startswith(replicated)] if replicated else []
    rest = [phase for phase in phases if phase not in last]
    end = len(rest) - (rest[-1].name == "pool")
    return *rest[:end], *last, *rest[end:]


def _gradients(of: Tensor, by: Sequence[Tensor], grad: Tensor | None) -> list[Tensor]:
    """As `backward` leaves them: zeros where nothing depends on a tensor."""
    found = torch.autograd.grad(of, by, grad, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(by, found, strict=True)]


def pad_keys(embedding: ShardedEmbedding, margin: float = 1.1) -> None:
    """Let the keys of every exchange travel in padded parts (comm/padded_keys.py), before the first step.

    Raises ValueError for a strategy whose keys cannot.
    """
    for team in embedding.teams:
        strategy = team.strategy
        if not team.strategy.shards.cells:
            continue  # replicated: no keys to pad
        if not isinstance(strategy, Unique | PooledExchange) or isinstance(strategy, UniqueNode):
            raise ValueError(f"team {team.label!r}: expected a pooled exchange or `unique`, whose keys can be padded")
        strategy.padded = PaddedKeys(embedding.group, margin)
