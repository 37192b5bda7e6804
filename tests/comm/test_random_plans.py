"""Any plan over any strategies trains what the oracle with its grouping trains, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.group import simulate
from comm.plan import SHAPES, STRATEGIES, Placement, Plan
from kernels import TableSpec
from tests.comm import oracle
from tests.comm.test_exact import assert_same
from tests.comm.workload import Work, digest, train

WORLD = 4
CANONICAL = [name for name in STRATEGIES if name != "hot_cold_ring"]  # a ring adds in an order of its own


def placement(table: TableSpec) -> st.SearchStrategy[Placement]:
    """Any strategy, any ranks (one may hold several shards), any blocks of columns that divide the width."""

    def of(strategy: str) -> st.SearchStrategy[Placement]:
        columns_allowed, parts_allowed, _ = SHAPES[strategy]
        columns = [c for c in range(1, table.dim + 1) if table.dim % c == 0 and columns_allowed(c)]
        parts = [p for p in range(6) if parts_allowed(p)]

        def shaped(shape: tuple[int, int]) -> st.SearchStrategy[Placement]:
            shards = shape[0] * shape[1]
            hot = st.sets(st.integers(0, table.rows - 1), max_size=10 if strategy.startswith("hot_cold") else 0)
            return st.builds(
                Placement,
                st.just(table.name),
                st.just(strategy),
                st.lists(st.integers(0, WORLD - 1), min_size=shards, max_size=shards).map(tuple),
                st.sampled_from(["modulo", "range"]),
                st.just(shape[0]),
                hot=hot.map(lambda ids: tuple(sorted(ids))),
            )

        return st.tuples(st.sampled_from(columns), st.sampled_from(parts)).flatmap(shaped)

    return st.sampled_from(CANONICAL).flatmap(of)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("examples", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_any_plan_is_the_oracle_with_its_grouping(optimizer, examples):
    work = Work(optimizer=optimizer, weighted=True, dims=(8, 4), steps=3)

    @settings(max_examples=examples)
    @given(st.tuples(*(placement(table) for table in work.tables)), st.sampled_from([None, 2, 1]))
    def holds(placements, ranks_per_node):
        plan = Plan(WORLD, work.tables, placements)
        results = simulate(WORLD, lambda group: train(group, work, plan=plan), ranks_per_node)
        assert len({digest(result) for result in results}) == 1, "ranks disagree"
        assert_same(results[0], oracle.train(plan, work, ranks_per_node))

    holds()
