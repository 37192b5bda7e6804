"""Steps of an embedding alone, on ranks as threads: what the experiments of the group `comm` measure."""

import pytest
import torch

from comm.cost import loads
from comm.group import simulate
from comm.plan import Plan
from comm.topology import Link, Topology
from experiments.comm._steps import EmbeddingStep, Workload, between_nodes, stacked, timeline, together
from experiments.comm.hierarchy import Config, plan_of
from experiments.comm.steps import predict, topology_of
from kernels.cost import Device

WORK = Workload(tables=3, rows=50, dim=8, hotness=2, batch=4)


def test_bytes_between_nodes_leave_out_those_inside():
    bytes_ = torch.arange(16).view(4, 4)
    assert between_nodes(bytes_, 2) == (2 + 3 + 6 + 7) + (8 + 9 + 12 + 13)
    assert between_nodes(bytes_, 4) == 0


def test_every_rank_draws_the_same_global_batch_and_no_two_ranks_the_same_ids():
    bags = WORK.bags(2)
    assert [len(b) for b in bags] == [12, 12]
    assert [b.ids.tolist() for b in WORK.bags(2)] == [b.ids.tolist() for b in bags]
    assert bags[0].ids.tolist() != bags[1].ids.tolist()


def test_a_step_sends_what_is_predicted_and_its_price_is_that_of_its_bytes():
    plan = Plan.uniform(WORK.specs, "rowwise", 4)

    def run(group):
        step = EmbeddingStep(group, plan, WORK.bags(4))
        step.run(shaped=False)
        return step, step.run(shaped=False)  # the second is counted alone

    (step, ran), *others = simulate(4, run, ranks_per_node=2)
    ranks = [ran, *(other for _, other in others)]
    assert {k: b.tolist() for k, b in stacked(ranks).items()} == {k: b.tolist() for k, b in step.bytes_sent().items()}
    line = timeline(ranks)
    assert line.bytes.tolist() == together(step.bytes_sent()).tolist()
    assert set(line.communication) == {phase.name for phase in step.network}
    links = {f"{kind}/all_to_all": Link(0.0, 1e3, "made up") for kind in ("intra", "nic")}
    predicted = predict(step, ran, Topology(2, 2, links, Device("made up", 1.0, 1.0, "")))
    assert predicted["bytes_predicted"] == int(line.bytes.sum())
    slowest = [max(loads(bytes_, 2).values()) for bytes_ in step.bytes_sent().values()]  # a label a phase: bytes are ms
    assert predicted["simulated_ms"] == pytest.approx(sum(slowest), rel=1e-12)  # a few roundings in double


def test_a_link_is_fitted_to_the_median_over_rounds():
    sizes = [float(1 << i) for i in range(8, 16)]
    rounds = [{"nic/all_to_all": [(s, 1e-3 * slow + s / 1e6) for s in sizes]} for slow in (1, 1, 50)]

    class Shape:
        nodes, ranks_per_node = 2, 1

    link = topology_of(Shape, rounds).links["nic/all_to_all"]
    # exact up to the solver's rounding
    assert (link.alpha, link.beta) == pytest.approx((1e-3, 1e6), rel=1e-6)


@pytest.mark.parametrize(("layout", "ranks"), [("world", (0, 1, 2, 3)), ("node", (2, 3))])
def test_both_forms_of_an_exchange_have_the_same_shards(layout, ranks):
    config = Config(ranks_per_node=2, tables=2)
    flat, through = (plan_of(config, layout, form).placements[1] for form in ("flat", "hierarchical"))
    assert flat.ranks == through.ranks == ranks
    assert through.strategy == "hierarchical"
