import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm.planner.miss_curve import MissCurve
from comm.planner.sizing.demand import Demand, Sizing
from comm.planner.sizing.fixed import fixed, largest_fixed
from comm.planner.sizing.knapsack import knapsack
from comm.planner.sizing.luus_jaakola import LuusJaakola
from comm.planner.sizing.marginal import marginal
from comm.planner.sizing.priority import allocate, by_priority
from comm.planner.sizing.proportional import proportional
from comm.planner.sizing.scale_up import Probe, best_of, dense_grid, scale_up
from comm.planner.zipf_curve import zipf_curve


def zipf(name, rows, alpha, lookups, least=0.0, fixed_bytes=0.0, width=512.0):
    return Demand(name, rows, width + 25, fixed_bytes, rows * width, width, zipf_curve(rows, alpha, lookups), least)


MIXED = (
    zipf("flat", 100_000, 0.6, 3000),
    zipf("steep", 100_000, 1.2, 3000),
    zipf("wide", 20_000, 1.05, 3000, width=1024.0),
    zipf("small", 500, 1.05, 3000, fixed_bytes=500_000.0),
    zipf("idle", 50_000, 1.05, 0.0),
)
WHOLE = sum(d.whole_bytes for d in MIXED)


# -- the published rule and search, at the published values ----------------------------------------

A, B = np.full(3, 30e6), np.full(3, 2e6)


@pytest.mark.parametrize(
    ("load", "budget", "priority", "whole", "expected"),
    [
        ([0.1, 0.1, 1], 100e6, [2, 2, 2], 1.0, [1, 1, 1]),
        ([0.1, 0.1, 1], 10e6, [2, 2, 2], 1.0, [0.26667, 0.26667, 1]),
        ([0.1, 0.1, 1], 10e6, [2, 4, 2], 1.0, [0.21111, 0.32222, 1]),
        ([0.1, 0.3, 0.5], 50e6, [1, 2, 100], 1.0, [0.56667, 1, 1]),
        ([0.1, 0.3, 0.5], 50e6, [1, 2, 100], 0.8, [1, 1, 1]),
    ],
)
def test_the_priority_rule_gives_the_published_load_factors(load, budget, priority, whole, expected):
    got = allocate(np.array(load), np.array(priority, float), A, B, whole * (A + B), budget)
    assert got == pytest.approx(expected, abs=1e-5)


def test_increments_follow_cacheability_as_published():
    """Load factors of 0.1 with cacheability 0.2 and 0.5 end at 0.317 and 0.643; one without look-ups keeps 0.002."""
    slope, fixed_ = np.full(3, 80e9), np.zeros(3)
    got = allocate(np.array([0.1, 0.1, 0.002]), np.array([0.4, 1.0, 0.0]), slope, fixed_, slope, 0.76 * 80e9)
    assert got == pytest.approx([0.317, 0.643, 0.002], abs=5e-4)


BUMPS = {
    "line": (lambda x: x, [(0, 0)] * 5),
    "bowl": (
        lambda x: x * x - 10 * x + 10,
        [(3.51914, -12.80705), (4.22958, -14.40646), (5.41303, -14.82940), (2.35012, -7.97811), (4.18552, -14.33662)],
    ),
    "waves": (
        lambda x: (x - 30) ** 2 + 100 * math.sin(x),
        [(36.58517, -46.37988), (29.73184, -99.28705), (37.67208, 56.15779), (35.85468, -62.00219),
         (41.76223, 58.69744)],
    ),
    "spikes": (
        lambda x: (x - 30) ** 2 + (x % 10) * 100,
        [(23.68681, 408.53735), (31.62534, 165.17535), (32.81968, 289.91898), (42.81567, 445.80777),
         (22.53002, 308.80225)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUMPS)
def test_the_search_finds_the_published_minima(name):
    cost, expected = BUMPS[name]
    for seed, found in enumerate(expected):
        search = LuusJaakola(0.0, 100.0, 16, seed)
        probes, x = 0, search.next(0.0)
        while x is not None:
            probes += 1
            x = search.next(cost(x))
        assert probes == 16
        assert search.best() == pytest.approx(found, rel=1e-5)


def test_the_search_keeps_out_of_what_failed():
    search = LuusJaakola(0.0, 100.0, seed=3)
    x, limit = search.next(0.0), 20.0
    tried = []
    while x is not None:
        tried.append(x)
        if x > limit:
            search.shrink_right(x)
            x = search.next(float("inf"))
        else:
            x = search.next(-x)
    assert search.best()[0] <= limit
    assert all(b <= min([a for a in tried[:i] if a > limit], default=100.0) for i, b in enumerate(tried))
    with pytest.raises(RuntimeError, match="none yet"):
        LuusJaakola(0.0, 1.0).best()
    with pytest.raises(ValueError, match="left <= right"):
        LuusJaakola(1.0, 0.0)


# -- every proposer --------------------------------------------------------------------------------

PROPOSERS = {
    "fixed": largest_fixed,
    "proportional": proportional,
    "priority": by_priority,
    "marginal": marginal,
    "knapsack": knapsack,
}


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 1.1])
def test_sizes_fit_the_budget_and_more_memory_never_moves_more(name, share):
    size = PROPOSERS[name]
    sizing = size(MIXED, share * WHOLE)
    assert sizing.bytes(MIXED) <= share * WHOLE * (1 + 1e-9)
    assert all(d.start <= c <= d.rows for d, c in zip(MIXED, sizing.cached, strict=True)) or name in (
        "fixed",
        "proportional",
    )
    assert size(MIXED, 1.2 * share * WHOLE).moved(MIXED) <= sizing.moved(MIXED) * (1 + 1e-9)
    assert "bytes left" in sizing.left(MIXED, share * WHOLE)
    if share > 1:
        assert sizing.moved(MIXED) == 0


