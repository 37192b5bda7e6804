"""What is learned does not depend on where rows live: bit for bit, as design section 1 of the project says it."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from comm.canonical import canonical_sum, row_order
from comm.group import simulate
from comm.replicated import Replicated
from kernels import Optimizer
from models.embedding import ShardedEmbedding
from tests.comm import oracle
from tests.comm.workload import ARMS, WHOLE_BAGS, LinearModel, Result, Work, digest, linear_loss, train

CLUSTERS = [(1, None), (2, None), (4, None), (4, 2)]
"""Ranks, and ranks per node."""

KINDS = [{"optimizer": "sgd", "weighted": True}, {"optimizer": "rowwise_adagrad", "weighted": False}]
BOTH_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["optimizer"])
OTHER_KINDS = [{"optimizer": "sgd", "weighted": False}, {"optimizer": "rowwise_adagrad", "weighted": True}]


def run(work: Work, world: int, ranks_per_node: int | None = None, **model) -> Result:
    """Train on `world` threads; every rank ends with the same losses, tables and dense parameters."""
    results = simulate(world, lambda group: train(group, work, **model), ranks_per_node)
    assert len({digest(result) for result in results}) == 1, "ranks disagree"
    return results[0]


@cache
def trained(work: Work, world: int, ranks_per_node: int | None) -> Result:
    return run(work, world, ranks_per_node)


@cache
def of_oracle(work: Work, world: int, ranks_per_node: int | None) -> Result:
    """The oracle under the work's plan, run once for the strategies that share its grouping."""
    if work.strategy in WHOLE_BAGS and (work.strategy, work.split) != ("unique", "modulo"):
        return of_oracle(replace(work, strategy="unique", split="modulo"), world, ranks_per_node)
    return oracle.train(work.plan(world), work, ranks_per_node)


def assert_same(a: Result, b: Result) -> None:
    """Bit for bit; the parts are compared first, so that a failure says which."""
    assert a.losses == b.losses
    for name in a.tables:
        for x, y in zip(a.tables[name], b.tables[name], strict=True):
            assert torch.equal(x, y), f"table {name}: {(x != y).sum()} of {x.numel()} differ"
    assert torch.equal(a.dense, b.dense), "dense parameters"
    assert digest(a) == digest(b)


@BOTH_KINDS
@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS)
@pytest.mark.parametrize(("strategy", "split"), ARMS)
def test_every_strategy_is_the_oracle_with_its_grouping(strategy, split, world, ranks_per_node, kind):
    work = Work(strategy, split, **kind)
    assert_same(trained(work, world, ranks_per_node), of_oracle(work, world, ranks_per_node))


@BOTH_KINDS
@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS)
def test_strategies_that_pool_whole_bags_agree(world, ranks_per_node, kind):
    first, *others = [
        trained(Work(strategy, split, **kind), world, ranks_per_node)
        for strategy, split in ARMS
        if strategy in WHOLE_BAGS
    ]
    for other in others:
        assert_same(first, other)


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adam"])
@pytest.mark.parametrize("strategy", ["unique", "rowwise", "replicated"])
def test_optimizers_of_two_states_are_the_oracle_too(strategy, optimizer):
    work = Work(strategy, optimizer=optimizer, steps=3)
    assert_same(trained(work, 4, 2), of_oracle(work, 4, 2))


@pytest.mark.parametrize("optimizer", [Optimizer("rowwise_adam"), Optimizer("sgd", clip_row_norm=1.0)])
def test_columns_refuse_a_rule_that_needs_the_whole_row(optimizer):
    plan = Work("columnwise").plan(2)
    with pytest.raises(RuntimeError, match="columns: expected plain rowwise_adagrad, or a rule"):
        simulate(2, lambda group: ShardedEmbedding(plan, group, optimizer, backend="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "ranks_per_node", "kind"),
    [(2, None, KINDS[0]), (2, 1, OTHER_KINDS[1]), (4, 2, KINDS[1]), (4, None, OTHER_KINDS[0])],
    ids=str,
)
def test_two_hundred_steps_agree(world, ranks_per_node, kind):
    for strategy, split in ARMS:
        work = Work(strategy, split, **kind, steps=200)
        assert_same(run(work, world, ranks_per_node), of_oracle(work, world, ranks_per_node))


def exact_rows(table, rows, dim, seed, dtype, scale, first_column=0):
    """In place of `init_rows`: multiples of 1/16 keyed by (table, row, column)."""
    number = rows[:, None] * 7 + (first_column + torch.arange(dim)) * 3 + len(table)
    return ((number % 17 - 8) / 16).to(dtype)


SUMS = {"poolings": ("sum",), "weighted": True, "steps": 5}


@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS[1:])
@pytest.mark.parametrize(("strategy", "split"), ARMS)
def test_exactly_representable_models_are_those_of_one_rank(monkeypatch, strategy, split, world, ranks_per_node):
    # Every number is a multiple of 2^-12 or coarser below 2^11: sums are exact in float32, in any order.
    monkeypatch.setattr("models.embedding.init_rows", exact_rows)
    linear = {"make": LinearModel, "loss": linear_loss}
    many = run(Work(strategy, split, **SUMS), world, ranks_per_node, **linear)
    one = run(Work(**SUMS), 1, **linear)
    assert_same(many, one)
    start = exact_rows("many", torch.arange(100), 8, 0, torch.float32, 1.0)
    assert not torch.equal(one.tables["many"][0], start)


