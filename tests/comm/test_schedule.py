import pytest

from comm.schedule import Phase, Schedule


def phase(name, needs=(), gives=(), run=lambda *_: None):
    return Phase(name, run, needs, gives, "compute")


def test_a_value_that_nothing_gives_is_named():
    with pytest.raises(ValueError, match="phase 'b' needs 'y', which no earlier phase or input gives"):
        Schedule((phase("a", ("x",), ("z",)), phase("b", ("y",))), ("x",))


def test_a_value_given_later_does_not_count():
    with pytest.raises(ValueError, match="phase 'b' needs 'y'"):
        Schedule((phase("b", ("y",)), phase("a", (), ("y",))), ())


@pytest.mark.parametrize("inputs", [("x",), ()])
def test_a_value_given_twice_is_named(inputs):
    with pytest.raises(ValueError, match=r"phase '.' gives 'x', which exists already"):
        Schedule((phase("a", (), ("x",)), phase("b", (), ("x",))), inputs)


def test_scoped_renames_everything_but_the_outer_names():
    scoped = phase("send", ("rows", "step"), ("out",)).scoped("unique/8", ("step",))
    assert (scoped.name, scoped.needs, scoped.gives) == ("unique/8.send", ("unique/8.rows", "step"), ("unique/8.out",))


def test_a_phase_gives_nothing_one_value_or_several():
    frame = {"x": 3}
    phase("none", ("x",))(frame)
    phase("one", ("x",), ("pair",), lambda x: (x, x))(frame)
    phase("two", ("x",), ("a", "b"), lambda x: (x + 1, x + 2))(frame)
    assert frame == {"x": 3, "pair": (3, 3), "a": 4, "b": 5}
    with pytest.raises(ValueError, match="zip"):
        phase("short", ("x",), ("c", "d"), lambda x: (x,))(frame)
