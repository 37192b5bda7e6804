"""Early rows, late gradients and tiers, together and apart: the bits of plain synchronous training."""

from dataclasses import replace

import pytest

from comm.group import launch, simulate
from comm.when import When
from tests.comm.fec_work import STREAMS, Arm, assert_exact, train
from tests.comm.workload import digest

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
WORLDS = (1, 2, 4, 8)
ALONE = {
    "prefetch": ("unique", When(deferral=False)),
    "deferral": ("unique", When(prefetch=False)),
    "both": ("unique", When()),
    "two_ahead": ("unique", When(depth=2)),
    "four_ahead": ("unique", When(depth=4)),
    "keys_ahead": ("unique", When(prefetch=False, deferral=False)),
    "key_sets": ("unique", When(depth=2, noted="key_sets")),
    "window": ("unique", When(window=6)),
    "tier": ("hot_cold", None),
    "tier_node": ("hot_cold_node", None),
    "tier_prefetch": ("hot_cold", When(deferral=False)),
    "everything": ("hot_cold", When()),
    "parts": ("unique", When(parts=2)),
    "everything_in_parts": ("hot_cold", When(parts=3, depth=2)),
}
LONG = 200


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ALONE)
def test_every_arm_learns_the_bits_of_the_synchronous_one(name, overlap):
    strategy, when = ALONE[name]
    assert_exact(Arm(strategy, when, overlap=overlap), 2 if strategy == "unique" else 4)


QUICK = {(1, "sgd"): LONG, (2, "adagrad"): LONG, (4, "rowwise_adagrad"): LONG, (8, "adam"): 24}
"""What runs every time; all ranks with all rules, `LONG` steps each, are in the slow tests."""


@pytest.mark.parametrize(("world", "optimizer"), QUICK)
def test_many_steps_of_everything(world, optimizer):
    assert_exact(Arm("hot_cold", When(), optimizer, steps=QUICK[world, optimizer]), world)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("world", WORLDS)
def test_two_hundred_steps_of_everything(world, optimizer):
    assert_exact(Arm("hot_cold", When(), optimizer, steps=LONG), world)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize(("world", "optimizer"), [(2, "adam"), (4, "rowwise_adagrad")])
def test_two_hundred_steps_of_every_arm(world, optimizer, name):
    strategy, when = ALONE[name]
    assert_exact(Arm(strategy, when, optimizer, steps=LONG), world)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("stream", STREAMS)
def test_adversarial_streams(stream, parts):
    arm = Arm("unique", When(), stream=stream) if parts == 1 else Arm("hot_cold", When(parts=2, depth=2), stream=stream)
    assert_exact(arm, 4)


@pytest.mark.parametrize("hot", [1, 0], ids=["everything hot", "nothing hot"])
def test_a_tier_of_everything_and_of_nothing(hot):
    for parts in (1, 2):
        assert_exact(Arm("hot_cold", When(parts=parts), hot=hot), 4)
    assert_exact(Arm("hot_cold", hot=hot), 4)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_streams_that_end_before_they_are_read_ahead(steps):
    for when in (When(), When(depth=3), When(parts=2)):
        assert_exact(Arm("hot_cold", when, steps=steps), 2)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_random_delays_in_every_phase_change_no_bit(seed):
    for when in (When(), When(parts=2, depth=2)):
        assert_exact(Arm("hot_cold", when, "adam", overlap=True, delays=seed), 4)


def over_gloo(group, arms):
    return [digest(train(group, arm)) for arm in arms]


@pytest.mark.dist
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_over_gloo_give_the_same_bits(world):
    arms = [
        Arm("hot_cold", When(), "adam", steps=LONG, overlap=True),
        Arm("unique", When(), steps=LONG, overlap=True),
        Arm("hot_cold", When(parts=2), "adagrad", steps=20, overlap=True),
    ]
    # one node: gloo's launcher puts all ranks on one, and the order of a sum goes by nodes
    expected = []
    for arm in arms:
        plain = replace(
            arm, strategy="unique", when=None, overlap=False, parts=arm.when.parts if arm.when.parts > 1 else 0
        )
        expected.append(digest(simulate(world, lambda group, plain=plain: train(group, plain))[0]))
    assert launch(world, over_gloo, arms) == [expected] * world
