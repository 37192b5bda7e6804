import pytest

from comm.pipeline import Pipeline, Staged, ahead
from comm.schedule import Phase, at, split_offset


def phase(name, needs=(), gives=(), resource="compute"):
    return Phase(name, lambda *_: None, needs, gives, resource)


@pytest.mark.parametrize(
    ("offset", "name", "expected"),
    [
        (0, "x", "x"),
        (1, "x", "+1/x"),
        (-1, "x", "-1/x"),
        (1, "-1/x", "x"),
        (1, "+1/a/b.c", "+2/a/b.c"),
        (0, "a/b", "a/b"),
    ],
)
def test_names_are_seen_from_the_iterations_batch(offset, name, expected):
    assert at(offset, name) == expected
    assert split_offset(expected)[1] == split_offset(name)[1]


def test_scoping_keeps_the_batch_in_front():
    scoped = phase("p", ("+1/x", "step"), ("y",)).scoped("t/8", ("step",))
    assert (scoped.name, scoped.needs, scoped.gives) == ("t/8.p", ("+1/t/8.x", "step"), ("t/8.y",))


def test_one_iteration_is_a_plain_schedule():
    staged = [
        Staged(0, phase("use", ("keys", "+1/keys"))),
        Staged(2, phase("keys", ("bags",), ("keys",))),
        Staged(-1, phase("late", ("keys",))),
    ]
    pipeline = Pipeline(staged, ("bags",))
    assert (pipeline.depth, pipeline.lag) == (2, 1)
    schedule = pipeline.schedule()
    assert [p.name for p in schedule.phases] == ["use", "+2/keys", "-1/late"]
    assert schedule.inputs == ("keys", "+1/keys", "+2/bags", "-1/keys")


@pytest.mark.parametrize("stage", [0, 1])
def test_a_value_that_comes_too_late_is_refused(stage):
    staged = [Staged(0, phase("use", ("+1/keys",))), Staged(stage, phase("keys", ("bags",), ("keys",)))]
    with pytest.raises(ValueError, match=r"needs '\+1/keys', which phase 'keys' .* gives too late"):
        Pipeline(staged, ("bags",))
    Pipeline([*staged[:1], Staged(2, phase("keys", ("bags",), ("keys",)))], ("bags",))


def test_values_must_be_given_once_for_the_own_batch():
    with pytest.raises(ValueError, match="exists already"):
        Pipeline([Staged(0, phase("a", (), ("x",))), Staged(1, phase("b", (), ("x",)))], ())
    with pytest.raises(ValueError, match="own batch"):
        Pipeline([Staged(0, phase("a", (), ("+1/x",)))], ())
    with pytest.raises(ValueError, match="no phase or input gives"):
        Pipeline([Staged(0, phase("a", ("x",)))], ())


def test_ahead_moves_what_reads_only_ids():
    phases = [
        phase("split", ("bags",), ("ids",)),
        phase("keys", ("ids",), ("asked",), "network"),
        phase("gather", ("asked", "step"), ("rows",)),
        phase("free", (), ("free",)),
    ]
    staged = ahead(phases, 2)
    assert [(s.ahead, s.phase.name, s.phase.stream) for s in staged] == [
        (0, "gather", "compute"),
        (0, "free", "compute"),
        (2, "split", "ahead"),
        (2, "keys", "ahead"),
    ]
    Pipeline(staged, ("bags", "step"))
