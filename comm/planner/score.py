"""What a plan costs: seconds of a step in expectation, by stage, and bytes of memory a rank.

Network phases send what the strategies' own formulas say (`Strategy.sent`) on expected counts, priced as
`comm.simulate` prices them: latency of every call, the slowest link, busiest end, one team after another. Compute
phases are charged the memory traffic of their ops (`cost` in each op's `cases.py`, ids of 8 bytes, gradients read once
an id), by a measured rate of the topology where there is one ("<backend>/<op>"), else by the device's bandwidth:

    route         pooled: bucketize of all ids, once a block of columns; unique: unique_ids, bucketize of the distinct
    gather        pooled: pooled_lookup of what arrived; unique: row_copy of the rows asked for
    combine       pooled: one read of every partial sum, one write of a sum, at each level; unique: pooled_lookup of the
                  bags, and segment_grads of their gradients on the way back; unique_node: the copies for its node too
    index, apply  unique_ids and segment_grads at every level of the canonical sum, sparse_update of the touched rows
    replicated_dense   look-up, sort and sum of its own batch; three passes over the dense buffer of all its rows

All teams' phases of one kind follow each other, so ranks wait for each other once a kind. Of the ids of a table cut
into row parts, the part of its most frequent id gets more (`TableLoad.hot_share`). Left out: packing into a wire
format, caches of the device (a repeated row is read again), messages too small for a link's rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from comm.cost import Collective, PhaseCost
from comm.plan import Placement, Plan
from comm.topology import Link, Topology
from comm.wire import Wire, row_bytes
from kernels.sparse_update.optimizer import STATES

from ._arrays import (
    APPLY,
    BUFFER,
    COMBINE,
    EVERYWHERE,
    FLAT,
    GATHER,
    GATHER_OWN,
    GRAD,
    GRAD_RAIL,
    INDEX,
    KEYS,
    KEYS_RAIL,
    MEET,
    NODE_REDUCE,
    NODES,
    ROUTE,
    SEND,
    UNIQUE,
    UNIQUE_NODE,
    Fixed,
    Floats,
    State,
    empty_state,
)  # fmt: skip
from ._load import price, put
from ._step import step_seconds
from .workload import DenseLoad, Workload

Overlap = Literal["none", "step", "steps"]
"""Nothing; exchanges under compute of the same step; and keys one batch ahead as well. See `_step.step_seconds`."""
OVERLAPS: tuple[str, ...] = get_args(Overlap)
KINDS = {
    "tablewise": FLAT,
    "columnwise": FLAT,
    "rowwise": FLAT,
    "gridwise": FLAT,
    "hierarchical": NODES,
    "unique": UNIQUE,
    "unique_node": UNIQUE_NODE,
    "replicated_dense": EVERYWHERE,
}
"""The strategies that can be scored, and the form of their cost."""
OPS = ("bucketize", "unique_ids", "pooled_lookup", "row_copy", "segment_grads", "sparse_update")


@dataclass(frozen=True)
class Team:
    """Tables that travel together, as in `models.embedding`."""

    strategy: str
    width: int
    dtype: torch.dtype
    wire: Wire


@dataclass(frozen=True)
class Score:
    """Seconds of a step in expectation. `parts` are the stages, each of its slowest rank; `memory` bytes of each rank:
    weights, optimizer state and buffers.
    """

    step_s: float
    parts: Mapping[str, float]
    memory: tuple[float, ...]

    @property
    def communication_s(self) -> float:
        """Exchanges of the tables, nothing hidden."""
        return sum(self.parts[name] for name in ("keys", "keys_rail", "send", "grad_send", "grad_rail"))

    @property
    def embedding_s(self) -> float:
        """Everything but the dense part, nothing hidden."""
        return sum(seconds for name, seconds in self.parts.items() if not name.startswith("dense"))

    @property
    def exposed_s(self) -> float:
        """What a step takes beyond the computing of its dense part."""
        return self.step_s - self.parts["dense"]

    def fits(self, cap: float) -> bool:
        """Whether every rank's memory is within `cap` bytes."""
        return max(self.memory) <= cap


