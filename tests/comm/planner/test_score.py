"""The planner's own arithmetic against the strategies' formulas and the simulator, on plans of every kind."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from comm.cost import PhaseCost, costs
from comm.counts import Counts
from comm.group import SimGroup, simulate
from comm.plan import Placement, Plan
from comm.planner import _arrays as a
from comm.planner.score import dense_reduce, dense_seconds, fix, place, score, teams_of
from comm.planner.stages import by_stage, stage_of
from comm.planner.workload import DenseLoad, TableLoad, Workload
from comm.presets import h100x8
from comm.schedule import Phase, Schedule
from comm.shards import Shards
from comm.simulate import simulate as simulate_schedule
from comm.strategy import INPUTS
from comm.topology import Link, Topology
from kernels import Bags, Optimizer, TableSpec
from kernels.cost import Device
from models.embedding import ShardedEmbedding
from models.executor import Executor

DENSE = DenseLoad(weights=1000, bottom=0.25, activations=64.0, parameters=4000, gradient_bytes=2)


def quarter(n: float) -> float:
    """Whole numbers on every shard, so that counts in int64 are exact."""
    return n / 4


def loads(number: int, rows: int = 4096) -> tuple[TableLoad, ...]:
    dims = (8, 16, 8, 16, 8, 16)
    return tuple(
        TableLoad(TableSpec(f"t{i}", rows, dims[i % 6]), 4.0 * (i + 1), quarter, 5 + i, (0.0, 0.5)[i % 2])
        for i in range(number)
    )


def topology(nodes: int, local: int, nics: int = 1) -> Topology:
    """Rates that differ everywhere; a link and an op with a knee."""
    links = {
        "intra/all_to_all": Link(3e-6, 5e9, "made up"),
        "nic/all_to_all": Link(11e-6, 1e9, "made up", ((1000.0, 11e-6), (9000.0, 12e-6), (40000.0, 50e-6))),
        "intra/all_reduce": Link(4e-6, 6e9, "made up"),
        "nic/all_reduce": Link(7e-6, 0.9e9, "made up"),
    }
    kernels = {
        "cpu/pooled_lookup": Link(1e-6, 7e9, "made up"),
        "cpu/unique_ids": Link(2e-6, 3e9, "made up", ((0.0, 2e-6), (5000.0, 3e-6))),
    }
    return Topology(nodes, local, links, Device("made up", 20e9, 1e9, "made up"), kernels, nics)


def workload(number: int, world: int, optimizer: str = "adagrad") -> Workload:
    return Workload("made up", loads(number), 64 * world, Optimizer(optimizer), DENSE)


def expected_counts(shards: Shards, work: Workload, topo: Topology) -> Counts:
    """What `Counts.of` would count on average."""
    world, batch = topo.world, work.batch // topo.world
    keys, unique = torch.zeros(2, world, world, dtype=torch.float64).unbind(0)
    node_unique = torch.zeros(topo.nodes, world, dtype=torch.float64)
    by_name = {load.table.name: load for load in work.tables}
    for cell in shards.cells:
        load = by_name[shards.tables[cell.table].name]
        ids = batch * load.hotness
        hot = load.hot_share if cell.part == load.hot_id % cell.parts else 0.0
        keys[:, cell.rank] += ids * ((1 - load.hot_share) / cell.parts + hot)
        unique[:, cell.rank] += load.distinct(ids) / cell.parts
        node_unique[:, cell.rank] += load.distinct(ids * topo.ranks_per_node) / cell.parts
    whole = [t.round().long() for t in (keys, unique, node_unique)]
    for counted, expected in zip(whole, (keys, unique, node_unique), strict=True):
        assert torch.equal(counted.double(), expected)  # or a difference below would be rounding
    held = torch.tensor([len(numbers) for numbers in shards.tables_of_rank])
    none = torch.zeros(world, dtype=torch.int64)
    return Counts(
        batch=torch.full((world,), batch), tables=held, keys=whole[0], unique=whole[1], node_unique=whole[2],
        touched=none, union=0, cell_rows=none, table_count=len(shards.tables), weighted=False,
    )  # fmt: skip


def run_once(group: SimGroup, plan: Plan, work: Workload, topo: Topology):
    """Phases, predicted bytes and counted calls of a step of the embedding, on one rank."""
    embedding = ShardedEmbedding(plan, group, work.optimizer, backend="cpu")
    dense = Phase("dense", torch.ones_like, ("pooled",), ("pooled_grad",), "compute")
    phases = (*embedding.forward_phases(), dense, *embedding.backward_phases())
    schedule = by_stage(Schedule(phases, (*INPUTS, "bags")))
    tables = len(plan.tables)
    bags = Bags(torch.arange(2 * tables) % 3, torch.arange(2 * tables + 1))
    Executor().run(schedule, {"step": 0, "lr": 0.1, "training": True, "bags": bags})
    sent = {}
    for team in embedding.teams:
        counts = expected_counts(team.strategy.shards, work, topo)
        sent |= {f"{team.label}.{name}": bytes_ for name, bytes_ in team.strategy.sent(counts).items()}
    return schedule, sent, dict(group.calls)


WORK = {
    "route": a.ROUTE, "dedup": a.ROUTE, "dedup_node": a.MEET, "combine": a.COMBINE, "node_reduce": a.NODE_REDUCE,
    "index": a.INDEX, "apply": a.APPLY,
}  # fmt: skip


def simulated(plan: Plan, work: Workload, topo: Topology) -> float:
    """The step of the real schedule: bytes and calls from the strategies, compute as the score charges it."""
    run = simulate(topo.world, lambda group: run_once(group, plan, work, topo), topo.ranks_per_node)
    schedule, sent, calls = run[0]
    teams = teams_of(plan.placements, work)
    state = place(fix(work, topo, list(teams)), plan, work, list(teams))
    seconds = dense_seconds(work.dense, work.batch / topo.world, topo)
    compute = {}
    for phase in schedule.phases:
        label, _, name = phase.name.rpartition(".")
        compute[phase.name] = [seconds[:3].sum() if name == "dense" else 0.0] * topo.world
        for k, team in enumerate(teams):
            wire = "" if team.wire == "table" else f"/{team.wire}"
            if label != f"{team.strategy}/{team.width}/float32{wire}":
                continue
            if name == "gather":
                compute[phase.name] = (state.work[k, a.GATHER] + state.work[k, a.GATHER_OWN]).tolist()
            elif name == "local_reduce" and team.strategy == "replicated_dense":
                compute[phase.name] = state.work[k, a.COMBINE].tolist()
            elif name in WORK:
                compute[phase.name] = state.work[k, WORK[name]].tolist()
    priced = costs(schedule, sent, calls, compute)
    reduce = Phase("dense_reduce", lambda: None, (), (), "network")
    priced["dense_reduce"] = PhaseCost(dense_reduce(work.dense, topo))
    whole = Schedule((*schedule.phases, reduce), schedule.inputs)
    if topo.world == 1:
        return simulate_schedule(schedule, priced, topo).seconds
    return simulate_schedule(whole, priced, topo).seconds


def plan_of(work: Workload, world: int, seed: int) -> Plan:
    """A table of every kind, on random ranks, some twice."""
    draw = np.random.default_rng(seed)
    kinds = ("hierarchical", "unique", "unique_node", "replicated_dense", "gridwise", "rowwise")
    placements = []
    for number, load in enumerate(work.tables):
        kind = kinds[(number + seed) % len(kinds)]
        parts, columns = int(draw.choice([1, 2, 4])), int(draw.choice([1, 2]))
        if kind in ("rowwise", "replicated_dense"):
            columns = 1
        ranks = () if kind == "replicated_dense" else tuple(int(r) for r in draw.integers(0, world, columns * parts))
        wire = "fp16" if draw.random() < 0.5 else "table"
        placements.append(Placement(load.table.name, kind, ranks, columns=columns, wire=wire))
    return Plan(world, work.specs, tuple(placements))


@pytest.mark.parametrize(("nodes", "local", "nics"), [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (2, 4, 2)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_score_is_what_the_simulator_says_of_the_real_phases(nodes, local, nics, seed):
    topo = topology(nodes, local, nics)
    work = workload(6, topo.world)
    plan = plan_of(work, topo.world, seed)
    assert score(plan, work, topo).step_s == pytest.approx(simulated(plan, work, topo), rel=1e-12)


@pytest.mark.parametrize("kind", ["tablewise", "columnwise", "rowwise", "gridwise", "hierarchical", "unique",
                                  "unique_node", "replicated_dense"])  # fmt: skip
def test_every_strategy_alone_costs_what_it_sends(kind):
    topo = topology(2, 2)
    work = workload(3, 4)
    plan = Plan.uniform(work.specs, kind, 4)
    assert score(plan, work, topo).step_s == pytest.approx(simulated(plan, work, topo), rel=1e-12)


def fused(plan: Plan, work: Workload, topo: Topology, overlap: str) -> float:
    """The overlapped step, its stages as phases on streams, by the simulator."""
    teams = teams_of(plan.placements, work)
    state = place(fix(work, topo, list(teams)), plan, work, list(teams))
    net, t = state.net.sum(0), state.total
    bottom, top, back, reduce = dense_seconds(work.dense, work.batch / topo.world, topo).tolist()
    flat = [0.0] * topo.world
    early, sort = ("ahead", "ahead") if overlap == "steps" else ("network", "sort")
    found: dict[str, tuple] = {
        # name: (needs, stream, seconds of each rank or of the exchange)
        "route": ((), early, t[a.ROUTE]), "keys": (("route",), early, net[a.KEYS]),
        "meet": (("keys",), early, t[a.MEET]), "keys_rail": (("meet",), early, net[a.KEYS_RAIL]),
        "index": (("keys_rail",), sort, t[a.INDEX]),
        "gather": (("keys_rail",) if overlap == "step" else (), "compute", t[a.GATHER]),
        "send": (("gather",), "network", net[a.SEND]), "own": (("gather",), "compute", t[a.GATHER_OWN] + bottom),
        "combine": (("send", "own"), "compute", t[a.COMBINE] + top),
        "grad_send": (("combine",), "network", net[a.GRAD]), "back": (("combine",), "compute", flat + np.full(1, back)),
        "node_reduce": (("grad_send", "back"), "compute", t[a.NODE_REDUCE]),
        "grad_rail": (("node_reduce",), "network", net[a.GRAD_RAIL]),
        "apply": (("grad_rail", "node_reduce") + (("index",) if overlap == "step" else ()), "compute", t[a.APPLY]),
        "dense_reduce": (("back",), "dense", reduce),
    }  # fmt: skip
    phases, priced = [], {}
    for name, (needs, stream, seconds) in found.items():
        if name == "grad_rail" and not seconds:
            found["apply"] = (("grad_send", *found["apply"][0][1:]), *found["apply"][1:])
            continue
        net_phase = name in ("keys", "keys_rail", "send", "grad_send", "grad_rail")
        phases.append(Phase(name, lambda: None, needs, (name,), "network" if net_phase else "compute", stream))
        if net_phase:
            one = torch.zeros(topo.world, topo.world, dtype=torch.int64)
            # what runs ahead, on a link of its own: the score lets streams not slow each other down
            one[0, 1 if stream == "ahead" else -1] = round(float(seconds) * 1e15)
            priced[name] = PhaseCost((replace(dense_reduce(DENSE, topo)[0], name=name, bytes=one),))
        else:
            priced[name] = PhaseCost(compute=list(np.broadcast_to(seconds, topo.world)))
    unit = Link(0.0, 1e15, "seconds as bytes")
    names = ("keys", "keys_rail", "send", "grad_send", "grad_rail")
    exact = Topology(topo.nodes, topo.ranks_per_node, {f"{k}/{n}": unit for k in ("intra", "nic") for n in names},
                     topo.device)  # fmt: skip
    return simulate_schedule(Schedule(tuple(phases), ()), priced, exact, overlap=True).seconds


@pytest.mark.parametrize("overlap", ["step", "steps"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_an_overlapped_step_is_what_the_simulator_says_of_its_stages_on_streams(overlap, seed):
    topo = topology(2, 2, 2)
    work = workload(6, 4)
    plan = plan_of(work, 4, seed)
    # seconds went through whole bytes: 1e-15 s of about 1e-4 s a stage
    assert score(plan, work, topo, overlap).step_s == pytest.approx(fused(plan, work, topo, overlap), rel=1e-9)


def test_overlap_never_costs_and_the_hidden_part_is_communication():
    work, topo = workload(6, 8), topology(2, 4)
    for seed in range(6):
        plan = plan_of(work, 8, seed)
        none, step, steps = (score(plan, work, topo, overlap) for overlap in ("none", "step", "steps"))
        assert none.step_s >= step.step_s >= steps.step_s
        assert none.parts == steps.parts
        assert none.step_s - sum(none.parts.values()) == pytest.approx(0, abs=1e-15)


def test_memory_counts_weights_state_and_buffers():
    work, topo = workload(1, 4, "adagrad"), topology(2, 2)
    table = work.specs[0]
    plan = Plan(4, work.specs, (Placement("t0", "tablewise", (2,)),))
    ids, values = 4 * 256 * 16, 2 * 4 * 64 * table.dim * 4  # arrived ids; partial sums out and gradients in
    returned = 2 * 64 * table.dim * 4
    assert score(plan, work, topo).memory == (returned, returned, 2 * table.bytes + ids + values + returned, returned)
    rowwise = replace(work, optimizer=Optimizer("rowwise_adagrad"))
    less = score(plan, work, topo).memory[2] - score(plan, rowwise, topo).memory[2]
    assert less == table.bytes - 4 * table.rows
    assert score(plan, work, topo).fits(1e9)
    assert not score(plan, work, topo).fits(table.bytes)


def test_the_part_of_the_most_frequent_id_makes_its_rank_the_busiest():
    work, topo = workload(2, 4), topology(1, 4)
    even = work.without_skew()
    plan = Plan.uniform(work.specs, "rowwise", 4)
    assert score(plan, work, topo).parts["gather"] > 1.3 * score(plan, even, topo).parts["gather"]
    assert score(plan, work, topo).parts["keys"] > score(plan, even, topo).parts["keys"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda work: Plan.uniform(work.specs, "unique", 2), "plan: expected one for 4 ranks, given one for 2"),
        (lambda work: Plan.uniform(work.specs, "hot_cold", 4), "table 't0': expected a strategy that can be scored"),
        (lambda work: Plan.uniform(work.specs, "unique", 4, "range"), "table 't0': expected split modulo"),
        (lambda work: Plan.uniform(loads_of(work, 8), "unique", 4), "table 't0': expected the workload's"),
    ],
)
def test_a_plan_that_cannot_be_scored_is_refused_by_name(plan, message):
    work = workload(2, 4)
    with pytest.raises(ValueError, match=message):
        score(plan(work), work, topology(2, 2))


def loads_of(work: Workload, rows: int) -> tuple[TableSpec, ...]:
    return tuple(replace(spec, rows=rows) for spec in work.specs)


def test_columns_under_a_rowwise_optimizer_and_unknown_overlaps_are_refused():
    work = workload(1, 4, "rowwise_adagrad")
    with pytest.raises(ValueError, match="table 't0': expected one block of columns under rowwise_adagrad"):
        score(Plan.uniform(work.specs, "columnwise", 4), work, topology(2, 2))
    with pytest.raises(ValueError, match="unknown overlap 'ov1': choose one of none, step, steps"):
        score(Plan.uniform(work.specs, "unique", 4), work, topology(2, 2), "ov1")  # pyright: ignore
    with pytest.raises(ValueError, match=r"phase 'x\.early_send': expected one of split"):
        stage_of(Phase("x.early_send", lambda: None, (), (), "network"))


def test_dense_gradients_go_in_rings_over_every_nic():
    topo = h100x8(16)
    dense = DenseLoad(1, 0.0, 0.0, 270_000_000, 2)
    seconds = PhaseCost(dense_reduce(dense, topo)).network_seconds(topo)
    assert seconds == pytest.approx(20e-6 + 2 * 127 / 128 * 540e6 / 8 / 50e9)
    assert PhaseCost(dense_reduce(dense, h100x8(1))).network_seconds(h100x8(1)) == pytest.approx(
        8e-6 + 2 * 7 / 8 * 540e6 / 450e9
    )
