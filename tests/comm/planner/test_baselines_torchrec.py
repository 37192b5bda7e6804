import itertools

import numpy as np
import pytest

from comm.planner.baselines.torchrec import Choice, Option, Space, choices_of, search, to_plan
from kernels import TableSpec


def option(place, ms, hbm, sharding="table_wise"):
    return Option(sharding, "fused", place, np.array(ms, float), np.array(hbm, float), np.zeros(len(ms)))


def drawn(seed):
    """Four tables on two nodes of two ranks, whole, in halves on a node, or on all ranks, for which memory is tight."""
    random = np.random.default_rng(seed)
    tables = []
    for _ in range(4):
        ms, hbm = random.uniform(1, 10), random.integers(5, 15)
        tables.append(
            (
                option("device", [ms], [hbm]),
                option("row_of_host", [ms * 0.7] * 2, [hbm / 2] * 2, "table_row_wise"),
                option("uniform", [ms * 0.6] * 4, [hbm / 4] * 4, "row_wise"),
            )
        )
    room = sum(table[0].hbm.sum() for table in tables) / 4 * 1.3
    return Space(tuple(tables), np.full(4, room), np.zeros(4), 2)


def every_choice(table):
    for number, o in enumerate(table):
        if o.place == "device":
            yield from (Choice(number, (rank,)) for rank in range(4))
        elif o.place == "row_of_host":
            yield from (Choice(number, ranks) for ranks in ((0, 1), (2, 3)))
        else:
            yield Choice(number, (0, 1, 2, 3))


def best(space):
    found = np.inf
    for choices in itertools.product(*(list(every_choice(table)) for table in space.options)):
        try:
            found = min(found, space.rate(choices))
        except ValueError:
            continue
    return found


def test_the_search_ends_at_the_optimum_of_small_spaces():
    start = [Choice(2, (0, 1, 2, 3))] * 4
    for seed in range(6):
        space = drawn(seed)
        found = search(space, start, moves=20_000)
        assert space.rate(found) == pytest.approx(best(space), rel=1e-12)


def test_the_search_is_deterministic_and_never_worse_than_its_start():
    space, start = drawn(0), [Choice(2, (0, 1, 2, 3))] * 4
    for moves in (0, 1, 10, 1000):
        found = search(space, start, moves)
        assert space.rate(found) <= space.rate(start)
        assert found == search(space, start, moves)


def test_a_rank_without_room_is_named_in_bytes():
    space = drawn(0)
    with pytest.raises(ValueError, match="a rank lacks"):
        space.rate([Choice(0, (0,))] * 4)


FIELDS = {
    "ranks_per_node": 2, "hbm": [10, 10], "ddr": [0, 0],
    "plan": [
        {"table": "a", "sharding": "row_wise", "kernel": "fused", "ranks": [0, 1], "columns": 1},
        {"table": "b", "sharding": "column_wise", "kernel": "fused", "ranks": [1, 0], "columns": 2},
        {"table": "c", "sharding": "data_parallel", "kernel": "dense", "ranks": [0, 1], "columns": 1},
    ],
    "options": [
        [{"sharding": "row_wise", "kernel": "fused", "place": "uniform", "shards": [[2, 1.5, 3, 0]]}],
        [{"sharding": "column_wise", "kernel": "fused", "place": "device", "shards": [[1, 2.0, 3, 0]]},
         {"sharding": "column_wise", "kernel": "fused", "place": "device",
          "shards": [[1, 1.0, 2, 0], [1, 1.25, 2, 0]]}],
        [{"sharding": "data_parallel", "kernel": "dense", "place": "uniform", "shards": [[2, 0.5, 1, 0]]}],
    ],
}  # fmt: skip


def test_options_and_the_plan_are_read_from_a_file():
    space, choices = Space.of(FIELDS), choices_of(FIELDS)
    assert choices == (Choice(0, (0, 1)), Choice(1, (1, 0)), Choice(0, (0, 1)))
    assert space.rate(choices) == 1.5 + 1.25 + 0.5
    with pytest.raises(ValueError, match="expected a place of"):
        Space.of(FIELDS | {"options": [[{"sharding": "x", "kernel": "y", "place": "moon", "shards": [[1, 1, 1, 1]]}]]})


def test_a_plan_of_torchrec_becomes_ours():
    tables = [TableSpec(name, 10, 8) for name in "abc"]
    plan = to_plan(FIELDS["plan"], tables, 2)
    assert [(p.strategy, p.ranks, p.columns) for p in plan.placements] == [
        ("gridwise", (0, 1), 1),
        ("gridwise", (1, 0), 2),
        ("replicated_dense", (), 1),
    ]
    with pytest.raises(ValueError, match="table 'a': expected sharding"):
        to_plan([FIELDS["plan"][0] | {"kernel": "fused_uvm"}], tables[:1], 2)
