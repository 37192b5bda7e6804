import time

import numpy as np
import pytest

from comm.planner.locality import Described, Devices, Locality
from comm.planner.sizing.demand import Sizing
from comm.planner.sizing.fixed import fixed, largest_fixed
from comm.planner.sizing.priority import by_priority
from comm.planner.sizing.scale_up import best_of, dense_grid
from comm.planner.zipf_curve import zipf_curve
from kernels import TableSpec


def tables(count, seed=0, batch=512, mean_rows=40_000):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        rows = int(rng.lognormal(np.log(mean_rows), 1.5)) + 1
        lookups, alpha = batch * float(rng.lognormal(0.5, 1.0)), float(rng.uniform(0.7, 1.2))
        spec = TableSpec(f"t{number}", rows, int(rng.choice([32, 64, 128])))
        found.append(Described(spec, lookups, zipf_curve(rows, alpha, lookups)))
    return found


TABLES = tables(26)
WHOLE = sum(t.demand().whole_bytes for t in TABLES)
DEVICES = Devices(ranks=8, bytes=0.15 * WHOLE / 8, bandwidth=30e9, link=0.5e9)


@pytest.mark.parametrize("share", [0.08, 0.15, 0.4, 1.5])
def test_every_row_is_on_one_rank_and_no_rank_holds_more_than_its_memory(share):
    devices = Devices(8, share * WHOLE / 8, 30e9, 0.5e9)
    plan = Locality(TABLES, devices).plan()
    assert max(plan.memory) <= devices.bytes * (1 + 1e-9)
    held = [(s.table, s.part) for rank in plan.shards for s in rank]
    assert len(held) == len(set(held))
    for number, placement in enumerate(plan.plan.placements):
        parts = {s.parts for rank in plan.shards for s in rank if s.table == number}
        assert parts == {len(placement.ranks)}
        assert len(set(placement.ranks)) == len(placement.ranks)
    assert all("bytes left" in why for why in plan.left)
    for shards, cached in zip(plan.shards, plan.cached, strict=True):
        assert all(0 <= c <= TABLES[s.table].spec.rows / s.parts for s, c in zip(shards, cached, strict=True))
    if share > 1:
        assert max(plan.link_seconds) < 0.01 * plan.rating  # a rank may be full that is not the costliest


def test_counting_misses_balances_what_ranks_wait_for():
    planner = Locality(TABLES, DEVICES)
    sizing = largest_fixed(planner.demands, 0.6 * planner.budget)
    aware, blind = planner.place(sizing, aware=True), planner.place(sizing, aware=False)
    assert aware is not None
    assert blind is not None
    assert aware.rating < blind.rating
    assert planner.plan().rating < aware.rating


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_sizes_and_places_together_are_near_the_dense_grid_and_beat_every_load_factor(share):
    planner = Locality(TABLES, Devices(8, share * WHOLE / 8, 30e9, 0.5e9))
    found = planner.plan().rating

    def rate(sizing):
        placed = planner.place(sizing)
        return None if placed is None else placed.rating

    start = Sizing(tuple(d.start for d in planner.demands))
    grid = best_of(dense_grid(planner.demands, start, planner.budget, rate, points=40))
    assert grid.rating is not None
    assert found <= 1.02 * grid.rating
    for factor in (0.0, 0.05, 0.1, 0.2, 0.4):
        rating = rate(fixed(planner.demands, factor))
        assert rating is None or found <= rating
    assert found <= (rate(by_priority(planner.demands, 0.95 * planner.budget)) or np.inf)


def test_what_the_dense_part_hides_is_not_in_the_rating():
    hidden = Devices(8, DEVICES.bytes, 30e9, 0.5e9, hidden=1e9)
    assert Locality(TABLES, hidden).plan().rating < Locality(TABLES, DEVICES).plan().rating
    both = Devices(8, DEVICES.bytes, 30e9, 0.5e9, duplex=True)
    assert Locality(TABLES, both).plan().rating < Locality(TABLES, DEVICES).plan().rating


def test_tables_that_fit_nowhere_are_refused():
    with pytest.raises(ValueError, match="more devices"):
        Locality(TABLES, Devices(8, 1000.0, 30e9, 0.5e9)).plan()


def test_a_table_of_one_row_is_whole_on_one_rank():
    one = Described(TableSpec("one", 1, 64), 8192.0, zipf_curve(1, 1.0, 8192.0))
    plan = Locality([*TABLES, one], DEVICES).plan()
    placement = plan.plan.placements[-1]
    assert len(placement.ranks) == 1
    rank = placement.ranks[0]
    at = [s.table for s in plan.shards[rank]].index(len(TABLES))
    assert plan.cached[rank][at] == 1


def test_many_tables_on_many_devices_take_seconds():
    many = tables(400, seed=1)
    whole = sum(t.demand().whole_bytes for t in many)
    begin = time.process_time()
    Locality(many, Devices(64, 0.2 * whole / 64, 2e12, 25e9)).plan()
    assert time.process_time() - begin < 10  # a bound for a busy machine; experiments/offload/autosize times it
