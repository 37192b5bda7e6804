"""Arms on clusters that are not here: the schedule of a step, exact bytes of real batches, a calibrated Topology.

Compute phases cost nothing but the dense part, whose seconds are given: what is priced is the exchange and what hides
it. Bytes are the strategies' own predictions for the batches, so nothing but seconds is a model.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

import torch
from torch import Tensor

from comm.cost import costs, loads
from comm.counts import Counts
from comm.exchange import Exchange
from comm.group import Group, SimGroup, simulate
from comm.plan import Plan
from comm.planner.boundary import RowUse, choose
from comm.schedule import Schedule, split_offset
from comm.simulate import Timeline
from comm.simulate import simulate as price
from comm.topology import Link, Topology
from comm.travel import Travel
from experiments.cluster import Cluster
from experiments.config import Measurement
from experiments.data.batch import ClickStream
from experiments.data.counting import count_bags
from experiments.fec._arms import ARMS, BASELINES, Arm
from experiments.fec._bench import OPTIMIZER, Bench, StandIn, frames_of
from experiments.fec._cell import Cell, point_of, unit
from experiments.record import Value
from kernels import Bags, Optimizer, TableSpec
from kernels.cost import Device
from models.cost import bytes_sent, counts_of, dense_bytes
from models.embedding import ShardedEmbedding
from models.prefetch_step import PrefetchStep
from models.step import TrainingStep

NEEDED = 4
"""Global batches of which the second is priced: it has neighbours on both sides."""


EFFICIENCY = 0.78
"""Of a shaped link's rate that gloo's all_to_all reaches with 2 x 2 ranks: bytes of `raw` over its seconds in
`fec/comm_time`; other ranks and machines differ somewhat, which is why clocked points calibrate their own.
"""


def nominal(cell: Cell) -> Topology:
    """Links of the cell's rate where none are calibrated; a call takes what it does on a machine that ranks share."""
    rate = Cluster(cell.nodes, cell.ranks_per_node, cell.rate).bytes_per_s
    source = f"nominal: {cell.rate} x {EFFICIENCY}, not calibrated"
    links = {"nic/all_to_all": Link(2e-3, EFFICIENCY * rate, source), "intra/all_to_all": Link(1e-3, 4e8, source)}
    return Topology(cell.nodes, cell.ranks_per_node, links, Device("none", 1.0, 1.0, "no compute is priced"))


class Simulation:
    """A stream on a cluster: batches drawn and counted once, then any arm. `hot` sets are chosen from the `counted`
    batches before those that are priced.
    """

    def __init__(self, cell: Cell, topology: Topology) -> None:
        self.cell, self.topology = cell, topology
        stream = cell.open(NEEDED)
        self.tables = stream.tables
        self.batches = _global_batches(stream, cell, cell.counted, NEEDED)
        self.use: RowUse = count_bags(self.tables, iter(_global_batches(stream, cell, 0, cell.counted)))
        self._counted: dict[tuple[tuple[int, ...], ...], Counts] = {}
        # a de-duplicated step without dense part is its communication
        self.dense_s = self.step("unique", 0.0).seconds * (1 / cell.share - 1)

    def hot(self, arm: Arm) -> list[tuple[int, ...]]:
        """The hot set that the boundary's model chooses."""
        if not arm.tier:
            return []
        found = choose(self.use, arm.timing(self.dense_s), self.topology, self.cell.row, self.cell.memory)
        return found.of_tables([table.rows for table in self.tables])

    def step(self, name: str, dense_s: float | None = None) -> Timeline:
        """One step of the arm of that name."""
        arm = ARMS[name]
        dense_s = self.dense_s if dense_s is None else dense_s
        schedule, sent = self._asked(arm)
        world, parts = self.topology.world, arm.when.parts if arm.when else 1
        compute = {
            phase.name: [dense_s / parts if _is_dense(phase.name) else 0.0] * world
            for phase in schedule.phases
            if phase.resource != "network"
        }
        several = self.topology.nodes > 1 and self.topology.ranks_per_node > 1
        prices = costs(schedule, sent, calls_of(name, self.cell.dim, several), compute)
        return price(schedule, prices, self.topology, overlap=True)

    def _asked(self, arm: Arm) -> tuple[Schedule, dict[str, Tensor]]:
        """The schedule of a step and its bytes from rank to rank by label."""
        world, local = self.topology.world, self.topology.ranks_per_node
        group: Group = SimGroup(0, world, local, Exchange(world, 1.0))
        plan = arm.plan(self.tables, world, self.hot(arm))
        embedding = ShardedEmbedding(plan, group, Optimizer(OPTIMIZER), init="zeros")
        counts, model = self._counts(embedding, plan), StandIn(embedding)
        if arm.when is None:
            step = TrainingStep(model, None)
            return step.schedule(), bytes_sent(step, counts)
        step = PrefetchStep(model, None, when=arm.when)
        sent = dense_bytes(step)
        for exchange in step.exchanges:
            travel = Travel.of(exchange.exchange.shards, self.batches[:3], arm.when)[1]
            moved = exchange.sent(counts[exchange.label], travel)
            sent |= {f"{exchange.label}.{name}": bytes_ for name, bytes_ in moved.items()}
        return step.pipeline().schedule(), sent

    def _counts(self, embedding: ShardedEmbedding, plan: Plan) -> dict[str, Counts]:
        """Counts of the priced batch by label of the one team; arms that place rows alike share them."""
        key = tuple(placement.hot for placement in plan.placements)
        if key not in self._counted:
            (self._counted[key],) = counts_of(embedding, self.batches[1]).values()
        return {team.label: self._counted[key] for team in embedding.teams}


