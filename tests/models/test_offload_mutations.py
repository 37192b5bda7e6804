"""What keeps a cached run exact, taken out piece by piece: each time the tables must come out wrong, or the run stop.

Every schedule is deterministic: one thread, the next batch's fetch first (before the forward pass), or where a test
says so. Caches hold a quarter to three quarters of two batches' rows, so that rows are moved while they are in use.
"""

import pytest

from comm.group import simulate
from comm.pipeline import Pipeline
from models import prefetch_rows
from models.cache import CachedStore
from models.executor import Executor
from models.link import Link
from models.pipeline import PipelinedTraining
from models.tier import fetch
from tests.models.offload_work import Run, cached

STEPS = 16
TWO_BATCHES = 424
pytestmark = pytest.mark.filterwarnings("ignore::models.cache_size.SmallCache")
sizes = pytest.mark.parametrize("size", [0.25, 0.5, 0.75])


@pytest.fixture(scope="module")
def expected() -> str:
    return simulate(1, lambda group: Run(group).plain(STEPS))[0]


def trained(size: float, make_pipeline=None, **options) -> tuple[str, Run]:
    """A checksum of the pipelined run, and the run; it met conflict misses."""

    def run(group):
        made = Run(group, cached(int(size * TWO_BATCHES) // 8 * 8, **options))
        pipeline = make_pipeline(prefetch_rows.prefetched(made.step)) if make_pipeline else None
        return made.pipelined(STEPS, pipeline=pipeline), made

    digest, made = simulate(1, run)[0]
    assert made.store.stats()["conflicts"] > 0
    return digest, made


def fetch_after_settle(pipeline: Pipeline) -> Pipeline:
    """The same phases with the next batch's fetch between the look-up of this one's places and their update."""
    staged = list(pipeline.staged)
    at = next(i for i, s in enumerate(staged) if s.phase.name.endswith(".fetch"))
    moved = staged.pop(at)
    at = next(i for i, s in enumerate(staged) if s.phase.name.endswith(".settle"))
    return Pipeline([*staged[: at + 1], moved, *staged[at + 1 :]], pipeline.inputs)


@sizes
@pytest.mark.parametrize("exclusive", [True, False])
def test_without_locks_rows_in_use_are_evicted(size, exclusive, expected, monkeypatch):
    """I1."""
    monkeypatch.setattr(CachedStore, "_lock", lambda store, slots: None)
    monkeypatch.setattr(CachedStore, "_unlock", lambda store, slots: None)
    assert trained(size, exclusive=exclusive)[0] != expected


@sizes
def test_a_fetch_cannot_come_between_look_up_and_update(size):
    """I2: a schedule that would do it is none."""
    with pytest.raises(RuntimeError, match="gives too late"):
        trained(size, fetch_after_settle)


@sizes
def test_without_the_exclusion_updates_go_to_lines_that_rows_have_left(size, expected, monkeypatch):
    """I2."""
    monkeypatch.setattr(prefetch_rows, "_exclusion", lambda store, fetched: ())
    assert trained(size, fetch_after_settle)[0] != expected


@sizes
def test_rows_in_use_that_stay_need_no_exclusion(size, expected):
    assert trained(size, fetch_after_settle, exclusive=False)[0] == expected


@sizes
def test_without_the_second_look_up_updates_go_to_lines_that_rows_have_left(size, expected, monkeypatch):
    """I4."""
    monkeypatch.setattr(CachedStore, "_look_up", lambda store, rows: store.now_held.at)
    settle = CachedStore.settle

    def remembering(store, lease):
        store.now_held = lease
        return settle(store, lease)

    monkeypatch.setattr(CachedStore, "settle", remembering)
    assert trained(size)[0] != expected


@sizes
def test_without_unlocking_lines_run_out(size, monkeypatch):
    """I6."""
    monkeypatch.setattr(CachedStore, "_unlock", lambda store, slots: None)
    with pytest.raises(RuntimeError, match="more rows without a line"):
        trained(size)


@sizes
def test_a_victim_that_leaves_after_its_line_is_filled_is_lost(size, expected, monkeypatch):
    """I7."""

    def fill_first(store, moves):
        arrays = (store.values, *store.states)
        fetch(store.tier, moves.in_rows, arrays, moves.in_slots)
        for array in arrays:
            array[moves.to_slots] = array[moves.from_slots]
        store._write_out(moves.out_rows, moves.out_slots)

    monkeypatch.setattr(CachedStore, "_move", fill_first)
    assert trained(size)[0] != expected


@sizes
def test_without_write_backs_updates_are_lost(size, expected, monkeypatch):
    monkeypatch.setattr(CachedStore, "_write_out", lambda store, rows, slots: None)
    assert trained(size)[0] != expected


@sizes
def test_without_dirty_bits_updates_are_lost(size, expected, monkeypatch):
    release = CachedStore.release
    monkeypatch.setattr(CachedStore, "release", lambda store, lease, dirty: release(store, lease, False))
    assert trained(size)[0] != expected


@sizes
def test_without_a_flush_the_tier_is_behind(size, expected, monkeypatch):
    """I9."""
    monkeypatch.setattr(CachedStore, "flush", lambda store: None)
    assert trained(size)[0] != expected


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_fetch_ends_before_the_update_where_it_must(exclusive):
    """With threads: over a link so slow that a fetch outlasts a step's forward pass, `settle` waits or does not."""

    def run(group):
        made = Run(group, cached(208, exclusive=exclusive, link=Link(5e4)))
        training = PipelinedTraining(prefetch_rows.prefetched(made.step), Executor(True), group)
        waited = []
        for _ in training.steps(made.frames(6)):
            at = {event.phase.split(".")[-1]: event for event in training.events}
            if "fetch" in at:
                waited.append(at["settle"].start >= at["fetch"].end)
        return waited

    waited = simulate(1, run)[0]
    assert waited == [exclusive] * 3


def test_locks_and_leases_are_given_back():
    store = trained(0.5)[1].store
    assert not store.locks.any()
    assert store.stats()["leases"] == 0
