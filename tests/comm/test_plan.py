import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.plan import STRATEGIES, Placement, Plan
from kernels import TableSpec

TABLES = (TableSpec("user", 10, 4), TableSpec("item", 7, 8, "mean", torch.float64))
PLAN = Plan(4, TABLES, (Placement("user", "rowwise", (0, 2), "range"), Placement("item", "tablewise", (3,))))


def placements(world: int, table: str) -> st.SearchStrategy[Placement]:
    def of(strategy: str) -> st.SearchStrategy[Placement]:
        most = {"replicated": 0, "replicated_dense": 0, "allgather": 0, "tablewise": 1, "columnwise": 1}.get(
            strategy, 5
        )
        ranks = st.lists(st.integers(0, world - 1), min_size=min(most, 1), max_size=most).map(tuple)
        return st.builds(Placement, st.just(table), st.just(strategy), ranks, st.sampled_from(["modulo", "range"]))

    return st.sampled_from(STRATEGIES).flatmap(of)


@settings(max_examples=30)
@given(st.integers(1, 4).flatmap(lambda world: st.tuples(st.just(world), *(placements(world, t.name) for t in TABLES))))
def test_json_reads_back_and_keeps_the_hash(drawn):
    world, *placed = drawn
    plan = Plan(world, TABLES, tuple(placed))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.hash == plan.hash


def test_the_hash_is_of_the_content():
    # A constant (what a run printed): another process, machine or version must find the same.
    assert PLAN.hash == "59d3d70456e9"
    assert replace(PLAN, world=5).hash != PLAN.hash
    assert Plan.uniform(TABLES, "unique", 4, "range").hash != Plan.uniform(TABLES, "unique", 4).hash


def test_json_has_a_line_for_each_table():
    lines = PLAN.to_json().splitlines()
    assert sum('"user"' in line for line in lines) == 2
    assert not any('"user"' in line and '"item"' in line for line in lines)


@pytest.mark.parametrize("world", [1, 3])
def test_uniform_spreads_rows_over_all_ranks_and_tables_in_turn(world):
    everyone = tuple(range(world))
    expected = {
        "replicated": [(), ()],
        "replicated_dense": [(), ()],
        "allgather": [(), ()],
        "tablewise": [(0,), (1 % world,)],
        "columnwise": {1: [(0,), (0,)], 3: [(0, 1), (1, 2)]}[world],  # 4 and 8 columns in two blocks
    }
    for strategy in STRATEGIES:
        ranks = [placement.ranks for placement in Plan.uniform(TABLES, strategy, world).placements]
        assert ranks == expected.get(strategy, [everyone, everyone])


def item(**changes) -> tuple[Placement, ...]:
    return (PLAN.placements[0], replace(PLAN.placements[1], **changes))


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        (
            item(strategy="columns"),
            "table 'item': unknown strategy 'columns': choose one of replicated, replicated_dense, allgather",
        ),
        (item(split="hash"), "table 'item': unknown split 'hash': choose one of modulo, range"),
        (item(ranks=(4,)), r"table 'item': expected ranks 0 to 3, given \[4\]"),
        (item(ranks=(-1,)), r"table 'item': expected ranks 0 to 3, given \[-1\]"),
        (item(ranks=(1, 2)), r"table 'item': tablewise expects one rank, given ranks \[1, 2\]"),
        (item(ranks=()), r"table 'item': tablewise expects one rank, given ranks \[\]"),
        (item(strategy="replicated"), r"table 'item': replicated expects no ranks .*, given ranks \[3\]"),
        (item(strategy="unique", ranks=()), r"table 'item': unique expects at least one rank, given ranks \[\]"),
        (item(table="items"), r"placements: .* no placement for 'item', no table for 'items'"),
        (PLAN.placements[:1], r"placements: .* no placement for 'item'"),
        ((*PLAN.placements, PLAN.placements[0]), r"placements: .* 'user' placed more than once"),
        (PLAN.placements[::-1], r"placements: .*in order: .*'user', 'item'.*'item', 'user'"),
    ],
)
def test_a_bad_placement_is_refused_by_the_tables_name(placed, message):
    with pytest.raises(ValueError, match=message):
        Plan(4, TABLES, placed)


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(ValueError, match="tables: expected distinct names, given 'user' more than once"):
        Plan(4, (TABLES[0], TABLES[0]), (PLAN.placements[0], PLAN.placements[0]))


def test_a_plan_for_no_rank_is_refused():
    with pytest.raises(ValueError, match="world: expected at least 1 rank, given 0"):
        Plan.uniform(TABLES, "replicated", 0)


def test_a_hand_edited_file_is_checked_too():
    fields = json.loads(PLAN.to_json())
    fields["placements"][1]["ranks"] = [9]
    with pytest.raises(ValueError, match="table 'item': expected ranks 0 to 3"):
        Plan.from_json(json.dumps(fields))
    fields = json.loads(PLAN.to_json())
    fields["tables"][0]["dtype"] = "float12"
    with pytest.raises(ValueError, match="table 'user': unknown dtype 'float12'"):
        Plan.from_json(json.dumps(fields))