@cache
def calls_of(name: str, dim: int, several: bool) -> dict[tuple[str, str], int]:
    """Calls of a step by label and collective: as many on any cluster, so counted on a small one of threads, of
    `several` ranks on several nodes or not.
    """
    arm, tables = ARMS[name], tuple(TableSpec(f"t{i}", 9, dim) for i in range(2))
    count = 6

    def run(group: Group) -> dict[tuple[str, str], int]:
        draw = torch.Generator().manual_seed(group.rank)
        bags = [Bags(torch.randint(0, 9, (8,), generator=draw), torch.arange(9)) for _ in range(count)]
        frames = frames_of(bags, [torch.zeros(4)] * count, [torch.zeros(4, 1)] * count, group.size)
        hot = [(0, 1), (2,)]
        _, iterations = Bench(group, tables).burst(arm, hot, frames, 0.0, 2)
        return iterations[0].calls

    return simulate(4, run, 2 if several else None)[0]


def _global_batches(stream: ClickStream, cell: Cell, start: int, count: int) -> list[list[Bags]]:
    """`count` global batches from the `start`-th on, each a Bags a rank."""
    batch = cell.local_batch(NEEDED) * cell.world
    ranks = (islice(stream.batches(batch, rank, cell.world, start), count) for rank in range(cell.world))
    return [[part.bags for part in parts] for parts in zip(*ranks, strict=True)]


def _is_dense(phase: str) -> bool:
    name = split_offset(phase)[1]
    return name == "dense" or name.startswith("dense.")


def simulated(cell: Cell, topology: Topology, arms: Sequence[str], **point: Value) -> Iterator[Measurement]:
    """Every arm of the cell, priced; ratios to those of `arms` that are baselines."""
    simulation = Simulation(cell, topology)
    lines = {name: simulation.step(name) for name in arms}
    bases = {name: lines[name] for name in BASELINES if name in lines}
    kind = "nic" if topology.nodes > 1 else "intra"
    for name, line in lines.items():
        metrics = {
            "step_ms": 1e3 * line.seconds,
            "exposed_ms": 1e3 * max(line.exposed),
            "bytes_between": loads(line.bytes, topology.ranks_per_node)[kind],
            "bytes_sent": float(line.bytes.sum()) / topology.world,
            "samples_per_s": cell.batch * cell.world / line.seconds,
        }
        for base, of_base in bases.items():
            metrics[f"throughput_vs_{base}"] = of_base.seconds / line.seconds
            metrics[f"exposed_vs_{base}"] = max(of_base.exposed) / max(*line.exposed, 1e-9)
        units = {metric: unit(metric) for metric in metrics}
        env: dict[str, Value] = {"device_time": f"dense part {1e3 * simulation.dense_s:.0f} ms, the rest free"}
        yield Measurement(point_of(cell, name) | point, metrics, units, 1, "simulated", env | {"dense_grads": "off"})
