from dataclasses import replace

import pytest

from comm.planner.score import score
from comm.presets import h100x8
from comm.topology import Link
from experiments.embark import crossover
from experiments.embark._simulated import (
    MEMORY,
    MODELS,
    NODES,
    Job,
    baselines,
    breakdown_points,
    end_to_end_points,
    ladder,
    modes,
    table_rows,
    torchrec,
)
from experiments.embark.planners import Config, measure


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nodes", NODES)
def test_torchrec_has_planned_every_job(model, nodes):
    job = Job(model, nodes)
    found = torchrec(job)
    assert found is not None
    assert found.plan is None or found.plan.tables == job.workload.specs
    assert torchrec(Job(model, nodes, 512)) is None


def test_no_baseline_beats_the_search_and_what_does_not_fit_is_shown():
    for model, nodes in (("dcnv2", 1), ("dcnv2", 2)):
        rows = [m for m in measure(Config(model, nodes, 500, 1)) if m.kind == "simulated"]
        best = min(m.metrics["embedding_ms"] for m in rows if m.metrics["fits"] and "search" not in m.point["planner"])
        for ours in (m for m in rows if "search" in m.point["planner"]):
            assert ours.metrics["embedding_ms"] <= best * (1 + 1e-12)
            assert ours.metrics["bound_ms"] <= ours.metrics["embedding_ms"]
    job = Job("t180", 1)
    (whole,) = (made for made in baselines(job) if made.planner == "round_robin")
    assert not job.price(whole.plan).fits(MEMORY)  # one table of 64 GB


def test_no_rung_of_the_ladder_is_slower_than_the_one_before():
    arms = list(ladder(Job("dcnv2", 2), 500))
    assert [arm.name for arm in arms[:4]] == ["flat", "table_row_wise", "+step", "+steps"]
    assert [arm.name for arm in arms[-3:]] == ["+unique_node", "+hot shards", "+micro-batches"]
    steps = [arm.step_s for arm in arms]
    assert steps == sorted(steps, reverse=True)


def test_the_parts_of_a_step_without_overlap_add_up():
    for m in breakdown_points(Job("dcnv2", 2), 500):
        parts = sum(value for name, value in m.metrics.items() if name != "step_ms")
        assert parts == pytest.approx(m.metrics["step_ms"], rel=1e-9)


def test_end_to_end_has_every_planner_under_each_overlap():
    found = {(m.point["planner"], m.point["overlap"]): m for m in end_to_end_points(Job("dcnv2", 2), 500)}
    planners = {"table_row_wise", "round_robin", "uniform", "auto", "hier_auto", "swept", "torchrec"}
    assert {planner for planner, _ in found} == planners | {"search", "search_node"}
    for planner in planners | {"search"}:
        assert found[planner, "steps"].metrics["step_ms"] <= found[planner, "none"].metrics["step_ms"]
    for m in found.values():
        assert m.metrics["samples_per_s"] == pytest.approx(65_536 / (m.metrics["step_ms"] / 1e3))


def test_one_node_has_no_hierarchy():
    assert modes(Job("dcnv2", 1)) == ("flat",)
    assert {p.strategy for p in table_rows(Job("dcnv2", 1)).placements} == {"gridwise"}


def instant(nodes):
    """The preset without latency."""
    topology = h100x8(nodes)
    return replace(topology, links={k: Link(0.0, v.beta, v.source) for k, v in topology.links.items()})


@pytest.mark.parametrize(
    ("form", "other"), [("1 part", "unique"), ("8 parts, flat", "unique"), ("1 part", "replicated")]
)
def test_the_formula_of_bytes_is_the_score_of_communication_without_latency(form, other):
    """The score also counts lengths of bags (4 bytes a bag) and sizes: a few per cent of rows of 256 bytes."""
    config, topology = crossover.Config(nodes=4), instant(4)
    for hotness, unique, rows in ((1, 1.0, 4096), (10, 0.3, 4096), (50, 0.1, 4096)):
        if other == "replicated" and hotness > 1:
            continue
        rows = rows if other == "replicated" else crossover.ROWS
        work = crossover.model(config, rows, hotness, None if other == "replicated" else unique)
        times = [score(crossover.planned(config, work, c), work, topology).communication_s for c in (form, other)]
        expected = crossover.formula(config, form, other, {"hotness": hotness, "unique": unique, "rows": rows})
        assert times[0] / times[1] == pytest.approx(expected, rel=0.06)
