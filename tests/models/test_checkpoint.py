"""A checkpoint gives back every bit, under the plan it was saved under and under any other."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comm.group import simulate
from comm.plan import Plan
from kernels import Optimizer
from models.checkpoint import MANIFEST, latest, load, save
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.step import TrainingStep
from tests.comm.workload import ARMS, LR, Work, frame_of, real_model

WORK = Work(optimizer="rowwise_adagrad", dims=(8, 8, 4, 8))


def plan_of(world: int, arm: int) -> Plan:
    strategy, split = ARMS[arm % len(ARMS)]
    return Plan.uniform(WORK.tables, strategy, world, split)


def trained(group, plan: Plan, optimizer: str, folder: Path | None, steps=3):
    """A model trained for some steps; its tables, and a checkpoint of them."""
    embedding = ShardedEmbedding(plan, group, Optimizer(optimizer), backend="cpu")
    model = real_model(embedding)
    schedule = TrainingStep(model, torch.optim.SGD(model.parameters(), lr=LR)).schedule()
    for step in range(steps):
        Executor().run(schedule, frame_of(WORK, step, group))
    if folder is not None:
        save(folder, embedding, steps, torch.arange(5, dtype=torch.uint8))
    return embedding.gather_tables()


def restored(group, plan: Plan, optimizer: str, path: Path):
    embedding = ShardedEmbedding(plan, group, Optimizer(optimizer), seed=1, backend="cpu")
    step, dense = load(path, embedding)
    assert (step, dense.tolist()) == (3, [0, 1, 2, 3, 4])
    return embedding.gather_tables()


def same(a, b) -> bool:
    return all(torch.equal(x, y) for name in a for x, y in zip(a[name], b[name], strict=True))


@pytest.mark.parametrize("arm", range(len(ARMS)))
def test_every_plan_loads_what_another_saved(arm, tmp_path):
    """Row-wise state beside blocks of columns too; two ranks to four to one, and back to the same plan."""
    plan, optimizer = plan_of(2, arm), "rowwise_adagrad"
    before = simulate(2, lambda group: trained(group, plan, optimizer, tmp_path))[0]
    path = latest(tmp_path)
    for world, other in ((2, plan), (4, plan_of(4, arm + 5)), (1, plan_of(1, arm + 2))):
        after = simulate(world, lambda group, other=other: restored(group, other, optimizer, path))
        assert all(same(before, of_rank) for of_rank in after), other


def test_states_as_wide_as_rows(tmp_path):
    before = simulate(2, lambda group: trained(group, plan_of(2, 7), "adam", tmp_path))[0]
    assert same(before, simulate(4, lambda group: restored(group, plan_of(4, 6), "adam", latest(tmp_path)))[0])


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path):
    simulate(1, lambda group: trained(group, plan_of(1, 0), "sgd", tmp_path))
    good = latest(tmp_path)
    torn = tmp_path / "step-000000009"
    (torn / "rank-0").mkdir(parents=True)
    (torn / f"{MANIFEST}.draft").write_text("{")
    assert latest(tmp_path) == good
    assert latest(tmp_path / "nowhere") is None


def test_old_ones_go_once_newer_ones_are_whole(tmp_path):
    def run(group):
        embedding = ShardedEmbedding(plan_of(1, 0), group, backend="cpu")
        for step in range(4):
            save(tmp_path, embedding, step, torch.zeros(0, dtype=torch.uint8))

    simulate(1, run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]


def test_other_tables_and_optimizers_are_refused(tmp_path):
    simulate(1, lambda group: trained(group, plan_of(1, 0), "sgd", tmp_path))
    path = latest(tmp_path)
    with pytest.raises(RuntimeError, match=r"expected optimizer .*adam"):
        simulate(1, lambda group: restored(group, plan_of(1, 0), "adam", path))
    wider = Plan.uniform([replace(t, rows=t.rows + 1) for t in WORK.tables], "unique", 1)
    with pytest.raises(RuntimeError, match="they differ in one, few, some, many"):
        simulate(1, lambda group: restored(group, wider, "sgd", path))


def test_a_checkpoint_that_cannot_be_written_names_the_last_one(tmp_path, monkeypatch):
    simulate(1, lambda group: trained(group, plan_of(1, 0), "sgd", tmp_path))

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_saver.save", full)
    with pytest.raises(RuntimeError, match=r"No space left on device.* last complete checkpoint is .*step-000000003"):
        simulate(1, lambda group: trained(group, plan_of(1, 0), "sgd", tmp_path, steps=4))
    assert latest(tmp_path) == tmp_path / "step-000000003"


def _save_forever(folder: Path, ready) -> None:
    def run(group):
        embedding = ShardedEmbedding(plan_of(1, 0), group, backend="cpu")
        for step in range(10_000):
            for team in embedding.teams:
                team.strategy.store.values.fill_(step)
            save(folder, embedding, step, torch.tensor([step % 251], dtype=torch.uint8))
            ready.set()

    simulate(1, run)


def test_a_kill_at_any_moment_leaves_the_last_complete_one(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    for attempt in range(3):
        folder, ready = tmp_path / str(attempt), spawn.Event()
        process = spawn.Process(target=_save_forever, args=(folder, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(0.03 + 0.011 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        path = latest(folder)

        def check(group, path=path):
            embedding = ShardedEmbedding(plan_of(1, 0), group, backend="cpu")
            step, dense = load(path, embedding)
            assert step == json.loads((path / MANIFEST).read_text())["step"]
            assert dense.tolist() == [step % 251]
            for team in embedding.teams:
                assert (team.strategy.store.values == step).all()

        simulate(1, check)
