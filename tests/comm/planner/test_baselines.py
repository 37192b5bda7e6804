import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm.planner.baselines.by_index import round_robin, table_row_wise, uniform
from comm.planner.baselines.hugectr import Limits, OutOfMemory, auto, hier_auto
from comm.planner.baselines.swept import swept
from kernels import TableSpec


def tables(*rows, dim=8):
    return [TableSpec(f"t{i}", n, dim) for i, n in enumerate(rows)]


def ranks(plan):
    return [placement.ranks for placement in plan.placements]


def limits(nodes=2, local=2, memory=1e9, ratio=10.0, batch=64):
    return Limits(nodes, local, memory, 1.0, ratio, batch)


def test_table_row_wise_takes_nodes_by_index_and_all_ranks_for_what_is_larger_than_one():
    given_tables = tables(10, 20, 4000, 30)
    plan = table_row_wise(given_tables, nodes=2, ranks_per_node=2, memory=4000 * 8 * 4 / 2 - 1)
    assert ranks(plan) == [(0, 1), (2, 3), (0, 1, 2, 3), (2, 3)]
    assert {placement.strategy for placement in plan.placements} == {"hierarchical"}
    assert ranks(table_row_wise(given_tables, 2, 2, memory=4000 * 8 * 4 / 2))[2] == (0, 1)
    assert ranks(table_row_wise(given_tables, 2, 2, memory=4000 * 8 * 4 / 2, copies=2.0))[2] == (0, 1, 2, 3)


def test_round_robin_and_uniform():
    assert ranks(round_robin(tables(1, 2, 3), 2)) == [(0,), (1,), (0,)]
    assert ranks(uniform(tables(1, 2), 3)) == [(0, 1, 2)] * 2


def test_auto_places_the_costliest_first_on_the_least_busy_rank():
    """A table costs 4 * hotness + 10 a sample of one number."""
    world = limits(1, 2)
    plan = auto(tables(100, 100, 100, 100, dim=1), [20, 15, 10, 5], world)
    loads = dict.fromkeys(range(2), 0.0)
    for placement, h in zip(plan.placements, [20, 15, 10, 5], strict=True):
        for rank in placement.ranks:
            loads[rank] += 4 * h / len(placement.ranks) + 10
    assert max(loads.values()) <= 4 * 25 + 20  # 20 + 5 | 15 + 10


def test_auto_splits_a_table_that_no_rank_has_room_for():
    (one,) = tables(1000)
    plan = auto([one, *[TableSpec("small", 1, 8)]], [1, 1], limits(memory=one.bytes / 2 + 100))
    assert len(plan.placements[0].ranks) >= 2


def test_what_does_not_fit_is_refused_with_bytes():
    with pytest.raises(OutOfMemory, match="even in rows over everything"):
        auto(tables(1000), [1], limits(memory=1000 * 8 * 4 / 4 - 1))
    with pytest.raises(OutOfMemory, match="replicated=1"):
        auto(tables(1000), [1], limits(memory=100), replicated=1)


def test_the_thresholds_take_the_smallest_then_the_least_hot():
    plan = auto(tables(10, 1000, 20, 2000), [5, 3, 4, 1], limits(), replicated=1, unique=2)
    assert [p.strategy for p in plan.placements] == ["replicated_dense", "unique", "gridwise", "unique"]
    assert plan.placements[1].ranks == plan.placements[3].ranks == (0, 1, 2, 3)


def test_with_every_table_replicated_there_is_nothing_to_place():
    assert {p.strategy for p in auto(tables(10, 20), [1, 1], limits(), replicated=2).placements} == {"replicated_dense"}


def test_hier_auto_takes_whole_nodes():
    plan = hier_auto(tables(100, 100, 100), [5, 3, 1], limits())
    for placement in plan.placements:
        nodes = {rank // 2 for rank in placement.ranks}
        assert sorted(placement.ranks) == [rank for node in sorted(nodes) for rank in (2 * node, 2 * node + 1)]
    with pytest.raises(ValueError, match="at least 2 nodes"):
        hier_auto(tables(1), [1], limits(nodes=1))


def test_columns_are_cut_where_that_is_cheaper():
    """With dear sends halves of the columns cost half, halves of the rows as much as the whole."""
    wide = [TableSpec("t", 100, 128)]
    assert auto(wide, [1], limits(1, 4, ratio=1000.0), columns=True).placements[0].columns == 4
    assert auto(wide, [1], limits(1, 4, ratio=1000.0)).placements[0].columns == 1
    assert auto([TableSpec("t", 100, 32)], [1], limits(1, 4, ratio=1000.0), columns=True).placements[0].columns == 1


def largest_cost(plan, hotness, at, width=1):
    """Of a bucket of `width` ranks, under the published model."""
    cost = dict.fromkeys(range(plan.world // width), 0.0)
    for table, placement, h in zip(plan.tables, plan.placements, hotness, strict=True):
        buckets = sorted({rank // width for rank in placement.ranks}) * (placement.columns if width == 1 else 1)
        for bucket in set(buckets):
            share = len(set(buckets))
            columns = placement.columns
            hop = 1.5 / width if width > 1 else 1.0
            cost[bucket] += (
                4 * at.batch / width * h * table.dim / share + at.ratio * at.batch * hop * table.dim / columns
            )
    return max(cost.values())


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 30)), min_size=1, max_size=8),
    st.sampled_from([(1, 2), (2, 2), (2, 4)]),
    st.sampled_from([0.1, 3.0, 60.0]),
)
def test_no_plan_is_worse_than_uniform_by_its_own_model(drawn, cluster, ratio):
    at = limits(*cluster, ratio=ratio)
    specs, hotness = tables(*(rows for rows, _ in drawn)), [h for _, h in drawn]
    for columns in (False, True):
        plan = auto(specs, hotness, at, columns=columns)
        found = largest_cost(plan, hotness, at)
        assert found <= largest_cost(uniform(specs, at.world), hotness, at) * (1 + 1e-9)
        assert auto(specs, hotness, at, columns=columns) == plan


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_every_plan_keeps_to_the_memory(rows):
    specs = tables(*rows)
    total, largest = sum(t.bytes for t in specs), max(t.bytes for t in specs)
    at = limits(1, 4, memory=total / 4 + largest)
    for columns, ratio in itertools.product((False, True), (1.0, 100.0)):
        plan = auto(specs, [3] * len(specs), Limits(1, 4, at.memory, 1.0, ratio, 8), columns=columns)
        held = dict.fromkeys(range(4), 0.0)
        for table, placement in zip(plan.tables, plan.placements, strict=True):
            for rank in placement.ranks:
                held[rank] += table.bytes / len(placement.ranks)
        assert max(held.values()) <= at.memory * (1 + 1e-9)


def test_swept_tries_the_classes_of_tables_and_takes_the_best_by_the_score():
    specs, hotness = tables(500, 5_000, 50_000, 500_000), [1, 5, 20, 50]
    tried = []

    def score(plan):
        tried.append(tuple(p.strategy for p in plan.placements))
        return abs(tried[-1].count("replicated_dense") - 2) + abs(tried[-1].count("unique") - 1)

    name, plan = swept(specs, hotness, limits(), "hierarchical", "table", score)
    assert [p.strategy for p in plan.placements] == ["replicated_dense", "replicated_dense", "unique", "hierarchical"]
    assert "2 replicated, 1 unique" in name
    assert len(tried) == 2 * 10 + 1  # 10 different pairs under each search, and columns on the best
    with pytest.raises(OutOfMemory, match="no thresholds"):
        swept(specs, hotness, limits(), "hierarchical", "table", lambda plan: float("inf"))
