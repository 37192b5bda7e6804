import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from experiments.schedules import WarmupDecay

SCHEDULE = WarmupDecay(base=0.5, warmup_steps=4, decay_start=6, decay_steps=4, power=2.0, floor=0.1)


def test_the_curve():
    # Exact in fp64: quarters, and their squares; the floor replaces (1/4) ** 2 = 0.0625 and what follows.
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5625, 0.25, 0.1, 0.1, 0.1]
    assert [SCHEDULE.factor(step) for step in range(12)] == expected
    assert [SCHEDULE.lr(step) for step in range(12)] == [0.5 * f for f in expected]
    assert SCHEDULE.lr(10**9) == 0.05


def test_without_warm_up_and_decay_it_is_constant():
    assert {WarmupDecay(base=0.1).lr(step) for step in (0, 1, 1000)} == {0.1}


def test_torch_sees_the_same_numbers():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=SCHEDULE.base)
    scheduler = LambdaLR(optimizer, SCHEDULE.factor)
    for step in range(12):
        assert optimizer.param_groups[0]["lr"] == SCHEDULE.lr(step)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 0.0}, "base: expected"),
        ({"base": float("nan")}, "base: expected"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"warmup_steps": 5, "decay_start": 4, "decay_steps": 1}, "at least warmup_steps = 5, given 4"),
        ({"power": 0.0}, "power=0.0"),
        ({"floor": 1.5}, "floor=1.5"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        WarmupDecay(**({"base": 1.0} | options))
