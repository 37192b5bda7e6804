"""One training step in parts of the local batch, with one update: values travel under other parts' compute."""

import torch
from torch import Tensor

from comm.microbatch import MicroBatch, in_turn
from comm.schedule import Phase, Schedule
from comm.when import part_sizes
from kernels import Bags

from .step import Loss, Model, TrainingStep, cross_entropy_sum


class MicroStep(TrainingStep):
    """A TrainingStep whose Schedule moves the batch in `parts`. Every table is under `unique` or `hot_cold`.

    The loss and the dense gradients are summed over the parts in order, then over ranks as ever.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss = cross_entropy_sum,
        ring: bool = False,
        parts: int = 2,
    ) -> None:
        super().__init__(model, optimizer, loss, ring)
        if parts < 1:
            raise ValueError(f"parts: expected at least 1, given {parts}")
        self.parts = parts

    def schedule(self) -> Schedule:
        """Every phase of the step, in the order that all ranks share."""
        k, teams = self.parts, self.embedding.teams
        exchanges = [MicroBatch(team.strategy, k) for team in teams]
        phases = [self.embedding.split_phase(), *(phase for exchange in exchanges for phase in exchange.prologue())]
        for what, part in in_turn(k):
            if what == "send":
                phases += [exchange.send_phase(part) for exchange in exchanges]
            elif what == "compute":
                phases += [exchange.combine_phase(part) for exchange in exchanges]
                phases += [self._pool(part), self._dense_phase(part), self._unpool(part)]
                phases += [exchange.reduce_phase(part) for exchange in exchanges]
            else:
                phases += [exchange.grad_phase(part) for exchange in exchanges]
        phases += [phase for exchange in exchanges for phase in exchange.epilogue()]
        phases += [self.sum_phase(), *self.dense_phases()]
        return Schedule(tuple(phases), self.inputs)

    def sum_phase(self) -> Phase:
        """Loss and dense gradients of the parts, added in order."""
        shares = tuple(f"{name}.{part}" for part in range(self.parts) for name in ("local_loss", "dense_grad"))
        return Phase("dense_sum", self._add_parts, shares, ("local_loss", "dense_grad"), "compute")

    def _bags_of(self, bags: Bags, part: int) -> Bags:
        """The part's bags of all tables, for their lengths alone."""
        tables = len(self.embedding.tables)
        begin, end = self._span(len(bags) // tables, part)
        lengths = bags.lengths.view(tables, -1)[:, begin:end].flatten()
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return Bags(bags.ids.new_zeros(int(offsets[-1])), offsets)

    def _span(self, batch: int, part: int) -> tuple[int, int]:
        sizes = part_sizes(batch, self.parts)
        return sum(sizes[:part]), sum(sizes[: part + 1])

    def _pool(self, part: int) -> Phase:
        sums = tuple(f"{team.label}.pooled.{part}" for team in self.embedding.teams)

        def pool(bags: Bags, *pooled: Tensor) -> Tensor:
            return self.embedding.pool(self._bags_of(bags, part), *pooled)

        return Phase(f"pool.{part}", pool, ("checked", *sums), (f"pooled.{part}",), "compute")

    def _unpool(self, part: int) -> Phase:
        grads = tuple(f"{team.label}.grad.{part}" for team in self.embedding.teams)

        def unpool(bags: Bags, grad: Tensor) -> Tensor | tuple[Tensor, ...]:
            return self.embedding.unpool(self._bags_of(bags, part), grad)

        return Phase(f"unpool.{part}", unpool, ("checked", f"pooled_grad.{part}"), grads, "compute")

    def _dense_phase(self, part: int) -> Phase:
        def run(dense: Tensor, pooled: Tensor, label: Tensor, global_batch: int) -> tuple[Tensor, Tensor, Tensor]:
            begin, end = self._span(len(label), part)
            return self.dense_share(dense[begin:end], pooled, label[begin:end], global_batch)

        gives = tuple(f"{name}.{part}" for name in ("local_loss", "pooled_grad", "dense_grad"))
        return Phase(f"dense.{part}", run, ("dense", f"pooled.{part}", "label", "global_batch"), gives, "compute")

    def _add_parts(self, *shares: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and dense gradients of the parts, added in order."""
        loss, grad = shares[0], shares[1].clone()
        for at in range(2, len(shares), 2):
            loss, grad = loss + shares[at], grad + shares[at + 1]
        return loss, grad
