"""The emulated experiments without a cluster: their steps on ranks as threads, and what is made of them."""

from dataclasses import replace

import pytest
import torch

from comm.group import simulate
from comm.pipeline import Pipeline
from comm.plan import Plan
from comm.planner.baselines.by_index import table_row_wise
from comm.schedule import Resource
from comm.simulate import Span, Timeline
from experiments.embark._emulated import SAMPLES_AT_SCALE_1, Site, _ids
from experiments.embark._emulated_step import OVERLAPS, EmulatedStep, Timers
from experiments.embark.breakdown import of_parts
from kernels import TableSpec
from models.executor import Executor
from models.overlap import keys_ahead

SITE = Site("dcnv2", 2, 2, samples=1)
NO_TIME = Timers(0.0, 0.0, 0.0)


def plans() -> dict[str, Plan]:
    specs = SITE.workload.specs
    return {
        "flat": table_row_wise(specs, 2, 2, "gridwise"),
        "hierarchical": table_row_wise(specs, 2, 2, "hierarchical"),
        "unique": Plan.uniform(specs, "unique", 4),
        "unique_node": Plan.uniform(specs, "unique_node", 4),
        "mixed": mixed(),
    }


def mixed() -> Plan:
    """Replicated, pooled by columns, and de-duplicated tables."""
    specs = SITE.workload.specs
    small, wide, rest = (Plan.uniform(specs, name, 4) for name in ("replicated_dense", "gridwise", "unique"))
    chosen = [
        small.placements[i] if spec.rows < 100 else (wide if i % 2 else rest).placements[i]
        for i, spec in enumerate(specs)
    ]
    return Plan(4, specs, tuple(chosen))


def checksums(plan: Plan, overlap: str, steps: int = 4, padded: bool = False) -> set[int]:
    def run(group):
        everyone = [SITE.batches(rank) for rank in range(group.size)]
        step = EmulatedStep(group, plan, everyone[group.rank], NO_TIME, overlap, padded)
        for _ in range(steps):
            step.run()
        touched = [torch.cat(ids).unique() for ids in zip(*(_ids(SITE, bags) for bags in everyone), strict=True)]
        return step.checksum(touched)

    return set(simulate(4, run, 2))


def test_every_plan_and_overlap_ends_with_the_same_weights():
    found = {(name, o): checksums(plan, o) for name, plan in plans().items() for o in OVERLAPS}
    assert len(set.union(*found.values())) == 1, found
    assert checksums(plans()["flat"], "steps", padded=True) == found["flat", "none"]
    assert checksums(mixed(), "none", steps=3) != found["mixed", "none"]


def test_mutation_a_stale_row_changes_the_checksum(monkeypatch):
    """Rows read one batch ahead miss an update: the gradient, by the parity of what was read, then differs."""
    expected = checksums(plans()["unique"], "steps")

    def too_early(schedule):
        staged = keys_ahead(schedule).staged
        gathers = [s for s in staged if s.phase.name.endswith(".gather")]
        early = [*(s for s in staged if s.ahead), *(replace(s, ahead=1) for s in gathers)]
        return Pipeline((*early, *(s for s in staged if not s.ahead and s not in gathers)), schedule.inputs)

    monkeypatch.setattr("experiments.embark._emulated_step.keys_ahead", too_early)
    monkeypatch.setattr("experiments.embark._emulated_step.Executor", lambda overlap, started: Executor(False))
    assert checksums(plans()["unique"], "steps") != expected


def test_a_site_scales_rows_and_samples_together():
    site = Site("t200", 2, 2)
    assert site.scale == site.local / SAMPLES_AT_SCALE_1
    assert site.workload.batch == 4 * site.local
    largest = max(spec.rows for spec in site.workload.specs)
    assert largest == round(50_000_000 * site.scale)
    assert Site("t200", 2, 4).local * 8 == site.local * 4  # what a node sends stays
    assert site.memory * 4 == pytest.approx(2 * sum(spec.bytes for spec in site.workload.specs))
    # half the link a rank, half the rate: twice the time
    assert site.timers(2e6).total == pytest.approx(site.timers(4e6).total * 2)


def test_parts_of_a_step_are_those_of_its_phases():
    def span(phase: str, start: float, end: float, resource: Resource = "compute", rank: int = 0) -> Span:
        return Span(phase, resource, rank, start, end)

    spans = (
        span("a.dedup", 0, 1),
        span("a.keys", 1, 3, "network"),
        span("a.keys", 2, 3, "network", 1),
        span("a.gather", 3, 4),
        span("a.gather", 3, 5, rank=1),
        span("top", 5, 9),
    )
    found = of_parts(Timeline(spans, torch.zeros(2, 2)))
    assert found["keys_ms"] == 1 + 1
    assert found["lookup_ms"] == 2
    assert found["dense_ms"] == 4
    with pytest.raises(ValueError, match=r"phase 'a\.unheard_of': expected one of"):
        of_parts(Timeline((*spans, span("a.unheard_of", 9, 10)), torch.zeros(2, 2)))


def test_an_unknown_overlap_is_refused():
    plan = Plan.uniform([TableSpec("t", 4, 2)], "unique", 1)
    with pytest.raises(RuntimeError, match="overlap: expected one of none, step, steps, given 'all'"):
        simulate(1, lambda group: EmulatedStep(group, plan, [], NO_TIME, "all"))
