"""What the experiments of this group share: a cluster at several rates, and steps of an embedding without a model.

A step is the forward exchange, a timer in place of the dense part, a gradient of ones, and the update: everything that
moves rows. The timer rests the link as a model would.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from comm.counts import Counts
from comm.group import Group
from comm.plan import Plan
from comm.schedule import Frame, Phase, Schedule
from comm.simulate import Timeline
from comm.strategy import INPUTS
from experiments.cluster import Cluster, available, change_rate, link_bytes
from experiments.data.zipf import zipf_ids
from experiments.record import Value
from kernels import Bags, TableSpec
from models.cost import counts_of
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.trace import executed

PAUSE_S = 0.01
"""Rest of the links before a step and between forward and backward, as in calibration: the burst of a shaped link (128
kB) has come back at 100 Mbit/s or more.
"""
LR = 0.01

T = TypeVar("T")


def cluster_of(nodes: int, ranks_per_node: int, rate: str) -> Cluster:
    """A cluster with shaped links where this machine can have one, else on plain loopback; its `link` says which."""
    return Cluster(nodes, ranks_per_node, rate, shaping=available() is None)


def at_rates(group: Group, cluster: Cluster, rates: Sequence[str]) -> Iterator[Cluster]:
    """`cluster` at each of the rates in turn, or once as it is if its links are not shaped. All ranks iterate."""
    if not cluster.shaping:
        yield cluster
        return
    for rate in rates:
        yield change_rate(group, cluster, rate)


def environment(cluster: Cluster) -> dict[str, Value]:
    """What a record of such steps adds to its environment."""
    return {
        **cluster.env(),
        "device_time": f"kernels real, dense part a timer of {1e3 * PAUSE_S:g} ms",
        "dense_grads": "off",
    }


@dataclass(frozen=True)
class Workload:
    """`tables` of `rows` x `dim` float32; `batch` samples a rank, `hotness` Zipf ids a bag."""

    tables: int = 8
    rows: int = 20_000
    dim: int = 32
    hotness: int = 4
    batch: int = 128
    alpha: float = 1.05

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """The tables."""
        return tuple(TableSpec(f"t{i}", self.rows, self.dim) for i in range(self.tables))

    def bags(self, world: int) -> list[Bags]:
        """Table-major bags of every rank: one global batch."""
        count = self.batch * self.hotness
        ids = [zipf_ids(self.rows, self.alpha, world * count, seed).view(world, count) for seed in range(self.tables)]
        offsets = torch.arange(self.tables * self.batch + 1) * self.hotness
        return [Bags(torch.cat([table[rank] for table in ids]), offsets) for rank in range(world)]


@dataclass(frozen=True)
class Ran:
    """What one rank saw of one step: `sent` [world] int64 by label; `left` bytes that left its node, with headers and
    barriers (None: unshaped).
    """

    events: list[Event]
    sent: dict[str, Tensor]
    calls: dict[tuple[str, str], int]
    left: int | None


class EmbeddingStep:
    """One step of the tables of `plan` on one rank, the same batch each time; `batches` has every rank's bags."""

    def __init__(self, group: Group, plan: Plan, batches: Sequence[Bags]) -> None:
        self.group, self.batches = group, batches
        self.embedding = ShardedEmbedding(plan, group)
        dense = Phase("dense", _dense, ("pooled",), ("pooled_grad",), "compute")
        phases = (*self.embedding.forward_phases(), dense, *self.embedding.backward_phases())
        self.schedule = Schedule(phases, (*INPUTS, "bags"))
        self.labels = tuple(f"{team.label}." for team in self.embedding.teams)

    @property
    def network(self) -> list[Phase]:
        """Its network phases."""
        return [phase for phase in self.schedule.phases if phase.resource == "network"]

    def counts(self) -> dict[str, Counts]:
        """Counts of the global batch by label of team."""
        return counts_of(self.embedding, self.batches)

    def bytes_sent(self) -> dict[str, Tensor]:
        """Bytes from rank to rank [world, world] int64 by label, as the strategies predict them."""
        counts = self.counts()
        return {
            f"{team.label}.{name}": bytes_
            for team in self.embedding.teams
            for name, bytes_ in team.strategy.sent(counts[team.label]).items()
        }

    def frame(self) -> Frame:
        """The inputs of a step on this rank."""
        return {"step": 0, "lr": LR, "training": True, "bags": self.batches[self.group.rank]}

    def run(self, shaped: bool) -> Ran:
        """One step, all ranks together; reads the link's counter around it if it is `shaped`."""
        group, frame = self.group, self.frame()
        sent = {label: bytes_.clone() for label, bytes_ in group.sent.items()}
        calls = dict(group.calls)
        events, left = watched(group, shaped, lambda: Executor().run(self.schedule, frame))
        moved = {label: bytes_ - sent.get(label, 0) for label, bytes_ in group.sent.items() if self._mine(label)}
        called = {key: n - calls.get(key, 0) for key, n in group.calls.items() if self._mine(key[0])}
        return Ran(events, moved, called, left)

    def _mine(self, label: str) -> bool:
        return label.startswith(self.labels)


def _dense(pooled: Tensor) -> Tensor:
    """Take as long as a small model would; the gradient of the sum of all that was pooled."""
    time.sleep(PAUSE_S)
    return torch.ones_like(pooled)


def watched(group: Group, shaped: bool, call: Callable[[], T]) -> tuple[T, int | None]:
    """What `call` returns, begun by all ranks together after a rest, and the bytes that left this node meanwhile.

    They include those of three barriers: watch a call that does nothing for their number. None if not `shaped`.
    """
    before = _left_node(group) if shaped else 0
    time.sleep(PAUSE_S)
    group.barrier()
    result = call()
    return result, _left_node(group) - before if shaped else None


def _left_node(group: Group) -> int:
    """Bytes that left this node so far, while all ranks are quiet."""
    group.barrier()  # everybody has what it waited for, so nothing is on its way
    sent = link_bytes().sent
    group.barrier()  # nobody goes on before all have read
    return sent


def stacked(ranks: Sequence[Ran]) -> dict[str, Tensor]:
    """Bytes of a step from rank to rank [world, world] by label, from what each rank sent."""
    return {label: torch.stack([ran.sent[label] for ran in ranks]) for label in ranks[0].sent}


def timeline(ranks: Sequence[Ran]) -> Timeline:
    """The executed step of all ranks, in rank order."""
    return executed([ran.events for ran in ranks], together(stacked(ranks)))


def between_nodes(bytes_: Tensor, ranks_per_node: int) -> int:
    """Of `bytes_` [world, world] from rank to rank, those that go from node to node."""
    node = torch.arange(len(bytes_)) // ranks_per_node
    return int((bytes_ * (node[:, None] != node[None, :])).sum())


def together(bytes_: Mapping[str, Tensor]) -> Tensor:
    """Bytes from rank to rank [world, world] under all labels."""
    return torch.stack(list(bytes_.values())).sum(0)