def score(plan: Plan, workload: Workload, topology: Topology, overlap: Overlap = "none") -> Score:
    """The expected step of `plan`.

    Raises ValueError, naming the table, for a plan of other tables or ranks, a strategy or split without a price here,
    and blocks of columns under a row-wise optimizer, whose exchange of norms has none.
    """
    if overlap not in OVERLAPS:
        raise ValueError(f"unknown overlap {overlap!r}: choose one of {', '.join(OVERLAPS)}")
    teams = teams_of(plan.placements, workload)
    _check(plan, workload, topology)
    fixed = fix(workload, topology, list(teams))
    state = place(fixed, plan, workload, list(teams))
    dense = dense_seconds(workload.dense, workload.batch / topology.world, topology)
    return _scored(state, dense, overlap)


def _scored(state: State, dense: Floats, overlap: Overlap) -> Score:
    net, total = state.net.sum(0), state.total
    seconds = {
        "route": total[ROUTE].max(), "keys": net[KEYS], "meet": total[MEET].max(), "keys_rail": net[KEYS_RAIL],
        "gather": (total[GATHER] + total[GATHER_OWN]).max(), "send": net[SEND],
        "combine": (total[COMBINE] + total[INDEX]).max(),
        "dense": dense[:3].sum(), "grad_send": net[GRAD], "node_reduce": total[NODE_REDUCE].max(),
        "grad_rail": net[GRAD_RAIL], "apply": total[APPLY].max(), "dense_reduce": dense[3],
    }  # fmt: skip
    memory = state.weights + total[BUFFER]
    step = step_seconds(state, dense, OVERLAPS.index(overlap))
    return Score(float(step), {name: float(s) for name, s in seconds.items()}, tuple(memory.tolist()))


def memory_bytes(plan: Plan, workload: Workload, topology: Topology) -> Floats:
    """Bytes of each rank [world]: weights, optimizer state, and buffers for ids and values of both directions."""
    return np.array(score(plan, workload, topology).memory)


