"""Late gradients: applied before anybody reads them, evaluation and checkpoints included."""

import torch

from comm.group import simulate
from comm.when import When
from models.checkpoint import load, save
from tests.comm.fec_work import RANKS_PER_NODE, Arm, build, frames, stream, train, training_of


def tables_midway(arm: Arm, world: int, every: int = 3) -> int:
    """Flush every few steps: tables must then be those of synchronous training after as many steps, and training must
    go on as if nothing had been. Returns how many times gradients were still to be applied.
    """

    def looks(group):
        model, optimizer = build(arm, group)
        training = training_of(arm, group, model, optimizer)
        seen, behind = [], 0
        for frame in training.steps(frames(arm, group)):
            if frame["step"] % every == every - 1:
                before = tables_of(model)
                training.flush()
                training.flush()
                after = tables_of(model)
                behind += not same(before, after)
                seen.append((frame["step"], after))
        return [*seen, (arm.steps - 1, tables_of(model))], behind

    results = simulate(world, looks, RANKS_PER_NODE[world])
    for step, tables in results[0][0]:
        plain = Arm(optimizer=arm.optimizer, stream=arm.stream, steps=arm.steps)
        assert same(tables, after_steps(plain, world, step + 1)), f"tables differ after step {step}"
    return results[0][1]


def after_steps(arm: Arm, world: int, steps: int):
    def trains(group):
        model, optimizer = build(arm, group)
        list(training_of(arm, group, model, optimizer).steps(frames(arm, group, end=steps)))
        return tables_of(model)

    return simulate(world, trains, RANKS_PER_NODE[world])[0]


def tables_of(model):
    return model.embedding.gather_tables()


def same(some, others) -> bool:
    return all(torch.equal(a, b) for name in some for a, b in zip(some[name], others[name], strict=True))


def test_a_flush_leaves_the_tables_of_synchronous_training():
    for arm in (Arm(when=When()), Arm("hot_cold", When(depth=2), "adam"), Arm(when=When(prefetch=False))):
        assert tables_midway(arm, 4) > 0  # something was late, or this shows nothing


def test_after_the_last_step_nothing_is_late():
    def trains(group):
        arm = Arm(when=When())
        model, optimizer = build(arm, group)
        training = training_of(arm, group, model, optimizer)
        steps = training.steps(frames(arm, group))
        last = next(frame for frame in steps if frame["step"] == arm.steps - 1)
        before = tables_of(model)
        assert list(steps) == []
        return "loss" in last and same(before, tables_of(model))

    assert all(simulate(2, trains))


def test_evaluation_between_steps_sees_them_and_disturbs_nothing():
    arm, plain = Arm(when=When()), Arm()
    bags = [bags for bags, _, _ in stream("iid", arm.steps, 2)[5]]

    def evaluates(group, arm):
        model, optimizer = build(arm, group)
        training = training_of(arm, group, model, optimizer)
        pooled = []
        for frame in training.steps(frames(arm, group)):
            if frame["step"] % 4 == 1:
                training.flush()
                pooled.append(model.embedding(bags[group.rank]))
        return [*pooled, tables_of(model)["big"][0]]

    for mine, theirs in zip(*(simulate(2, lambda g, a=a: evaluates(g, a)) for a in (arm, plain)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_checkpoint_with_gradients_pending_is_that_of_synchronous_training(tmp_path):
    arm, middle = Arm("hot_cold", When(), "adagrad"), 6

    def saves(group):
        model, optimizer = build(arm, group)
        training = training_of(arm, group, model, optimizer)
        for frame in training.steps(frames(arm, group)):
            if frame["step"] == middle:
                training.flush()
                save(tmp_path, model.embedding, middle, torch.zeros(1, dtype=torch.uint8))
        return tables_of(model)

    def loads(group):
        model, _ = build(Arm(optimizer="adagrad"), group)
        assert load(tmp_path / f"step-{middle:09d}", model.embedding)[0] == middle
        return tables_of(model)

    whole = simulate(2, saves)[0]
    plain = Arm(optimizer="adagrad")
    assert same(simulate(2, loads)[0], after_steps(plain, 2, middle + 1))
    assert same(whole, simulate(2, lambda group: train(group, plain))[0].tables)
