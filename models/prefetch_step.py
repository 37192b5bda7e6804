"""Training steps with early rows and late gradients: the pipeline of `comm.prefetch` around a model."""

from dataclasses import replace

import torch

from comm.exact_rule import refuse_inexact
from comm.hot_cold import HotCold
from comm.microbatch import in_turn
from comm.pipeline import Pipeline, Staged
from comm.prefetch import STREAM, Prefetch, renamed
from comm.schedule import Phase
from comm.unique import Unique
from comm.unique_node import UniqueNode
from comm.when import When

from .embedding import Team
from .micro_step import MicroStep
from .step import Loss, Model, cross_entropy_sum


class PrefetchStep(MicroStep):
    """A MicroStep whose tables under `unique` and `hot_cold` travel when `when` says; others (one part only) as ever.

    `PipelinedTraining(step.pipeline(), executor, group)` trains; its `flush` comes before anything else reads the
    tables, its `drain` before the plan changes.

    Raises ValueError for what would not be exact: see `comm.exact_rule` and `comm.prefetch`.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss = cross_entropy_sum,
        ring: bool = False,
        when: When | None = None,
        clip_global_norm: float | None = None,
    ) -> None:
        self.when = when or When()
        super().__init__(model, optimizer, loss, ring, self.when.parts)
        refuse_inexact(self.embedding.optimizer, self.when.deferral, clip_global_norm)
        if clip_global_norm is not None:
            raise ValueError(f"clip_global_norm: expected None (steps clip row by row only), given {clip_global_norm}")
        self.exchanges = tuple(Prefetch(team.strategy, self.when) for team in self.embedding.teams if self._may(team))
        self.others = tuple(team for team in self.embedding.teams if not self._may(team))

    def _may(self, team: Team) -> bool:
        strategy = team.strategy
        travels_by_row = type(strategy) is Unique or isinstance(strategy, HotCold)
        return self.parts > 1 or (travels_by_row and not isinstance(strategy, UniqueNode))

    def pipeline(self) -> Pipeline:
        """Every phase of an iteration, in the order that all ranks share.

        What runs beside the step waits until the iteration's own rows have come: they are what it is for. Then late
        gradients, keys, early rows, in this order.
        """
        k, depth, exchanges = self.parts, self.when.depth, self.exchanges
        own: list[Phase] = [phase for e in exchanges for phase in (e.gather_phase(), e.send_phase(0), e.room_phase())]
        keys = [Staged(depth + 1, replace(self.embedding.split_phase(), stream=STREAM))]
        keys += [staged for e in exchanges for staged in e.key_stages()]
        returned = tuple(f"{e.label}.returned.0" for e in exchanges)
        beside = [
            *(s for s in keys if s.phase.resource == "compute" and not s.phase.name.endswith(".touch")),
            Staged(0, Phase("window", lambda *_: None, returned, (), "compute", STREAM)),
            *(staged for e in exchanges for staged in e.late_stages()),
            *(s for s in keys if s.phase.resource == "network" or s.phase.name.endswith(".touch")),
            *(staged for e in exchanges for staged in e.early_stages()),
        ]
        rest: list[Phase] = [_as_part(team, phase) for team in self.others for phase in team.strategy.forward()]
        for what, part in in_turn(k):
            if what == "send" and part:
                rest += [e.send_phase(part) for e in exchanges]
            elif what == "compute":
                rest += [e.combine_phase(part) for e in exchanges]
                rest += [self._pool(part), self._dense_phase(part), self._unpool(part)]
                rest += [e.reduce_phase(part) for e in exchanges]
            elif what == "grad":
                rest += [e.grad_phase(part) for e in exchanges]
        rest += [phase for e in exchanges for phase in e.epilogue()]
        rest += [_as_part(team, phase) for team in self.others for phase in team.strategy.backward()]
        rest += [self.sum_phase(), *self.dense_phases()]
        staged = (*(Staged(0, phase) for phase in own), *beside, *(Staged(0, phase) for phase in rest))
        return Pipeline(staged, self.inputs)


def _as_part(team: Team, phase: Phase) -> Phase:
    """A phase of a team that moves whole batches, between what is pooled and unpooled as part 0."""
    return renamed(phase, {f"{team.label}.{name}": f"{team.label}.{name}.0" for name in ("pooled", "grad")})
