"""Another hot set in the middle of training: the bits of training without one."""

import pytest
import torch

import models.retier
from comm.group import simulate
from comm.when import When
from models.retier import retier
from tests.comm.fec_work import (
    RANKS_PER_NODE,
    TABLES,
    Arm,
    build,
    frames,
    result_of,
    run,
    synchronous,
    training_of,
)
from tests.comm.workload import digest

SETS = (
    {"big": (1, 2, 5, 7), "small": ()},  # fewer than before, and some that were not hot
    {"big": tuple(range(0, 60, 3)), "small": (0, 8)},  # more than before: arrays grow
    {"big": ()},  # nothing of one table; the other keeps its set
    {table.name: tuple(range(table.rows)) for table in TABLES},
)


def trained(arm: Arm, world: int, every: int = 3):
    """Train with another hot set every few steps."""

    def trains(group):
        model, optimizer = build(arm, group)
        losses = []
        for n, begin in enumerate(range(0, arm.steps, every)):
            if begin:
                retier(model.embedding, SETS[(n - 1) % len(SETS)])
            training = training_of(arm, group, model, optimizer)
            losses += [f["loss"] for f in training.steps(frames(arm, group, begin, begin + every))]
        return result_of(model, losses, group)

    return simulate(world, trains, RANKS_PER_NODE[world])


@pytest.mark.parametrize(
    ("world", "when", "optimizer"),
    [
        (2, None, "adam"),
        (4, When(), "rowwise_adagrad"),
        *(
            pytest.param(4, When(parts=2, depth=2), optimizer, marks=pytest.mark.slow)
            for optimizer in ("sgd", "adagrad", "rowwise_adagrad", "adam")
        ),
    ],
)
def test_training_goes_on_as_if_the_hot_sets_had_always_been_these(world, when, optimizer):
    arm = Arm("hot_cold", when, optimizer, steps=3 * len(SETS) + 3, hot=4)
    found = {digest(result) for result in trained(arm, world)}
    assert found == {synchronous(optimizer, "iid", arm.steps, world, 2 if when and when.parts == 2 else 0)}


def test_rows_that_become_hot_travel_once_and_others_not_at_all():
    def trains(group):
        arm = Arm("hot_cold", hot=4)
        model, _ = build(arm, group)
        retier(model.embedding, {"big": tuple(range(0, 60, 4))})
        (label,) = {team.label for team in model.embedding.teams}
        kept = int(group.sent[f"{label}.retier"].sum())
        retier(model.embedding, {"big": (0, 1)})  # one row more, of rank 1
        return kept, group.sent[f"{label}.retier"].tolist()

    row = 4 * 4 + 4  # its values and its row-wise state
    assert simulate(2, trains) == [(0, [0, 0]), (0, [row, 0])]


def test_mutation_states_stay_behind(monkeypatch):
    place = models.retier._with_copies

    def values_only(array, own, copies):
        return place(array, own, copies if array.ndim == 2 else torch.zeros_like(copies))

    monkeypatch.setattr("models.retier._with_copies", values_only)
    arm = Arm("hot_cold", When(), steps=12, hot=4)
    assert {digest(result) for result in trained(arm, 2)} != {synchronous(arm.optimizer, "iid", 12, 2)}


def test_mutation_rows_that_are_no_longer_hot_are_not_given_back(monkeypatch):
    owners, calls = models.retier.owners_of, {}

    def nobody_at_first(shards, keys, backend):
        found, rows = owners(shards, keys, backend)
        calls[id(shards)] = calls.get(id(shards), 0) + 1
        return (found - shards.world if calls[id(shards)] % 2 else found), rows  # given back first, then asked for

    monkeypatch.setattr("models.retier.owners_of", nobody_at_first)
    arm = Arm("hot_cold", When(), steps=12, hot=4)
    assert {digest(result) for result in trained(arm, 2)} != {synchronous(arm.optimizer, "iid", 12, 2)}


def test_a_batch_in_flight_is_refused():
    def trains(group):
        arm = Arm("hot_cold", When(), steps=6, hot=4)
        model, optimizer = build(arm, group)
        steps = training_of(arm, group, model, optimizer).steps(frames(arm, group))
        next(steps)
        retier(model.embedding, {"big": (0, 1)})

    with pytest.raises(RuntimeError, match=r"expected no batch in flight .* drain the pipeline first"):
        simulate(2, trains)


@pytest.mark.parametrize(
    ("strategy", "hot", "message"),
    [
        ("unique", {"big": (0,)}, "table 'big': expected one under hot_cold, given unique"),
        ("hot_cold", {"none": (0,)}, "table 'none': expected one under hot_cold, given no such table"),
        ("hot_cold", {"big": (3, 1)}, "table 'big': expected hot ids that ascend"),
        ("hot_cold", {"big": (60,)}, "table 'big': expected hot ids that ascend, within 0 to 59"),
    ],
)
def test_what_cannot_be_hot_is_refused(strategy, hot, message):
    def tries(group):
        retier(build(Arm(strategy), group)[0].embedding, hot)

    with pytest.raises(RuntimeError, match=message):
        simulate(2, tries)


def test_ranks_that_disagree_are_refused():
    def tries(group):
        retier(build(Arm("hot_cold"), group)[0].embedding, {"big": (group.rank,)})

    with pytest.raises(RuntimeError, match="expected the same ids on every rank"):
        simulate(2, tries)


def test_a_drain_in_the_middle_changes_no_bit():
    arm = Arm("hot_cold", When(depth=2), steps=10)

    def trains(group):
        model, optimizer = build(arm, group)
        training, losses = training_of(arm, group, model, optimizer), {}
        for frame in training.steps(frames(arm, group)):
            losses[frame["step"]] = frame["loss"]
            if frame["step"] == 4:
                losses |= {f["step"]: f["loss"] for f in training.drain()}
        return result_of(model, [losses[step] for step in range(arm.steps)], group)

    assert {digest(r) for r in simulate(2, trains)} == {digest(run(Arm(steps=10), 2))}
