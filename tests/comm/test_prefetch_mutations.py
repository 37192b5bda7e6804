"""Faults in the production code, one at a time: each must change what is learned, or be refused."""

import time
from dataclasses import replace

import pytest
import torch

from comm import prefetch
from comm.group import simulate
from comm.hot_cold import HotCold
from comm.last_touch import KeySets, Stamps
from comm.microbatch import MicroBatch
from comm.pipeline import Pipeline
from comm.prefetch import EARLY, Prefetch
from comm.when import When
from models.executor import _Step
from models.pipeline import PipelinedTraining
from models.prefetch_step import PrefetchStep
from models.stores import DeviceStore
from tests.comm.fec_work import RANKS_PER_NODE, Arm, build, frames, run, synchronous, train, training_of
from tests.comm.test_deferral import tables_midway
from tests.comm.test_executor_yield import assert_critical_first
from tests.comm.workload import digest

WORLD = 4


def assert_caught(arm: Arm) -> None:
    """Ranks disagree, or what they learn is not what synchronous training learns."""
    parts = arm.when.parts if arm.when.parts > 1 else 0
    results = simulate(WORLD, lambda group: train(group, arm), RANKS_PER_NODE[WORLD])
    found = {digest(result) for result in results}
    assert found != {synchronous(arm.optimizer, arm.stream, arm.steps, WORLD, parts)}


def test_mutation_safety_looks_at_this_ranks_keys_only(monkeypatch):
    def local(self, asked):
        self.noted.now += 1
        ages = self.noted.now - self.noted.last[asked.rows].long()
        self.noted.last[asked.rows[asked.source == self.group.rank]] = self.noted.now
        return ages

    monkeypatch.setattr(Prefetch, "touch", local)
    assert_caught(Arm(when=When(deferral=False)))


@pytest.mark.parametrize("noted", [Stamps, KeySets])
def test_mutation_stamps_off_by_one(monkeypatch, noted):
    touch = noted.touch
    monkeypatch.setattr(noted, "touch", lambda self, rows: touch(self, rows) + 1)
    assert_caught(Arm(when=When(deferral=False, noted="stamps" if noted is Stamps else "key_sets")))


def test_mutation_what_may_be_late_is_asked_of_the_wrong_batch(monkeypatch):
    monkeypatch.setattr(Stamps, "in_latest", lambda self, rows: self.last[rows] == self.now - 1)
    assert_caught(Arm(when=When(prefetch=False)))


def test_mutation_everything_travels_early(monkeypatch):
    touch = Stamps.touch
    monkeypatch.setattr(Stamps, "touch", lambda self, rows: touch(self, rows) + 1000)
    assert_caught(Arm(when=When(deferral=False)))


def test_mutation_one_batch_less_is_looked_at_than_rows_are_ahead(monkeypatch):
    monkeypatch.setattr(Stamps, "__init__", lambda self, rows, depth: _shallow(self, rows, depth))
    monkeypatch.setattr(Stamps, "touch", _kept_one_longer)
    assert_caught(Arm(when=When(depth=2, deferral=False)))


def _shallow(self, rows, depth):
    self.last, self.now, self.depth = torch.zeros(rows, dtype=torch.int32), depth, depth


def _kept_one_longer(self, rows):
    self.now += 1
    ages = self.now - self.last[rows].long()
    self.last[rows] = self.now
    return ages.masked_fill(ages == self.depth, self.depth + 1)


def test_mutation_late_gradients_are_applied_after_early_rows_are_read(monkeypatch):
    # at this place they run once early rows are sent; nothing but the order of the list says so
    late, early = Prefetch.late_stages, Prefetch.early_stages
    monkeypatch.setattr(Prefetch, "late_stages", lambda self: ())
    monkeypatch.setattr(Prefetch, "early_stages", lambda self: (*early(self), *late(self)))
    assert_caught(Arm(when=When()))


def test_mutation_late_gradients_take_the_rate_of_the_next_step(monkeypatch):
    apply = Prefetch.late_apply

    def of_next_step(self, sums, lr, step, *leases):
        apply(self, sums, 0.25 / (1 + (step + 1) % 3), step, *leases)

    monkeypatch.setattr(Prefetch, "late_apply", of_next_step)
    assert_caught(Arm(when=When()))


def test_mutation_late_gradients_count_as_the_next_step_of_adam(monkeypatch):
    apply = Prefetch.late_apply
    monkeypatch.setattr(
        Prefetch, "late_apply", lambda self, sums, lr, step, *leases: apply(self, sums, lr, step + 1, *leases)
    )
    assert_caught(Arm(when=When(), optimizer="adam"))


def test_mutation_a_flush_that_does_nothing(monkeypatch):
    monkeypatch.setattr(PipelinedTraining, "flush", lambda self: None)
    with pytest.raises(AssertionError, match="differ"):
        tables_midway(Arm(when=When()), WORLD)


def test_mutation_what_ran_is_forgotten_so_that_it_runs_twice(monkeypatch):
    class Forgetful(set):
        def add(self, place):
            pass

    feed = PipelinedTraining._feed

    def forgetting(self, frame):
        feed(self, frame)
        self._done[self._fed - 1] = Forgetful()

    monkeypatch.setattr(PipelinedTraining, "_feed", forgetting)
    with pytest.raises((AssertionError, RuntimeError), match=r"differ|leases"):
        tables_midway(Arm(when=When()), WORLD)


def test_mutation_early_rows_fetched_twice(monkeypatch):
    gather = Prefetch.early_gather

    def twice(self, wanted, step):
        gather(self, wanted, step)
        return gather(self, wanted, step)

    monkeypatch.setattr(Prefetch, "early_gather", twice)
    with pytest.raises(RuntimeError, match=r"AssertionError: \{'leases': "):
        run(Arm(when=When()), 2)


