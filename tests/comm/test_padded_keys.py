"""Padded key exchanges: every key arrives, whatever the capacity was; bytes as predicted."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.group import simulate
from comm.padded_keys import PaddedKeys
from comm.strategy import off_diagonal
from kernels import Optimizer
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.overlap import pad_keys
from models.step import TrainingStep, cross_entropy_sum
from tests.comm.test_exact import assert_same
from tests.comm.workload import LR, Result, Work, digest, frame_of, real_model, train

WORLD = 3
COUNTS = st.lists(st.lists(st.integers(0, 6), min_size=WORLD, max_size=WORLD), min_size=WORLD, max_size=WORLD)


def exchanged(steps: list[list[list[int]]], make=PaddedKeys):
    """What ranks get in a run of exchanges, rank r sending steps[i][r][other] keys that say from whom to whom."""

    def run(group):
        padded, found = make(group), []
        for number, counts in enumerate(steps):
            mine = counts[group.rank]
            keys = [1000 * number + 100 * group.rank + 10 * to + i for to, n in enumerate(mine) for i in range(n)]
            expected = padded.sent(torch.tensor(counts), 4)
            before = group.sent["keys"].clone()
            came, splits = padded.exchange(torch.tensor(keys, dtype=torch.int32), mine, "keys")
            assert (group.sent["keys"] - before).tolist() == off_diagonal(expected)[group.rank].tolist()
            found.append((came.tolist(), splits))
        return found, padded.overflows

    return simulate(WORLD, run)


@settings(max_examples=30)
@given(st.lists(COUNTS, min_size=1, max_size=4))
def test_every_key_arrives_in_order_and_bytes_are_predicted(steps):
    for rank, (found, overflows) in enumerate(exchanged(steps)):
        for number, (counts, (came, splits)) in enumerate(zip(steps, found, strict=True)):
            assert splits == [of_source[rank] for of_source in counts]
            parts = [[1000 * number + 100 * s + 10 * rank + i for i in range(n)] for s, n in enumerate(splits)]
            assert came == [key for part in parts for key in part]
        assert overflows <= len(steps)


def test_a_capacity_that_fits_takes_one_collective():
    full = [[4, 4, 4]] * WORLD
    for _, overflows in exchanged([full, full, [[5, 1, 4]] * WORLD, [[2, 6, 6]] * WORLD]):
        assert overflows == 1  # the first; then ceil(1.1 * 4) = 5 and ceil(1.1 * 5) = 6
    for _, overflows in exchanged([full, [[2, 6, 6]] * WORLD]):
        assert overflows == 2


class Lossy(PaddedKeys):
    """What does not fit is lost."""

    def exchange(self, keys, counts, label):
        kept = [min(n, self.capacity) for n in counts]
        parts = [part[:n] for part, n in zip(torch.split(keys, counts), kept, strict=True)]
        return super().exchange(torch.cat(parts), kept, label)


def test_mutation_what_does_not_fit_is_lost():
    """The second collective keeps keys whole: without it, what is compared above differs."""
    steps = [[[2, 1, 0]] * WORLD]
    assert [found[0][1] for found, _ in exchanged(steps)] == [[2] * WORLD, [1] * WORLD, [0] * WORLD]
    with pytest.raises(RuntimeError, match="AssertionError"):  # the bytes of the keys that should have followed
        exchanged(steps, Lossy)


def padded_train(group, work: Work) -> Result:
    embedding = ShardedEmbedding(work.plan(group.size), group, Optimizer(work.optimizer), backend="cpu")
    pad_keys(embedding)
    model: Any = real_model(embedding).to(work.dtype)
    schedule = TrainingStep(model, torch.optim.SGD(list(model.parameters()), lr=LR), cross_entropy_sum).schedule()
    frames = [frame_of(work, step, group) for step in range(work.steps)]
    for frame in frames:
        Executor().run(schedule, frame)
    dense = torch.cat([p.detach().flatten() for p in model.parameters()])
    return Result([frame["loss"] for frame in frames], embedding.gather_tables(), dense, {})


@pytest.mark.parametrize("strategy", ["unique", "rowwise", "gridwise", "hierarchical", "hot_cold", "replicated_dense"])
def test_padding_changes_no_bit(strategy):
    work = Work(strategy, optimizer="rowwise_adagrad", weighted=True, steps=4)
    plain, ours = (simulate(4, lambda group, t=t: t(group, work), 2) for t in (train, padded_train))
    for mine, theirs in zip(ours, plain, strict=True):
        assert_same(mine, theirs)
    assert digest(ours[0]) == digest(plain[0])


def test_strategies_that_send_keys_in_two_steps_are_refused():
    work = Work("unique_node")
    with pytest.raises(RuntimeError, match="expected a pooled exchange or `unique`"):
        simulate(2, lambda group: pad_keys(ShardedEmbedding(work.plan(2), group, backend="cpu")))
