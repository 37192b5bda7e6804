import sys
from types import SimpleNamespace

import pytest

from experiments import __main__ as command
from experiments.config import grid, load, names
from experiments.record import read

command.other_commands()  # imported now, for the toys take the place of every other module of experiments


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def test_experiments_are_found_by_their_path(toys):
    assert names() == ["toy/broken", "toy/one", "toy/stopped"]
    assert load("toy/one").sets["tiny"][0].zipf == 0.0


def test_an_unknown_experiment_names_the_choices_and_the_closest(toys):
    with pytest.raises(
        ValueError, match=r"'toy/on' \(did you mean 'toy/one'\?\): choose one of toy/broken, toy/one, toy/sto"
    ):
        load("toy/on")
    with pytest.raises(SystemExit, match="error: unknown experiment 'toy/on'"):
        command.main(["run", "toy/on"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("BUDGET_S = 2.0", "", "lacks BUDGET_S"),
        ('"""A toy.\n\nLonger words.\n"""', "", "lacks a docstring"),
        ("@dataclass(frozen=True)\nclass Config", "@dataclass\nclass Config", "must be a frozen dataclass"),
        ("TINY = GRID[:1]", "TINY = ()", "TINY must hold one Config or more"),
        ("TINY = GRID[:1]", "TINY = (3,)", "TINY must hold one Config or more"),
    ],
)
def test_a_module_that_breaks_the_contract_says_how(toys, old, new, message):
    module = toys / "toy" / "one.py"
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new).replace("Model = Model()", "int = 3"))
    with pytest.raises(TypeError, match=f"'toy/one'.*{message}"):
        load("toy/one")


def test_grid_is_the_product_with_the_last_field_fastest():
    made = grid(SimpleNamespace, a=[1, 2], b=[3, 4])
    assert [(c.a, c.b) for c in made] == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_list_names_every_experiment_with_its_first_line(toys, capsys):
    command.main(["list"])
    out = capsys.readouterr().out
    assert "toy/one\n    A toy.\n    configurations: 3 grid, 2 laptop, 1 tiny; laptop budget 2 s" in out
    assert "toy/broken" in out


@pytest.mark.parametrize(("flag", "zipfs"), [([], [0, 1, 2]), (["--laptop"], [0, 1]), (["--tiny"], [0])])
def test_run_writes_the_set_it_was_asked_for_and_says_where(toys, runs, capsys, flag, zipfs):
    command.main(["run", "toy/one", *flag, "--out", str(runs)])
    frame = read(runs / "toy" / "one.jsonl")
    assert frame["config.zipf"].tolist() == [z for z in zipfs for _ in range(3)]
    assert capsys.readouterr().out.rstrip().endswith(str(runs / "toy" / "one.jsonl"))


@pytest.mark.parametrize("prefix", ["--", "--config."])
def test_an_override_reaches_every_configuration_and_equal_ones_run_once(toys, runs, prefix):
    command.main(["run", "toy/one", f"{prefix}model.dim", "8", "--out", str(runs)])
    command.main(["run", "toy/one", f"{prefix}zipf", "1.5", "--out", str(runs)])
    frame = read(runs / "toy" / "one.jsonl")
    assert frame["config.model.dim"].tolist() == [8] * 9 + [4] * 3
    assert frame["config.zipf"].tolist()[9:] == [1.5] * 3


def test_a_misspelt_flag_or_command_gets_the_choices(toys, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["run", "toy/one", "--zopf", "1.2"])
    assert "--zipf" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["reproduse"])
    assert "list" in (said := capsys.readouterr().err)
    assert "reproduce" in said
    with pytest.raises(SystemExit, match="before its flags: choose one of toy/broken, toy/one, toy/stopped"):
        command.main(["run"])
    with pytest.raises(SystemExit, match="not both"):
        command.main(["run", "toy/one", "--tiny", "--laptop"])


def test_one_failing_experiment_loses_no_other_record_and_exits_with_an_error(toys, runs, capsys):
    with pytest.raises(SystemExit, match="1"):
        command.main(["record", "toy/broken", "toy/one", "--out", str(runs)])
    assert len(read(runs / "toy" / "broken.jsonl")) == 1
    assert len(read(runs / "toy" / "one.jsonl")) == 9
    out = capsys.readouterr().out
    assert "toy/broken: failed: RuntimeError: broke; 1 records" in out
    assert "toy/one: done; 9 records" in out


def test_an_interrupted_run_leaves_its_records_readable_and_says_where(toys, runs, capsys):
    with pytest.raises(SystemExit, match="130"):
        command.main(["record", "toy/stopped", "toy/one", "--out", str(runs)])
    path = runs / "toy" / "stopped.jsonl"
    assert len(read(path)) == 1
    assert not (runs / "toy" / "one.jsonl").exists()
    assert f"toy/stopped: failed: interrupted; 1 records in 0.0 s -> {path}" in capsys.readouterr().out


def test_reproduce_passes_the_log_draws_the_figures_and_fails_if_they_fail(toys, runs, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(command, "draw_figures", lambda records: drawn.append(records) or False)
    for broken in ("broken", "stopped"):
        (toys / "toy" / f"{broken}.py").unlink()
    log = tmp_path / "log.tsv"
    log.touch()
    with pytest.raises(SystemExit, match="1"):
        command.main(["reproduce", "--data", str(log), "--out", str(runs)])
    assert drawn == [runs]
    frame = read(runs / "toy" / "one.jsonl")
    assert frame["config.data"].tolist() == [str(log)] * 6
    with pytest.raises(SystemExit, match="no such click log"):
        command.main(["reproduce", "--data", str(tmp_path / "none.tsv"), "--out", str(runs)])


def test_the_command_line_starts_as_a_module(capfd):
    import subprocess

    subprocess.run([sys.executable, "-m", "experiments", "--help"], check=True)
    assert "reproduce" in capfd.readouterr().out