def relative_distance(a: Result, b: Result) -> float:
    """Of all weights and dense parameters, in the 2-norm."""
    flat = [
        torch.cat([result.dense, *(values.flatten() for values, *_ in result.tables.values())]) for result in (a, b)
    ]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


DOUBLE = {"weighted": True, "dtype": torch.float64, "steps": 50}


@pytest.mark.parametrize(("strategy", "split"), [("unique", "modulo"), ("gridwise", "range")])
def test_fifty_steps_of_double_sgd_stay_at_one_ranks(strategy, split):
    many, one = run(Work(strategy, split, **DOUBLE), 4, 2), trained(Work(**DOUBLE), 1, None)
    # Design section 1's bound. 50 steps of sums of < 100 terms, each within 100 * 2^-53 = 1.1e-14 of the other order's.
    assert 0 < relative_distance(many, one) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS[1:])
@pytest.mark.parametrize(("strategy", "split"), ARMS)
def test_fifty_steps_of_double_sgd_stay_at_one_ranks_everywhere(strategy, split, world, ranks_per_node):
    many, one = run(Work(strategy, split, **DOUBLE), world, ranks_per_node), trained(Work(**DOUBLE), 1, None)
    assert relative_distance(many, one) < 1e-12


@pytest.mark.parametrize(("strategy", "split"), [("unique", "modulo"), ("rowwise", "modulo"), ("replicated", "modulo")])
def test_overlap_and_delays_change_no_bit(strategy, split):
    work = Work(strategy, split, optimizer="rowwise_adagrad")
    shaken = Work(strategy, split, optimizer="rowwise_adagrad", overlap=True, delays=1)
    assert_same(trained(work, 4, 2), run(shaken, 4, 2))


def test_the_node_level_is_there():
    work = Work("unique", optimizer="sgd", weighted=True)
    assert digest(trained(work, 4, None)) != digest(trained(work, 4, 2))


# Each mutation below breaks one rule of the canonical order; the comparison that guards it must see that.


@BOTH_KINDS
def test_mutation_owners_added_in_reverse_order(monkeypatch, kind):
    work = Work("rowwise", **kind)
    expected = of_oracle(work, 4, None)
    monkeypatch.setattr("comm._pooled.canonical_sum", lambda parts, per_node: canonical_sum(parts[::-1], per_node))
    assert digest(run(work, 4)) != digest(expected)


@BOTH_KINDS
@pytest.mark.parametrize("user", ["comm.replicated", "models.step"])
def test_mutation_all_reduce_in_reverse_order(monkeypatch, user, kind):
    work = Work("replicated", **kind)
    expected = of_oracle(work, 4, None)

    def reverse(group, x, label, wire="table"):
        return canonical_sum(group.all_gather(x[None], [1] * group.size, label).flip(0).unbind(), group.ranks_per_node)

    monkeypatch.setattr(f"{user}.canonical_all_reduce", reverse)
    assert digest(run(work, 4)) != digest(expected)


@BOTH_KINDS
@pytest.mark.parametrize("strategy", ["tablewise", "rowwise"])
def test_mutation_rows_summed_without_the_rank_level(monkeypatch, strategy, kind):
    work = Work(strategy, **kind)
    expected = of_oracle(work, 4, None)

    def without_ranks(rows, source, group, summed, backend):
        return row_order(rows, source, group, True, backend)

    monkeypatch.setattr("comm._pooled.row_order", without_ranks)
    assert digest(run(work, 4)) != digest(expected)


def test_mutation_mean_not_divided(monkeypatch):
    work = Work("unique", **KINDS[0])
    expected = of_oracle(work, 2, None)
    monkeypatch.setattr(ShardedEmbedding, "_is_mean", lambda self, number: False)
    assert digest(run(work, 2)) != digest(expected)


def test_mutation_one_replica_updated_only(monkeypatch):
    apply = Replicated.apply

    def on_rank_0(self, union, grads, lease, lr, step):
        apply(self, union, grads if self.group.rank == 0 else torch.zeros_like(grads), lease, lr, step)

    monkeypatch.setattr(Replicated, "apply", on_rank_0)
    with pytest.raises(AssertionError, match="ranks disagree"):
        run(Work("replicated", **KINDS[0]), 2)
