"""One rank's side of the emulated experiments: a step of a model's tables under a plan and an overlap, and its checks.

Tables, ids, kernels and embedding bytes are real. The dense part is three timers (bottom, top with its backward, bottom
backward) and its gradients stay off the link. The gradient of a pooled number is 1 or 2 by the number's parity, tables
begin as zeros, the rate is 1 and the optimizer SGD: every weight is a whole number that sums in any order reach
exactly, so all arms must end with the same ones, and one that reads a stale row does not.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from comm.group import Group
from comm.overlap import overlapped
from comm.plan import Plan
from comm.schedule import Frame, Phase, Schedule
from comm.strategy import INPUTS
from kernels import Bags, Optimizer
from models.cost import counts_of
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.overlap import TURN, backward_in_order, forward_in_order, keys_ahead, pad_keys
from models.pipeline import PipelinedTraining

OVERLAPS = ("none", "step", "steps")
"""One phase after another; exchanges under compute of the same step; and keys one batch ahead."""
LR = 1.0
_PRIME = 1009


@dataclass(frozen=True)
class Timers:
    """Seconds of the dense part's stand-ins."""

    bottom: float
    top: float
    bottom_backward: float

    @property
    def total(self) -> float:
        """Of one step."""
        return self.bottom + self.top + self.bottom_backward


class EmulatedStep:
    """Steps of the tables of `plan` on one rank, over `batches` (its own bags) again and again. All ranks make one.

    `overlap` is one of OVERLAPS; `padded` keys as in comm/padded_keys.py.
    """

    def __init__(
        self, group: Group, plan: Plan, batches: Sequence[Bags], timers: Timers, overlap: str, padded: bool = False
    ) -> None:
        if overlap not in OVERLAPS:
            raise ValueError(f"overlap: expected one of {', '.join(OVERLAPS)}, given {overlap!r}")
        self.group, self.overlap, self.steps = group, overlap, 0
        self.embedding = ShardedEmbedding(plan, group, Optimizer("sgd"), init="zeros")
        if padded:
            pad_keys(self.embedding)
        self.labels = tuple(f"{team.label}." for team in self.embedding.teams)
        self._frames = self._endless(batches)
        # without overlap the order is the same, in one thread: ranks then wait once for all teams' exchanges of a kind
        self.schedule = Schedule(overlapped(self._phases(timers), TURN), (*INPUTS, "bags", "dense"))
        self._executor = Executor(overlap != "none", started=lambda: torch.set_num_threads(1))
        self._training = None
        if overlap == "steps":
            pipeline = keys_ahead(self.schedule)
            self._training = PipelinedTraining(pipeline, self._executor, group)
            self._running = self._training.steps(self._frames)
            self.schedule = pipeline.schedule()

    def run(self) -> list[Event]:
        """One step; with keys ahead, those of the next batch are part of it."""
        self.steps += 1
        if self._training is None:
            return self._executor.run(self.schedule, next(self._frames))
        next(self._running)
        return self._training.events

    def bytes_sent(self, batches: Sequence[Bags]) -> dict[str, Tensor]:
        """Bytes from rank to rank [world, world] by label, as the strategies predict them for every rank's bags."""
        counts = counts_of(self.embedding, batches)
        return {
            f"{team.label}.{name}": bytes_
            for team in self.embedding.teams
            for name, bytes_ in team.strategy.sent(counts[team.label]).items()
        }

    def mine(self, label: str) -> bool:
        """Whether a label of the group's counters is this plan's."""
        return label.startswith(self.labels)

    def checksum(self, touched: Sequence[Tensor]) -> int:
        """Of the rows `touched` [n] of each table, weighted by table, id and column: the same under every plan."""
        total = sum(self._share(touched), torch.zeros(1, dtype=torch.float64))
        return int(self.group.all_gather(total, [1] * self.group.size, "checksum").sum())

    def _share(self, touched: Sequence[Tensor]) -> Iterator[Tensor]:
        """This rank's part: whole numbers below 2^53, exact in any order."""
        for team in self.embedding.teams:
            shards, values = team.strategy.shards, team.strategy.store.values
            if not shards.cells and self.group.rank == 0:  # every rank holds all; one counts
                for number, (table, column) in enumerate(team.blocks):
                    rows = shards.table_base[number] + touched[table]
                    yield _weighed(values[rows], touched[table], table, column)
            for cell in shards.cells:
                if cell.rank == self.group.rank:
                    table, column = team.blocks[cell.table]
                    ids = touched[table]
                    ids = ids[(ids // cell.span if cell.span else ids % cell.parts) == cell.part]
                    local = ids - cell.part * cell.span if cell.span else ids // cell.parts
                    yield _weighed(values[cell.base + local], ids, table, column)

    def _endless(self, batches: Sequence[Bags]) -> Iterator[Frame]:
        for step, bags in enumerate(cycle(batches)):
            yield {"step": step, "lr": LR, "training": True, "bags": bags, "dense": None}

    def _phases(self, timers: Timers) -> tuple[Phase, ...]:
        def wait(seconds: float) -> None:
            time.sleep(seconds)

        def bottom(_: None) -> float:
            wait(timers.bottom)
            return timers.bottom

        def top(pooled: Tensor, _: float) -> tuple[Tensor, float]:
            wait(timers.top)
            return 1.0 + pooled % 2.0, timers.top

        def bottom_backward(_: float) -> None:
            wait(timers.bottom_backward)

        return (
            *forward_in_order(self.embedding),
            Phase("bottom", bottom, ("dense",), ("bottom_out",), "compute"),
            Phase(TURN, top, ("pooled", "bottom_out"), ("pooled_grad", "bottom_grad"), "compute"),
            Phase("bottom_backward", bottom_backward, ("bottom_grad",), (), "compute"),
            *backward_in_order(self.embedding),
        )


def _weighed(values: Tensor, ids: Tensor, table: int, column: int) -> Tensor:
    """Sum of `values` [n, width] times a weight below _PRIME of table, id and column; [1] float64."""
    columns = column * values.shape[1] + torch.arange(values.shape[1])
    weights = (ids[:, None] * 31 + columns * 7 + table * 13) % _PRIME
    return (values.double() * weights).sum().view(1)
