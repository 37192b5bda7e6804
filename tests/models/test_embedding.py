import pytest
import torch

from comm.group import SimGroup, simulate
from comm.plan import STRATEGIES, Placement, Plan
from comm.schedule import Schedule
from comm.strategy import INPUTS
from kernels import Bags, Optimizer, TableSpec, pooled_lookup
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.initialise import init_rows, row_scale
from tests.comm import oracle
from tests.comm.workload import ARMS, CUTS, Work, batch_of, digest, slice_of, train

MIXED = Work(optimizer="rowwise_adagrad", weighted=True, dims=(8, 3), steps=5)


def mixed_plan(*placed: tuple[str, tuple[int, ...], str]) -> Plan:
    return Plan(4, MIXED.tables, tuple(Placement(t.name, *p) for t, p in zip(MIXED.tables, placed, strict=True)))


def test_four_strategies_and_two_widths_in_one_model_are_the_oracle():
    # Also more parts than rows, two parts of a table on one rank, and a rank that owns nothing.
    plan = mixed_plan(
        ("rowwise", (2, 0, 3), "range"),
        ("replicated", (), "modulo"),
        ("unique", (3, 2), "range"),
        ("tablewise", (2,), "modulo"),
    )
    expected = digest(oracle.train(plan, MIXED, 2))
    assert {digest(r) for r in simulate(4, lambda group: train(group, MIXED, plan=plan), 2)} == {expected}
    plan = mixed_plan(
        ("tablewise", (1,), "range"),
        ("unique", (0, 1, 2, 3), "modulo"),
        ("rowwise", (3, 1, 1), "modulo"),
        ("rowwise", (1, 3, 0), "range"),
    )
    expected = digest(oracle.train(plan, MIXED, None))
    assert {digest(r) for r in simulate(4, lambda group: train(group, MIXED, plan=plan))} == {expected}


def test_a_mixed_plan_that_pools_whole_bags_is_the_uniform_one():
    plan = mixed_plan(
        ("replicated", (), "modulo"),
        ("unique", (1, 2), "modulo"),
        ("unique", (0, 1, 2, 3), "range"),
        ("tablewise", (3,), "modulo"),
    )
    uniform = simulate(4, lambda group: train(group, MIXED), 2)
    mixed = simulate(4, lambda group: train(group, MIXED, plan=plan), 2)
    assert {digest(result) for result in uniform} == {digest(result) for result in mixed}


def embedding_of(group: SimGroup, work: Work, **options) -> ShardedEmbedding:
    return ShardedEmbedding(work.plan(group.size), group, Optimizer(work.optimizer), backend="cpu", **options)


@pytest.mark.parametrize("strategy", ["unique", "replicated", "hot_cold"])
def test_zero_rows_are_as_many_and_take_no_memory_until_touched(strategy):
    import resource

    def taken():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    plan = Plan.uniform([TableSpec("t", 4_000, 8), TableSpec("u", 6_001, 8)], strategy, 2)
    for embedding in simulate(2, lambda group: ShardedEmbedding(plan, group, backend="cpu", init="zeros")):
        (team,) = embedding.teams
        drawn = ShardedEmbedding(plan, embedding.group, backend="cpu").teams[0].strategy.store.values
        assert team.strategy.store.values.shape == drawn.shape
        assert not team.strategy.store.values.any()
    before, huge = taken(), Plan.uniform([TableSpec("t", 16_000_000, 64)], "unique", 1)
    simulate(1, lambda group: ShardedEmbedding(huge, group, Optimizer("rowwise_adagrad"), backend="cpu", init="zeros"))
    # the row-wise state is 64 MB; the rows would be 4 GB
    assert taken() - before < 16_000_000 * 4 * 3
    with pytest.raises(RuntimeError, match=r"init: expected one of uniform, zeros, given 'ones'"):
        simulate(1, lambda group: ShardedEmbedding(huge, group, init="ones"))


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize(("strategy", "split"), ARMS)
def test_initial_weights_are_the_same_under_every_plan(strategy, split, world):
    work = Work(strategy, split, "rowwise_adagrad", dims=(8, 3))
    for whole in simulate(world, lambda group: embedding_of(group, work, seed=7).gather_tables()):
        assert list(whole) == [table.name for table in work.tables]
        for table in work.tables:
            values, state = whole[table.name]
            rows = torch.arange(table.rows)
            expected = init_rows(table.name, rows, table.dim, 7, table.dtype, row_scale(table.rows))
            assert torch.equal(values, expected)
            assert torch.equal(state, torch.zeros(table.rows))


