"""Prices a Schedule on a Topology: the same phases, needs and streams that the executor runs, with costs for clocks.

A phase starts on a rank when its stream is free and what it needs is there. A network phase is a collective: bytes
move once every rank has arrived, and it ends on all ranks at once. Phases of several streams that move bytes over one
kind of link at the same time share it evenly, as flows of one bottleneck do; latencies are not shared. So without
overlap a step takes the sum over its phases of the maxima over ranks, whenever every compute phase is followed by a
collective.

What is left out: cores that phases of two streams share, and ranks that a collective lets go early.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .cost import PhaseCost, Transfer, Work
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
        """Seconds of each rank in which some network phase is on, waiting included, and its compute stream is idle.

        What another stream computes meanwhile hides nothing: the step waits for the compute stream.
        """
        found = []
        for rank in range(len(self.bytes)):
            mine = [span for span in self.spans if span.rank == rank]
            network = [(s.start, s.end) for s in mine if s.resource == "network"]
            busy = [(s.start, s.end) for s in mine if s.resource == "compute" and s.stream in ("", "compute")]
            # what the network adds to the time in which the compute stream is busy
            found.append(_covered([*network, *busy]) - _covered(busy))
        return found


def simulate(schedule: Schedule, costs: Mapping[str, PhaseCost], topology: Topology, overlap: bool = False) -> Timeline:
    """Price `schedule` with `costs` by name of phase. `overlap` as in the executor: phases of different streams run
    beside each other, or all in one.

    Raises ValueError if a phase has no cost, or one that is not of its resource or not of `topology.world` ranks.
    """
    for phase in schedule.phases:
        _check(phase, costs, topology.world)
    spans = _Simulation(schedule, costs, topology, overlap).run()
    bytes_ = torch.zeros(topology.world, topology.world, dtype=torch.int64)
    for phase in schedule.phases:
        for collective in costs[phase.name].collectives:
            bytes_ += collective.bytes
    return Timeline(tuple(spans), bytes_)


class _Flow:
    """A collective on its way: its transfers one after another, each a latency and then bytes that share their link."""

    def __init__(self, phase: int, transfers: Iterable[Transfer], now: float) -> None:
        self.phase, self.since = phase, now
        self.stages = [
            stage
            for t in transfers
            for stage in ((None, t.latency), (t.kind, t.seconds))
            if stage[0] is None or stage[1]
        ]
        self.left = self.stages[0][1] if self.stages else 0.0

    @property
    def kind(self) -> str | None:
        """The kind of link that it loads now; None in a latency."""
        return self.stages[0][0] if self.stages else None

    def ends(self, sharing: int) -> float:
        """When the stage ends, if `sharing` flows go on sharing its link."""
        return self.since + self.left * (sharing if self.kind else 1)

    def settle(self, now: float, sharing: int) -> None:
        """Bring `left` up to `now`, having shared with `sharing` flows."""
        self.left = max(0.0, self.left - (now - self.since) / (sharing if self.kind else 1))
        self.since = now


class _Simulation:
    """One run: ranks go through their streams on their own, collectives join them. Time moves from event to event."""

    def __init__(self, schedule: Schedule, costs: Mapping[str, PhaseCost], topology: Topology, overlap: bool) -> None:
        self.phases, self.world, self.now = schedule.phases, topology.world, 0.0
        self.transfers = [costs[phase.name].transfers(topology) for phase in self.phases]
        self.compute = [costs[phase.name].compute_seconds(topology) for phase in self.phases]
        giver: dict[str, int] = {}
        last: dict[str, int] = {}  # of each stream, its latest phase so far
        before: list[set[int]] = []
        for number, phase in enumerate(self.phases):
            stream = phase.stream if overlap else "all"
            of_stream = {last[stream]} if stream in last else set()
            before.append(of_stream | {giver[name] for name in phase.needs if name in giver})
            last[stream] = number
            giver |= dict.fromkeys(phase.gives, number)
        self.after: list[list[int]] = [[] for _ in self.phases]
        for number, others in enumerate(before):
            for other in others:
                self.after[other].append(number)
        self.first = [number for number, others in enumerate(before) if not others]
        self.missing = [[len(others)] * self.world for others in before]
        self.start = [[0.0] * self.world for _ in self.phases]
        self.end = [[0.0] * self.world for _ in self.phases]
        self.together = [0.0] * len(self.phases)
        self.arrived = [0] * len(self.phases)
        self.computing: list[tuple[float, int, int]] = []  # end, phase, rank
        self.flows: list[_Flow] = []

    def run(self) -> list[Span]:
        """Every phase's span on every rank, in the schedule's order."""
        for number in self.first:
            for rank in range(self.world):
                self._begin(number, rank)
        while self.computing or self.flows:
            load = self._load()
            flow = min(self.flows, key=lambda f: f.ends(load.get(f.kind, 1)), default=None)
            if flow is None or (self.computing and self.computing[0][0] <= flow.ends(load.get(flow.kind, 1))):
                self.now, number, rank = heapq.heappop(self.computing)
                self._done(number, [rank])
            else:
                self.now = flow.ends(load.get(flow.kind, 1))
                self._advance(flow, load)
        return [self._span(number, rank) for number in range(len(self.phases)) for rank in range(self.world)]

    def _begin(self, number: int, rank: int) -> None:
        self.start[number][rank] = self.now
        if self.phases[number].resource != "network":
            heapq.heappush(self.computing, (self.now + self.compute[number][rank], number, rank))
            return
        self.arrived[number] += 1
        if self.arrived[number] == self.world:
            self.together[number] = self.now
            flow = _Flow(number, self.transfers[number], self.now)
            if flow.stages:  # it begins with a latency, which slows nobody
                self.flows.append(flow)
            else:  # one rank, nobody to wait for
                self._done(number, range(self.world))

    def _advance(self, flow: _Flow, load: Mapping[str | None, int]) -> None:
        """`flow` is through with a stage."""
        self._settle(load)
        flow.stages.pop(0)
        if flow.stages:
            flow.left = flow.stages[0][1]
        else:
            self.flows.remove(flow)
            self._done(flow.phase, range(self.world))

    def _load(self) -> dict[str | None, int]:
        """How many flows load each kind of link now."""
        load: dict[str | None, int] = defaultdict(int)
        for flow in self.flows:
            load[flow.kind] += 1
        return load

    def _settle(self, load: Mapping[str | None, int]) -> None:
        for flow in self.flows:
            flow.settle(self.now, load[flow.kind])

    def _done(self, number: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.end[number][rank] = self.now
        for rank in ranks:
            for other in self.after[number]:
                self.missing[other][rank] -= 1
                if not self.missing[other][rank]:
                    self._begin(other, rank)

    def _span(self, number: int, rank: int) -> Span:
        phase, start = self.phases[number], self.start[number][rank]
        waited = self.together[number] - start if phase.resource == "network" else 0.0
        return Span(phase.name, phase.resource, rank, start, self.end[number][rank], waited, phase.stream)


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


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in any of `intervals`."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
