"""What a phase asks of the cluster, as data: bytes from rank to rank of its collectives, or work of each rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cost import Cost

from .schedule import Schedule, split_offset
from .topology import Link, Topology


@dataclass(frozen=True)
class Collective:
    """`calls` of collective `name` (`all_to_all`, `all_reduce`, `reduce_scatter`), which together send `bytes`
    [world, world] from rank to rank.
    """

    name: str
    bytes: Tensor
    calls: int

    def slowest(self, topology: Topology) -> tuple[str, Link, float]:
        """The slowest of the links that it uses at the same time: kind, link, and the bytes on it.

        It uses the links over which bytes go, or the widest one if none go anywhere. A ring goes through all its links
        in step, so its time between nodes has those inside in it.
        """
        bytes_ = loads(self.bytes, topology.ranks_per_node, topology.nics)
        widest = "nic" if topology.nodes > 1 else "intra"
        used = [kind for kind, load in bytes_.items() if load] or [widest]
        if self.name != "all_to_all" and "nic" in used:
            used = ["nic"]
        links = [(kind, topology.link(kind, self.name), bytes_[kind]) for kind in used]
        return max(links, key=lambda link: link[1].seconds(link[2], self.calls))


@dataclass(frozen=True)
class Transfer:
    """What a network phase does on one kind of link: `latency` seconds that nobody shares, then `seconds` with the link
    to itself, longer if others use it too.
    """

    kind: str
    latency: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What `op` ("<backend>/<op>", or a name of its own) does on each rank: one Cost a rank."""

    op: str
    ranks: tuple[Cost, ...]


Compute = Sequence[float] | Work
"""Of a compute or host link phase: seconds of each rank, or its work."""


@dataclass(frozen=True)
class PhaseCost:
    """A network phase has `collectives`, one after another; any other phase has `compute`."""

    collectives: tuple[Collective, ...] = ()
    compute: Compute = ()

    def compute_seconds(self, topology: Topology) -> list[float]:
        """Seconds of each rank."""
        if isinstance(self.compute, Work):
            return [topology.compute_seconds(self.compute.op, cost) for cost in self.compute.ranks]
        return list(self.compute)

    def network_seconds(self, topology: Topology) -> float:
        """Seconds from the last rank's arrival, with every link to itself."""
        return sum(transfer.latency + transfer.seconds for transfer in self.transfers(topology))

    def transfers(self, topology: Topology) -> list[Transfer]:
        """From the last rank's arrival, one after another: each collective on its slowest link.

        Collectives on one link are priced as one message of all their bytes: they come too close for a shaped link to
        give its burst to each.
        """
        if topology.world == 1:
            return []
        used: dict[tuple[str, Link], tuple[float, int]] = {}
        for collective in self.collectives:
            kind, link, load = collective.slowest(topology)
            bytes_, calls = used.get((kind, link), (0.0, 0))
            used[kind, link] = (bytes_ + load, calls + collective.calls)
        found = []
        for (kind, link), (bytes_, calls) in used.items():
            latency = link.seconds(0, calls)
            found.append(Transfer(kind, latency, link.seconds(bytes_, calls) - latency))
        return found


def costs(
    schedule: Schedule,
    sent: Mapping[str, Tensor],
    calls: Mapping[tuple[str, str], int],
    compute: Mapping[str, Compute] | None = None,
) -> dict[str, PhaseCost]:
    """A cost for every phase of `schedule`, by name.

    `sent` has the bytes of one step from rank to rank [world, world] by label, as strategies predict them; `calls`
    the calls of one step by label and collective, as `Group.calls` counts them (they do not depend on the batch). The
    collectives of a phase are those whose label is its name, or begins with that and a dot. `compute` prices every
    other phase; None says that computing takes no time, so that the step is its communication.

    Raises ValueError for a phase without a price, a label that only one of `sent` and `calls` has, and one of no phase.
    """
    if missing := {label for label, _ in calls} ^ sent.keys():
        raise ValueError(f"expected the same labels in sent and calls; only one has {', '.join(sorted(missing))}")
    world = len(next(iter(sent.values()))) if sent else 1
    prices, left = {}, set(sent)
    for phase in schedule.phases:
        if phase.resource == "network":
            name = split_offset(phase.name)[1]  # a label does not say whose batch it is
            of_phase = [key for key in calls if key[0] == name or key[0].startswith(f"{name}.")]
            if not of_phase:
                raise ValueError(f"phase {phase.name!r}: expected bytes and calls under its name, given none")
            left.difference_update(label for label, _ in of_phase)
            collectives = tuple(Collective(name, sent[label], calls[label, name]) for label, name in of_phase)
            prices[phase.name] = PhaseCost(collectives)
        elif compute is None:
            prices[phase.name] = PhaseCost(compute=[0.0] * world)
        elif phase.name in compute:
            prices[phase.name] = PhaseCost(compute=compute[phase.name])
        else:
            raise ValueError(f"phase {phase.name!r}: expected its seconds or its work in `compute`, given none")
    if left:
        raise ValueError(f"expected every label to belong to a network phase; {', '.join(sorted(left))} does not")
    return prices


def loads(bytes_: Tensor, ranks_per_node: int, nics: int = 1) -> Mapping[str, float]:
    """Bytes of the busiest end of each kind of link, out or in, under `bytes_` [world, world] from rank to rank.

    `intra`: of a rank, from and to ranks of its node. `nic`: of one of a node's `nics`, from and to other nodes; each
    carries what a run of ranks_per_node / nics ranks sends and gets.
    """
    node = torch.arange(len(bytes_)) // ranks_per_node
    within = node[:, None] == node[None, :]
    inside, between = bytes_ * within, bytes_ * ~within
    of_nic = torch.stack([between.sum(1), between.sum(0)]).view(2, -1, ranks_per_node // nics).sum(2)
    return {"intra": float(torch.stack([inside.sum(1), inside.sum(0)]).max()), "nic": float(of_nic.max())}
