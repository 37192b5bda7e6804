import json
from collections import Counter

import pytest
import torch

from comm.cost import costs
from comm.group import simulate as on_ranks
from comm.plan import STRATEGIES, Plan
from comm.simulate import simulate
from comm.topology import Link, Topology
from kernels import Optimizer
from kernels.cost import Cost, Device
from models.cost import bytes_sent, counts_of, dense_work
from models.embedding import ShardedEmbedding
from models.executor import Event, Executor
from models.step import TrainingStep
from models.trace import compute_seconds, executed, save_trace, trace
from tests.comm.workload import CUTS, GLOBAL_BATCH, LR, Work, batch_of, real_model

LINKS = {
    f"{kind}/{name}": Link(1e-3, 1e6, "made up") for kind in ("intra", "nic") for name in ("all_to_all", "all_reduce")
}
WORK = Work(dims=(8, 4), weighted=True, poolings=("sum",))


def plans(world):
    """Each strategy alone, and all of them in one model."""
    alone = {name: Plan.uniform(WORK.tables, name, world) for name in STRATEGIES}
    mixed = [list(alone.values())[i % len(alone)].placements[i] for i in range(len(WORK.tables))]
    return alone | {"mixed": Plan(world, WORK.tables, tuple(mixed))}


def run(group, plan, overlap, ring):
    """One step: what ran when, what was sent and called, and the price of it all."""
    embedding = ShardedEmbedding(plan, group, Optimizer("sgd"), backend="cpu")
    training = TrainingStep(real_model(embedding), None, ring=ring)
    cuts = CUTS[group.size]
    batches = [batch_of(WORK, 0, *cuts[rank : rank + 2]) for rank in range(group.size)]
    bags, dense, label = batches[group.rank]
    frame = {"step": 0, "lr": LR, "training": True, "bags": bags, "dense": dense, "label": label}
    schedule = training.schedule()
    events = Executor(overlap).run(schedule, frame | {"global_batch": GLOBAL_BATCH})
    sent = bytes_sent(training, counts_of(embedding, [bags for bags, _, _ in batches]))
    return events, dict(group.sent), dict(group.calls), schedule, sent


def step(world, strategy, overlap=False, ring=False):
    plan = plans(world)[strategy]
    ranks = on_ranks(world, lambda group: run(group, plan, overlap, ring), ranks_per_node=max(1, world // 2))
    events, counted, calls, schedules, sent = zip(*ranks, strict=True)
    assert all(other == calls[0] for other in calls)
    bytes_ = {label: torch.stack([of_rank[label] for of_rank in counted]) for label in counted[0]}
    return events, bytes_, calls[0], schedules[0], sent[0]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@pytest.mark.parametrize(("world", "ring"), [(1, False), (2, True), (4, False), (4, True)])
def test_every_phase_of_a_training_step_has_a_price_with_the_bytes_that_were_sent(strategy, world, ring):
    _, counted, calls, schedule, sent = step(world, strategy, ring=ring)
    assert {label: b.tolist() for label, b in sent.items()} == {label: b.tolist() for label, b in counted.items()}
    prices = costs(schedule, sent, calls)
    found = simulate(schedule, prices, Topology(max(1, world // 2), min(world, 2), LINKS, Device("", 1.0, 1.0, "")))
    assert found.bytes.tolist() == sum(counted.values()).tolist()
    assert (found.seconds > 0) == (world > 1)
    assert found.seconds == pytest.approx(sum(found.communication.values()))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_trace_has_one_event_for_each_phase_rank_and_stream(overlap, tmp_path):
    events, counted, calls, schedule, sent = step(4, "mixed", overlap)
    timelines = {
        "executed": executed(events, sum(counted.values())),
        "simulated": simulate(
            schedule, costs(schedule, sent, calls), Topology(2, 2, LINKS, Device("", 1.0, 1.0, "")), overlap
        ),
    }
    save_trace(tmp_path / "new" / "step.json", timelines)
    read = json.loads((tmp_path / "new" / "step.json").read_text())["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in read if e["name"] == "thread_name"}
    process = {e["pid"]: e["args"]["name"] for e in read if e["name"] == "process_name"}
    assert sorted(process.values()) == [f"{name} rank {rank}" for name in timelines for rank in range(4)]
    whole = [e for e in read if e["ph"] == "X"]
    assert len(whole) == 2 * 4 * len(schedule.phases)
    seen = Counter((process[e["pid"]], named[e["pid"], e["tid"]], e["name"]) for e in whole)
    expected = {(p, phase.resource, phase.name) for p in process.values() for phase in schedule.phases}
    assert seen == dict.fromkeys(expected, 1)
    for e in whole:
        assert e.keys() == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert e["ts"] >= 0
        assert 0 <= e["args"]["waited_us"] <= e["dur"]
    for name in timelines:
        assert min(e["ts"] for e in whole if process[e["pid"]].startswith(name)) == 0


def test_a_step_that_computes_as_long_as_it_did_takes_its_compute_and_its_communication():
    events, counted, calls, schedule, sent = step(2, "mixed")
    ran = executed(events, sum(counted.values()))
    prices = costs(schedule, sent, calls, compute_seconds([ran, ran, ran]))
    found = simulate(schedule, prices, Topology(1, 2, LINKS, Device("", 1.0, 1.0, "")))
    for rank in range(2):
        mine = {span.phase: span for span in found.spans if span.rank == rank}
        for span in (span for span in ran.spans if span.rank == rank and span.resource == "compute"):
            simulated = mine[span.phase]
            # two subtractions of seconds since the machine began, of up to a year in double precision
            assert simulated.end - simulated.start == pytest.approx(span.end - span.start, abs=1e-7)
    slowest = sum(max(prices[p.name].compute) for p in schedule.phases if p.resource == "compute")
    moved = sum(found.communication.values())
    assert moved < found.seconds <= moved + slowest + 1e-7


def test_dense_work_counts_the_weights_of_matrices():
    def work(group):
        embedding = ShardedEmbedding(plans(1)["unique"], group, backend="cpu")
        return dense_work(TrainingStep(real_model(embedding), None), [4, 0])

    # real_model: bottom 3 x 8, cross 2 x (32 x 4), top 32 x 8 + 8 x 1, over bottom 8 + tables 8 + 4 + 8 + 4
    weights = 3 * 8 + 2 * 32 * 4 + 32 * 8 + 8
    assert on_ranks(1, work)[0].ranks == (Cost(flops=6.0 * weights * 4), Cost(flops=0.0))


def test_an_executed_timeline_says_who_waited_and_what_was_exposed():
    ranks = [
        [Event("a", "compute", 10.0, 11.0), Event("send", "network", 11.0, 15.0), Event("b", "compute", 12.0, 13.0)],
        [Event("a", "compute", 10.0, 13.0), Event("send", "network", 13.0, 14.5)],
    ]
    found = executed(ranks, torch.zeros(2, 2, dtype=torch.int64))
    assert [span.waited for span in found.spans if span.phase == "send"] == [2.0, 0.0]
    assert found.seconds == 5.0
    assert found.communication == {"send": 2.0}
    assert found.exposed == [3.0, 1.5]
    whole = [e for e in trace({"x": found})["traceEvents"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in whole if e["name"] == "send"] == [(1e6, 4e6), (3e6, 1.5e6)]


def test_events_of_another_number_of_ranks_are_refused():
    with pytest.raises(ValueError, match="expected the events of 2 ranks"):
        executed([[]], torch.zeros(2, 2))