@pytest.mark.parametrize("name", PROPOSERS)
def test_what_does_not_fit_is_refused_with_both_numbers(name):
    demands = (zipf("a", 1000, 1.0, 100, least=100.0),)
    with pytest.raises(ValueError, match=r"at least 53700 bytes .* given 100"):
        PROPOSERS[name](demands, 100.0)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.3, 0.6, 0.9])
def test_water_filling_is_within_two_per_cent_of_the_dense_grid(share):
    budget = share * WHOLE
    assert marginal(MIXED, budget).moved(MIXED) <= 1.02 * knapsack(MIXED, budget).moved(MIXED)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", ["fixed", "proportional", "priority"])
def test_water_filling_moves_no_more_than_any_rule(share, name):
    budget = share * WHOLE
    assert marginal(MIXED, budget).moved(MIXED) <= PROPOSERS[name](MIXED, budget).moved(MIXED) * (1 + 1e-9)


points = st.lists(st.floats(0, 10), min_size=2, max_size=6)


@given(st.lists(points, min_size=1, max_size=3), st.floats(0.05, 1.0))
def test_water_filling_on_any_curves_is_near_the_oracle_and_never_worse_than_one_load_factor(curves, share):
    demands = []
    for number, falls in enumerate(curves):
        misses = np.cumsum(np.array(falls)[::-1])[::-1]
        curve = MissCurve(100.0 * np.arange(len(falls)), misses - misses[-1], 0.0, float(misses[0]))
        rows = 100.0 * (len(falls) - 1)
        demands.append(Demand(str(number), rows, 1.0, 0.0, rows, 1.0, curve))
    budget = share * sum(d.whole_bytes for d in demands)
    found = marginal(demands, budget)
    assert found.bytes(demands) <= budget * (1 + 1e-9)
    lowest = [d.curve.hull() for d in demands]
    bound = _hull_bound(lowest, budget)
    assert found.moved(demands) >= bound - 1e-6
    # one table at most is off its hull, by no more than the whole of one fall
    assert found.moved(demands) <= bound + max(max(falls) * len(falls) for falls in curves) + 1e-6


def _hull_bound(hulls, budget):
    """The least misses of convex curves: their pieces, steepest first."""
    pieces = sorted(
        (m, s)
        for h in hulls
        for m, s in zip(np.diff(h.misses) / np.diff(h.sizes), np.diff(h.sizes), strict=True)
    )  # fmt: skip
    total = sum(h.misses[0] for h in hulls)
    for slope, size in pieces:
        total += slope * min(size, budget)
        budget -= min(size, budget)
    return total


def test_a_table_that_gains_nothing_from_a_cache_goes_whole():
    """Its overflow lines alone would take more than its rows."""
    sizing = marginal(MIXED, 0.05 * WHOLE)
    assert sizing.cached[3] == MIXED[3].rows
    assert MIXED[3].bytes(MIXED[3].rows) == MIXED[3].whole_bytes


def test_the_scale_up_rates_sixteen_budgets_and_shrinks_from_what_fails():
    start = Sizing(tuple(d.start for d in MIXED))
    limit = 0.3 * WHOLE

    def rate(sizing):
        return None if sizing.bytes(MIXED) > limit else sizing.moved(MIXED)

    probes = scale_up(MIXED, start, WHOLE, rate)
    assert len(probes) == 17
    best = best_of(probes)
    assert best.sizing.bytes(MIXED) <= limit
    failed = [probe.budget for probe in probes if probe.rating is None]
    assert failed
    after = probes[probes.index(next(p for p in probes if p.rating is None)) + 1 :]
    assert all(probe.budget <= failed[0] for probe in after)
    grid = dense_grid(MIXED, start, WHOLE, rate, points=50)
    assert best_of(grid).rating <= best.rating * 1.1
    with pytest.raises(ValueError, match="1 that cannot"):
        best_of([Probe(0.0, start, None)])
    assert len(scale_up(MIXED, start, WHOLE, lambda _: None)) == 1


def test_a_load_factor_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="0 to 1"):
        fixed(MIXED, 1.5)
