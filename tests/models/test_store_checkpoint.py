import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from comm.group import SimGroup, simulate
from models import checkpoint
from models.cache import CachedStore
from models.executor import Executor
from models.file_tier import FileTier
from models.store_checkpoint import latest, load, save
from tests.models.offload_work import BATCH_ROWS, Run, cached

pytestmark = pytest.mark.filterwarnings("ignore::models.cache_size.SmallCache")
LINES, STEPS = 208, 6


class Saved(Run):
    """A run on one rank that saves and loads itself; `on` is where its rows are, memory if None."""

    def __init__(self, group: SimGroup, on: Path | None = None) -> None:
        def store(spec):
            tier = FileTier(on / f"rows-{group.rank}", spec)
            return CachedStore(tier, LINES, BATCH_ROWS, ways=8, backend="cpu")

        super().__init__(group, store if on else cached(LINES))

    @property
    def stores(self):
        return {team.label: team.strategy.store for team in self.embedding.teams}

    def train(self, first: int, last: int) -> None:
        schedule = self.step.schedule()
        for frame in self.frames(last):
            if frame["step"] >= first:
                Executor().run(schedule, frame)

    def save(self, folder: Path, step: int) -> Path:
        dense = torch.cat([p.detach().flatten() for p in self.parameters]).numpy().tobytes()
        return save(folder, step, self.stores, dense, self.group, "plan")

    def load(self, path: Path) -> int:
        step, dense = load(path, self.stores, self.group, "plan")
        flat = torch.frombuffer(bytearray(dense), dtype=torch.float32)
        sizes = [p.numel() for p in self.parameters]
        for parameter, part in zip(self.parameters, flat.split(sizes), strict=True):
            parameter.data.copy_(part.view_as(parameter))
        return step


def alone(run) -> object:
    return simulate(1, run)[0]


@pytest.fixture(scope="module")
def after() -> list[str]:
    """Checksums of an uninterrupted run after each step."""

    def run(group):
        made, found = Saved(group), []
        for step in range(STEPS + 1):
            made.train(step - 1, step)
            found.append(made.digest())
        return found

    return alone(run)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(world, in_file, tmp_path):
    places = [tmp_path / name if in_file else None for name in ("a", "b")]
    for place in filter(None, places):
        place.mkdir()

    def through(group):
        made = Saved(group, places[0])
        made.train(0, 4)
        made.save(tmp_path, 4)
        made.train(4, STEPS)
        return made.digest()

    def resumed(group):
        made = Saved(group, places[1])
        made.train(0, 2)  # what was there before is gone
        step = made.load(latest(tmp_path))
        made.train(step, STEPS)
        return made.digest()

    assert simulate(world, through) == simulate(world, resumed)


class Killed(BaseException):
    """As if the process had ended here."""


def test_an_end_at_any_moment_leaves_the_last_complete_one(tmp_path, monkeypatch, after):
    """The process ends before the n-th thing that it does to the disk, for every n of two saves."""
    left, saving = [0], [False]
    monkeypatch.setattr("models.manifest.KEPT", 1)  # so that the second save deletes the first

    def mortal(call):
        def run(*args, **options):
            left[0] -= saving[0]
            if saving[0] and left[0] == 0:
                raise Killed
            return call(*args, **options)

        return run

    monkeypatch.setattr(os, "fsync", mortal(os.fsync))
    monkeypatch.setattr(shutil, "rmtree", mortal(shutil.rmtree))
    for name in ("open", "rename", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, mortal(getattr(Path, name)))

    def save_twice(group):
        made = Saved(group)
        for step in (1, 2):
            made.train(step - 1, step)
            saving[0] = True
            try:
                made.save(tmp_path, step)
            except Killed:
                return step
            finally:
                saving[0] = False
        return None

    def loaded(group):
        made = Saved(group)
        step = made.load(latest(tmp_path))
        return step, made.digest() == after[step]

    ended, n, found = 1, 1, []
    while ended is not None:
        for old in tmp_path.glob("step-*"):
            shutil.rmtree(old)
        left[0] = n
        ended = alone(save_twice)
        if ended != 1 or latest(tmp_path):
            step, equal = alone(loaded)
            assert equal
            assert ended is None or step in (ended - 1, ended)
            found.append(step)
        n += 1
    assert sorted(set(found)) == [1, 2]
    assert n > 15


def test_a_full_disk_names_table_and_last_state(tmp_path, monkeypatch, after):
    sync = os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".rows"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    def run(group):
        made = Saved(group)
        made.train(0, 1)
        made.save(tmp_path, 1)
        made.train(1, 2)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"step 2 of 'unique/8/float32' .*'hot'\): No space .*step-000000001$"):
            made.save(tmp_path, 2)
        made.load(latest(tmp_path))
        return made.digest()

    assert alone(run) == after[1]


def test_a_damaged_file_is_refused_and_nothing_is_changed(tmp_path):
    def run(group):
        made = Saved(group)
        made.train(0, 2)
        path = made.save(tmp_path, 2)
        made.train(2, 3)
        before = made.digest()
        rows = path / "rank-0" / "0.rows"
        content = bytearray(rows.read_bytes())
        content[-1] ^= 1
        rows.write_bytes(content)
        with pytest.raises(ValueError, match=r"0\.rows: expected checksum .*: the file is damaged"):
            made.load(path)
        with pytest.raises(ValueError, match="expected world 1 and plan other"):
            load(path, made.stores, group, "other")
        return before == made.digest()

    assert alone(run)


@pytest.mark.parametrize(("before", "then"), [(LINES, None), (None, LINES), (LINES, 64)])
def test_plan_changing_checkpoints_take_cached_rows_too(before, then, tmp_path):
    def run(group, lines, path):
        made = Run(group, lines and cached(lines))
        if path is None:
            made.plain(3)
            path = checkpoint.save(tmp_path, made.embedding, 3, torch.zeros(1, dtype=torch.uint8))
        checkpoint.load(path, made.embedding)
        return path, {name: [a.tolist() for a in arrays] for name, arrays in made.embedding.gather_tables().items()}

    path, saved = alone(lambda group: run(group, before, None))
    assert alone(lambda group: run(group, then, path))[1] == saved


def test_a_file_in_use_is_refused(tmp_path):
    def run(group):
        made = Saved(group, tmp_path)
        with pytest.raises(BlockingIOError, match="rows-0: expected a file that no other process has open"):
            Saved(group, tmp_path)
        made.store.tier.close()
        Saved(group, tmp_path).store.tier.close()

    alone(run)


def test_a_full_disk_under_the_rows_names_the_table(tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run(group):
        made = Saved(group, tmp_path)
        made.train(0, 1)
        monkeypatch.setattr("models.direct_io._write", lambda *_: 0)
        monkeypatch.setattr(os, "pwritev", no_room)
        with pytest.raises(OSError, match=r"table 'hot': no room for its changed rows in .*rows-0 .*1024|512 bytes"):
            made.store.flush()

    alone(run)
