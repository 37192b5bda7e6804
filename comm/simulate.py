"""Prices a Schedule on a Topology: the same phases, needs and streams that the executor runs, with costs for clocks.

A phase starts on a rank when its stream is free and what it needs is there. A network phase is a collective: bytes
move once every rank has arrived, and it ends on all ranks at once. So without overlap a step takes the sum over its
phases of the maxima over ranks, whenever every compute phase is followed by a collective.

What is left out: links and cores that phases of two streams share, and ranks that a collective lets go early.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .cost import PhaseCost, Work
from .schedule import Phase, Resource, Schedule
from .topology import Topology


@dataclass(frozen=True)
class Span:
    """One phase on one rank's stream, in seconds; the first `waited` of them it waited for other ranks."""

    phase: str
    resource: Resource
    rank: int
    start: float
    end: float
    waited: float = 0.0
    stream: str = ""


@dataclass(frozen=True)
class Timeline:
    """A step, simulated or executed: what ran when on every rank, and `bytes` [world, world] from rank to rank."""

    spans: tuple[Span, ...]
    bytes: Tensor

    @property
    def seconds(self) -> float:
        """From the first rank's start to the last one's end."""
        return max((span.end for span in self.spans), default=0.0) - min((s.start for s in self.spans), default=0.0)

    @property
    def communication(self) -> dict[str, float]:
        """Seconds of each network phase in which bytes move: from the last rank's arrival to the last one's end."""
        phases = defaultdict(list)
        for span in self.spans:
            if span.resource == "network":
                phases[span.phase].append(span)
        return {name: max(s.end for s in spans) - max(s.start for s in spans) for name, spans in phases.items()}

    @property
    def exposed(self) -> list[float]:
        """Seconds of each rank in which its network stream is busy, waiting included, and its compute stream is not."""
        return [
            sum(_uncovered(network, self._of(rank, "compute")) for network in self._of(rank, "network"))
            for rank in range(len(self.bytes))
        ]

    def _of(self, rank: int, resource: Resource) -> list[Span]:
        return [span for span in self.spans if (span.rank, span.resource) == (rank, resource)]


def simulate(schedule: Schedule, costs: Mapping[str, PhaseCost], topology: Topology, overlap: bool = False) -> Timeline:
    """Price `schedule` with `costs` by name of phase. `overlap` as in the executor: a stream for each resource, or one
    for all.

    Raises ValueError if a phase has no cost, or one that is not of its resource or not of `topology.world` ranks.
    """
    world = topology.world
    for phase in schedule.phases:
        _check(phase, costs, world)
    free: dict[str, list[float]] = {}  # when each stream is, by rank
    ready = {name: [0.0] * world for name in schedule.inputs}
    spans: list[Span] = []
    for phase in schedule.phases:
        before = [free.get(phase.stream if overlap else "all", [0.0] * world), *(ready[name] for name in phase.needs)]
        start = [max(times) for times in zip(*before, strict=True)]
        waited = [0.0] * world
        if phase.resource == "network":
            together = max(start)
            waited = [together - at for at in start]
            end = [together + costs[phase.name].network_seconds(topology)] * world
        else:
            end = [a + b for a, b in zip(start, costs[phase.name].compute_seconds(topology), strict=True)]
        free[phase.stream if overlap else "all"] = end
        ready |= dict.fromkeys(phase.gives, end)
        spans += [Span(phase.name, phase.resource, r, start[r], end[r], waited[r], phase.stream) for r in range(world)]
    bytes_ = torch.zeros(world, world, dtype=torch.int64)
    for phase in schedule.phases:
        for collective in costs[phase.name].collectives:
            bytes_ += collective.bytes
    return Timeline(tuple(spans), bytes_)


def _check(phase: Phase, costs: Mapping[str, PhaseCost], world: int) -> None:
    where = f"phase {phase.name!r}"
    if phase.name not in costs:
        raise ValueError(f"{where}: expected a cost, given none: `comm.cost.costs` makes one for every phase")
    cost = costs[phase.name]
    if phase.resource == "network":
        shapes = {tuple(collective.bytes.shape) for collective in cost.collectives}
        if not cost.collectives or cost.compute or shapes != {(world, world)}:
            raise ValueError(f"{where}: expected collectives over {world} ranks, given {cost}")
        return
    ranks = cost.compute.ranks if isinstance(cost.compute, Work) else cost.compute
    if cost.collectives or len(ranks) != world:
        raise ValueError(f"{where} ({phase.resource}): expected the compute of {world} ranks, given {cost}")


def _uncovered(span: Span, others: list[Span]) -> float:
    """Seconds of `span` outside `others`, which do not overlap each other."""
    return span.end - span.start - sum(max(0.0, min(span.end, o.end) - max(span.start, o.start)) for o in others)