def test_stateless_optimizers_have_no_state_to_gather():
    whole = simulate(2, lambda group: embedding_of(group, Work("rowwise")).gather_tables())[1]
    assert all(len(arrays) == 1 for arrays in whole.values())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evaluation_pools_as_training_does_and_changes_nothing(strategy, weighted):
    work = Work(strategy, weighted=weighted, dims=(8, 3))

    def both(group: SimGroup):
        embedding = embedding_of(group, work)
        before = embedding.gather_tables()
        begin, end = CUTS[group.size][group.rank : group.rank + 2]
        bags, _, _ = batch_of(work, 0, begin, end)
        evaluated = embedding(bags)
        assert all(team.strategy.store.stats() == {"leases": 0} for team in embedding.teams)
        after = embedding.gather_tables()
        assert all(torch.equal(before[name][0], after[name][0]) for name in before)
        frame = {"step": 0, "lr": 0.5, "training": True, "bags": bags}
        Executor().run(Schedule(embedding.forward_phases(), (*INPUTS, "bags")), frame)
        assert all(team.strategy.store.stats() == {"leases": 1} for team in embedding.teams)
        return evaluated, frame["pooled"], bags, before

    for evaluated, trained, bags, tables in simulate(4, both):
        assert torch.equal(evaluated, trained)
        batch, begin = len(evaluated), 0
        for number, table in enumerate(work.tables):
            of_table = slice_of(bags, number * batch, (number + 1) * batch)
            sums = pooled_lookup(
                tables[table.name][0], of_table.ids, of_table.offsets, of_table.weights, backend="torch"
            )
            length = of_table.lengths.clamp(min=1)[:, None] if table.pooling == "mean" else 1
            # Bags of at most 3 ids, |weight| <= 3, |row| <= 1: at most 3 products and 3 sums of at most 9, by at most 4
            # owners, in two orders: 2 * 10 roundings of 9 * 2^-24.
            torch.testing.assert_close(
                evaluated[:, begin : begin + table.dim], sums / length, rtol=0, atol=2 * 10 * 9 * 2.0**-24
            )
            begin += table.dim


def test_tables_of_one_strategy_and_width_travel_as_one_team():
    plan = mixed_plan(
        ("unique", (0,), "modulo"),
        ("unique", (1,), "range"),
        ("unique", (2, 3), "modulo"),
        ("tablewise", (0,), "range"),
    )
    teams = simulate(4, lambda group: ShardedEmbedding(plan, group, backend="cpu").teams)[0]
    assert {team.label: team.blocks for team in teams} == {
        "unique/8/float32": ((0, 0), (2, 0)),
        "unique/3/float32": ((1, 0),),
        "tablewise/3/float32": ((3, 0),),
    }


def test_a_plan_for_another_world_is_refused():
    with pytest.raises(RuntimeError, match="ValueError: plan: expected one for 2 ranks, given one for 4"):
        simulate(2, lambda group: ShardedEmbedding(Work().plan(4), group))


def with_bad_ids(bags: Bags) -> Bags:
    """The same bags with two ids more, just past their tables: one in the first bag and one in the last."""
    ids = torch.cat([torch.tensor([1]), bags.ids, torch.tensor([100])])  # of table "one" and of table "many"
    offsets = bags.offsets + 1
    offsets[0], offsets[-1] = 0, len(ids)
    return Bags(ids, offsets)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_id_out_of_range_is_named_or_dropped_and_counted(strategy):
    work = Work(strategy)

    def both(group: SimGroup, on_bad_id: str):
        embedding = embedding_of(group, work, on_bad_id=on_bad_id)
        begin, end = CUTS[group.size][group.rank : group.rank + 2]
        bags, _, _ = batch_of(work, 0, begin, end)
        expected = embedding(bags)
        assert embedding.dropped == 0
        return expected, embedding(with_bad_ids(bags)), embedding.dropped

    for expected, given, dropped in simulate(2, lambda group: both(group, "drop")):
        assert torch.equal(expected, given)
        assert dropped == 2
    message = r"table 'one': id 1 at position 0 is out of range: expected 0 <= id < 1 \(2 such ids"
    with pytest.raises(RuntimeError, match=message):
        simulate(2, lambda group: both(group, "raise"))


def test_a_sharded_embedding_refuses_a_maximum():
    plan = Plan(1, (TableSpec("genre", 5, 4, "max"),), (Placement("genre", "tablewise", (0,), "modulo"),))
    with pytest.raises(RuntimeError, match="table 'genre': expected pooling sum or mean in a sharded embedding"):
        simulate(1, lambda group: ShardedEmbedding(plan, group))