def teams_of(placements: Sequence[Placement], workload: Workload) -> dict[Team, list[int]]:
    """Numbers of the tables of each team; ValueError for a strategy without a price here."""
    teams: dict[Team, list[int]] = {}
    for number, (placement, load) in enumerate(zip(placements, workload.tables, strict=True)):
        if placement.strategy not in KINDS:
            raise ValueError(
                f"table {placement.table!r}: expected a strategy that can be scored ({', '.join(KINDS)}), "
                f"given {placement.strategy!r}"
            )
        team = Team(placement.strategy, load.table.dim // placement.columns, load.table.dtype, placement.wire)
        teams.setdefault(team, []).append(number)
    return teams


def _check(plan: Plan, workload: Workload, topology: Topology) -> None:
    if plan.world != topology.world:
        raise ValueError(f"plan: expected one for {topology.world} ranks, given one for {plan.world}")
    for table, load, placement in zip(plan.tables, workload.tables, plan.placements, strict=True):
        if table != load.table:
            raise ValueError(f"table {table.name!r}: expected the workload's {load.table}, given {table}")
        if placement.split != "modulo":
            raise ValueError(f"table {table.name!r}: expected split modulo, given {placement.split!r}")
        if placement.columns > 1 and "row" in STATES[workload.optimizer.name]:
            raise ValueError(
                f"table {table.name!r}: expected one block of columns under {workload.optimizer.name}, whose exchange "
                f"of norms has no price, given {placement.columns}"
            )


def fix(workload: Workload, topology: Topology, teams: Sequence[Team]) -> Fixed:
    """The constants of all plans of `teams` on `topology`."""
    local_batch = workload.batch / topology.world
    loads = workload.tables
    ids = np.array([local_batch * load.hotness for load in loads])

    def distinct(ranks: int) -> Floats:
        return np.array([load.unique(ranks * n) for load, n in zip(loads, ids, strict=True)])

    states = STATES[workload.optimizer.name]
    rate, xs, ys = _rates(topology)
    return Fixed(
        world=topology.world, local=topology.ranks_per_node, per_nic=topology.ranks_per_node // topology.nics,
        batch=local_batch, cells=float(states.count("cell")), per_row=float(states.count("row")),
        ids=ids, distinct=distinct(1), node_distinct=distinct(topology.ranks_per_node),
        all_distinct=distinct(topology.world),
        rows=np.array([load.table.rows for load in loads]), hot_id=np.array([load.hot_id for load in loads]),
        hot_share=np.array([load.hot_share for load in loads], np.float64),
        kind=np.array([KINDS[team.strategy] for team in teams]), width=np.array([team.width for team in teams]),
        item=np.array([team.dtype.itemsize for team in teams]),
        wire=np.array([row_bytes(team.width, team.dtype, team.wire) for team in teams]), rate=rate, xs=xs, ys=ys,
    )  # fmt: skip


def _rates(topology: Topology) -> tuple[Floats, Floats, Floats]:
    """Links and ops in the order of `_arrays`: [alpha, beta, points] and the points."""
    nowhere = Link(0.0, float("inf"), "no such link here")
    links = [
        topology.link("intra", "all_to_all") if topology.ranks_per_node > 1 else nowhere,
        topology.link("nic", "all_to_all") if topology.nodes > 1 else nowhere,
    ]
    memory = Link(0.0, topology.device.bandwidth, topology.device.source)
    for op in OPS:
        measured = [link for name, link in topology.kernels.items() if name.rsplit("/", 1)[-1] == op]
        if len(measured) > 1:
            raise ValueError(f"topology: expected the rate of one backend for {op}, given {len(measured)}")
        links.append(measured[0] if measured else memory)
    most = max(1, *(len(link.points) for link in links))
    rate, points = (
        np.array([[link.alpha, link.beta, len(link.points)] for link in links]),
        np.zeros((2, len(links), most)),
    )
    for i, link in enumerate(links):
        if link.points:
            points[:, i, : len(link.points)] = np.array(link.points).T
    return rate, points[0], points[1]


def place(fixed: Fixed, plan: Plan, workload: Workload, teams: Sequence[Team]) -> State:
    """Every table of `plan` in its place, all teams priced."""
    state = empty_state(len(teams), fixed.world, fixed.world // fixed.local)
    for team, numbers in teams_of(plan.placements, workload).items():
        for number in numbers:
            placement = plan.placements[number]
            ranks = np.array(placement.ranks, np.int64)
            put(fixed, state, number, teams.index(team), placement.columns, placement.parts, ranks, 1.0)
    for k in range(len(teams)):
        price(fixed, state, k)
    return state


def dense_seconds(dense: DenseLoad, batch: float, topology: Topology) -> Floats:
    """Seconds of the dense part on `batch` samples a rank: bottom MLP forward, the rest but its backward, bottom MLP
    backward, reduction of gradients. A third of the flops are forward.
    """
    device = topology.device
    flops = 6.0 * dense.weights * batch / device.flops
    bottom, traffic = dense.bottom * flops, dense.activations * batch / device.bandwidth
    reduce = PhaseCost(dense_reduce(dense, topology)).network_seconds(topology) if dense.parameters else 0.0
    return np.array([bottom / 3, flops - bottom + traffic, bottom * 2 / 3, reduce])


def dense_reduce(dense: DenseLoad, topology: Topology) -> tuple[Collective, ...]:
    """The all-reduce of dense gradients as NCCL's rings: one for each place in a node, each through all ranks with its
    share of the bytes, leaving a node where it has its NIC. None on one rank.
    """
    world, local, nodes = topology.world, topology.ranks_per_node, topology.nodes
    ring = round(2 * dense.parameters * dense.gradient_bytes * (world - 1) / world / local)
    sent = torch.zeros(world, world, dtype=torch.int64)
    for rank in range(world):
        node, place = divmod(rank, local)
        after = node * local + (place + 1) % local
        if nodes > 1:
            sent[rank, (node + 1) % nodes * local + place] += ring
        if after != rank:
            sent[rank, after] += ring * (local - 1 if nodes > 1 else local)
    return (Collective("all_reduce", sent, 1),) if world > 1 else ()