class Guarded(DeviceStore):
    """Notes which rows are out, so that an update of any other row can be caught."""

    def __init__(self, values, optimizer):
        super().__init__(values, optimizer)
        self.out = torch.zeros(len(values), dtype=torch.int64)

    def prepare(self, rows, step):
        self.out[rows.unique()] += 1
        return super().prepare(rows, step)

    def release(self, lease, dirty):
        self.out[lease.slots.unique()] -= 1
        super().release(lease, dirty)


def guarded_updates(arm: Arm, world: int, monkeypatch) -> None:
    """Train on stores that know which rows are leased; no row may be updated that is not."""
    apply_grads = prefetch.apply_grads

    def guarded(store, sums, *rest):
        assert (store.out[sums.rows] > 0).all(), "a row was updated without a lease"
        apply_grads(store, sums, *rest)

    monkeypatch.setattr(prefetch, "apply_grads", guarded)

    def trains(group):
        model, optimizer = build(arm, group, store=lambda spec: Guarded(spec.whole(), spec.optimizer))
        list(training_of(arm, group, model, optimizer).steps(frames(arm, group)))
        assert all((team.strategy.store.out == 0).all() for team in model.embedding.teams)

    simulate(world, trains)


@pytest.mark.parametrize("when", [When(), When(parts=2, depth=2)])
def test_rows_are_leased_from_their_reading_to_their_update(monkeypatch, when):
    guarded_updates(Arm("hot_cold", when), 2, monkeypatch)


def test_mutation_a_lease_given_back_when_its_rows_have_left(monkeypatch):
    send, gather = Prefetch.early_gather, Prefetch.gather_rest

    def early(self, wanted, step):
        rows, lease = send(self, wanted, step)
        self.store.out[lease.slots.unique()] -= 1
        return rows, lease

    monkeypatch.setattr(Prefetch, "early_gather", early)
    assert gather is Prefetch.gather_rest
    with pytest.raises(RuntimeError, match="a row was updated without a lease"):
        guarded_updates(Arm(when=When()), 2, monkeypatch)


def test_mutation_hot_rows_read_before_their_update(monkeypatch):
    before = {}

    def stale(self, buffer, asking):
        copies = self.store.values[self.hot.first_copy :]
        old = before.get(self.group.rank, copies.clone())
        before[self.group.rank] = copies.clone()
        buffer[len(asking.rows) :] = old[asking.copies]

    monkeypatch.setattr(MicroBatch, "put_hot", stale)
    assert_caught(Arm("hot_cold", When()))


def test_mutation_one_ranks_hot_copies_not_updated(monkeypatch):
    apply = HotCold.hot_apply

    def on_all_but_one(self, hot_grads, lr, step):
        if self.group.rank != 1:
            apply(self, hot_grads, lr, step)

    monkeypatch.setattr(HotCold, "hot_apply", on_all_but_one)
    with pytest.raises(RuntimeError, match="copies differ"):
        run(Arm("hot_cold", When()), WORLD)


def test_mutation_the_window_cuts_a_row_between_ranks(monkeypatch):
    def by_place(window, rows, safe, calm):
        calm = calm & (calm.cumsum(0) <= window)
        return safe & (safe.cumsum(0) <= window), calm

    monkeypatch.setattr("comm.prefetch.within", by_place)
    assert_caught(Arm(when=When(window=6), steps=24))


def test_mutation_parts_of_the_owner_and_the_asker_differ(monkeypatch):
    verdict = Prefetch.verdict

    def ignored(self, flags, asked, named):
        asking = verdict(self, flags, asked, named)
        return asking._replace(first=asking.first.masked_fill(asking.first == EARLY, 0))

    monkeypatch.setattr(Prefetch, "verdict", ignored)
    with pytest.raises(RuntimeError, match=r"expected .* entries"):
        run(Arm(when=When()), 2)


def test_mutation_prefetch_queues_ahead_of_the_gradients(monkeypatch):
    monkeypatch.setattr(_Step, "_may_begin", lambda self, phase, alone: self._there.issuperset(phase.needs))
    with pytest.raises(AssertionError):
        assert_critical_first()


def assert_window_opens_late(monkeypatch) -> None:
    """Nothing of other batches is on the network before this iteration's own rows have come, however long they take."""
    gather = Prefetch.gather_rest

    def slow(self, wanted, step, early=None):
        time.sleep(0.02)
        return gather(self, wanted, step, early)

    monkeypatch.setattr(Prefetch, "gather_rest", slow)

    def trains(group):
        arm = Arm("hot_cold", When(), overlap=True, steps=5)
        training = training_of(arm, group, *build(arm, group))
        return [training.events for _ in training.steps(frames(arm, group))][:3]  # the last ones end in a flush

    for of_rank in simulate(2, trains):
        for events in of_rank:
            (own,) = (event for event in events if event.phase.endswith(".send.0"))
            beside = [event for event in events if (event.stream, event.resource) == ("ahead", "network")]
            assert beside
            assert all(event.start >= own.end for event in beside)


def test_the_window_opens_when_this_steps_rows_have_come(monkeypatch):
    assert_window_opens_late(monkeypatch)


def test_mutation_the_window_opens_at_once(monkeypatch):
    pipeline = PrefetchStep.pipeline

    def open_at_once(self):
        made = pipeline(self)
        opened = (replace(s, phase=replace(s.phase, needs=())) if s.phase.name == "window" else s for s in made.staged)
        return Pipeline(opened, made.inputs)

    monkeypatch.setattr(PrefetchStep, "pipeline", open_at_once)
    with pytest.raises(AssertionError):
        assert_window_opens_late(monkeypatch)
