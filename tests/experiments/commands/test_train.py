import json
from dataclasses import replace

import pytest
import torch

from comm.group import simulate
from comm.plan import Plan
from experiments.commands.train import Config, Run, main, plan_of, run_rank
from experiments.data.generator import generate
from experiments.loop import ModelConfig
from models.checkpoint import latest

SMALL = Config(
    samples=1_500, max_rows=64, dim=4, batch=64, epochs=2, model=ModelConfig(bottom=(4,), top=(8,), cross_rank=2)
)


@pytest.fixture
def runs(monkeypatch):
    """Every rank's Run, as it was made."""
    made = []
    init = Run.__init__

    def note(self, *args):
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(Run, "__init__", note)
    return made


def weights(run):
    tables = [part for whole in run.trainer.tables().values() for part in whole]
    return tables + [parameter.detach() for parameter in run.trainer.model.parameters()]


def final(runs, out, config=SMALL, world=1):
    simulate(world, lambda group: run_rank(group, config, out))
    return [w.clone() for w in weights(runs[-1])]


def test_a_run_that_was_stopped_goes_on_bit_for_bit(runs, tmp_path, monkeypatch):
    whole = final(runs, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "should_stop", lambda self: self.trainer.done == 30)  # in the second epoch
        final(runs, tmp_path / "b")
    assert latest(tmp_path / "b/checkpoints").name == "step-000000030"
    resumed = final(runs, tmp_path / "b")
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    lines = [json.loads(line) for line in (tmp_path / "b/train/run.jsonl").read_text().splitlines()]
    assert [line["point"]["step"] for line in lines if line["point"]["what"] == "train"] == [20, 30, 44]
    assert lines[-1]["point"]["what"] == "evaluation"


def test_it_goes_on_under_another_plan_and_world(runs, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "should_stop", lambda self: self.trainer.done == 8)
        stopped = final(runs, tmp_path)
    begun = []
    monkeypatch.setattr(Run, "should_stop", lambda self: True)
    restore = Run.restore
    monkeypatch.setattr(
        Run, "restore", lambda self: (restore(self), begun.append((self.group.rank, self.trainer.tables())))[0]
    )
    simulate(2, lambda group: run_rank(group, replace(SMALL, strategy="rowwise"), tmp_path))
    tables = [part for whole in next(t for rank, t in begun if rank == 0).values() for part in whole]
    assert all(torch.equal(a, b) for a, b in zip(stopped, tables, strict=False))


def test_all_ranks_stop_when_one_is_asked(tmp_path):
    def run(group):
        made = Run(group, SMALL, tmp_path)
        made.asked_to_stop = group.rank == 1
        return made.should_stop()

    assert simulate(2, run) == [True, True]


def test_a_plan_for_other_tables_is_refused(tmp_path):
    tables = generate(100, max_rows=64, dim=4).tables
    (tmp_path / "plan.json").write_text(Plan.uniform(tables, "tablewise", 2).to_json())
    config = replace(SMALL, plan=str(tmp_path / "plan.json"))
    assert plan_of(config, tables, 2).placements[3].strategy == "tablewise"
    with pytest.raises(ValueError, match=r"expected the 26 tables of the log, given others: not \['C1 \[64, 8\]'"):
        plan_of(config, generate(100, max_rows=64, dim=8).tables, 2)


def test_old_checkpoints_are_not_overwritten_by_chance(tmp_path):
    with pytest.raises(ValueError, match="expected a complete checkpoint"):
        main(SMALL, 1, tmp_path, resume=True)
    simulate(1, lambda group: Run(group, SMALL, tmp_path).save())
    with pytest.raises(ValueError, match="--resume, or another --out"):
        main(SMALL, 1, tmp_path)
