"""A cache of row numbers against a dict: what is held, who is evicted, what is locked, on every backend."""

from importlib import import_module

import numba
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kernels
from kernels.cache_probe import new_cache

every_backend = pytest.mark.parametrize("backend", kernels.BACKENDS)
ROWS = 40


def set_of(row, sets):
    """The contract's hash, in whole numbers."""
    word = 2**32
    x = (row ^ row >> 32) % word
    x ^= x >> 16
    x = x * 0x7FEB352D % word
    x ^= x >> 15
    x = x * 0x846CA68B % word
    x ^= x >> 16
    return x * sets // word


class Model:
    """The contract on dicts: slot -> row, stamp and locks."""

    def __init__(self, sets, ways, policy):
        self.sets, self.ways, self.policy = sets, ways, policy
        self.row, self.stamp, self.locks = {}, {}, dict.fromkeys(range(sets * ways), 0)
        self.counted = dict.fromkeys(("hits", "admitted", "evicted", "conflicts"), 0)

    def probe(self, rows, step):
        slot_of = {row: slot for slot, row in self.row.items()}
        for row in set(rows) & slot_of.keys():
            slot = slot_of[row]
            self.stamp[slot] = step if self.policy == "lru" else self.stamp[slot] + 1
            self.counted["hits"] += 1
        return [slot_of.get(row, -1) for row in rows]

    def admit(self, rows, step):
        done, given_out = {}, set()
        for row in sorted(rows):
            first = set_of(row, self.sets) * self.ways
            free = [s for s in range(first, first + self.ways) if not self.locks[s] and s not in given_out]
            slot = min(free, key=lambda s: (s in self.row, self.stamp.get(s, 0), s), default=-1)
            done[row] = (slot, self.row.get(slot, -1))
            self.counted["conflicts" if slot < 0 else "admitted"] += 1
            self.counted["evicted"] += slot in self.row
            if slot >= 0:
                given_out.add(slot)
                self.row[slot], self.stamp[slot] = row, step if self.policy == "lru" else 1
        return [done[row] for row in rows]

    def lock(self, slots, by):
        for slot in slots:
            if slot >= 0:
                self.locks[slot] += by


class Cache:
    """The op, with the model beside it: every result must be the model's."""

    def __init__(self, sets, ways, policy, backend):
        self.model = Model(sets, ways, policy)
        self.tags, self.stamps, self.locks = new_cache(sets, ways)
        self.policy, self.backend, self.step = policy, backend, 0
        self.counted = dict.fromkeys(self.model.counted, 0)

    def batch(self, rows):
        """Probe, admit what misses, lock all; the slots in use, [U]."""
        self.step += 1
        ids = torch.tensor(rows, dtype=torch.int64)
        slots = kernels.cache_probe(ids, self.tags, self.stamps, self.policy, self.step, self.backend)
        assert slots.tolist() == self.model.probe(rows, self.step)
        self.lock(slots, 1)
        held_locked = self.tags.view(-1)[self.locks.view(-1) > 0].tolist()
        misses = ids[slots < 0]
        new = kernels.cache_admit(misses, self.tags, self.stamps, self.locks, self.policy, self.step, self.backend)
        truth = self.model.admit(misses.tolist(), self.step)
        assert list(zip(new.slots.tolist(), new.evicted.tolist(), strict=True)) == truth
        assert not set(new.evicted.tolist()) & set(held_locked), "a locked line was a victim"
        self.lock(new.slots, 1)
        self.counted["hits"] += int((slots >= 0).sum())
        self.counted["admitted"] += int((new.slots >= 0).sum())
        self.counted["evicted"] += int((new.evicted >= 0).sum())
        self.counted["conflicts"] += int(new.conflicts)
        slots[slots < 0] = new.slots
        found = slots >= 0
        assert torch.equal(self.tags.view(-1)[slots[found]], ids[found]), "a slot holds another row"
        return slots

    def lock(self, slots, by):
        (kernels.cache_lock if by > 0 else kernels.cache_unlock)(slots, self.locks, self.backend)
        self.model.lock(slots.tolist(), by)

    def hold_to_model(self):
        tags, locks = self.tags.view(-1).tolist(), self.locks.view(-1).tolist()
        held = {slot: row for slot, row in enumerate(tags) if row >= 0}
        assert held == self.model.row
        assert len(set(held.values())) == len(held), "a row is held twice"
        assert {slot: self.stamps.view(-1)[slot].item() for slot in held} == self.model.stamp
        assert dict(enumerate(locks)) == self.model.locks
        assert self.counted == self.model.counted
        assert self.counted["admitted"] - self.counted["evicted"] == len(held)


class AgainstTheModel(RuleBasedStateMachine):
    """Batches come and go in any order; at most a few are in flight."""

    @initialize(sets=st.integers(1, 3), ways=st.integers(1, 4), policy=st.sampled_from(("lru", "lfu")))
    def begin(self, sets, ways, policy):
        self.cache, self.in_flight = Cache(sets, ways, policy, "cpu"), []

    @rule(rows=st.lists(st.integers(0, ROWS - 1), unique=True, max_size=10))
    def batch(self, rows):
        self.in_flight.append(self.cache.batch(rows))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def release(self, data):
        self.cache.lock(self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1))), -1)

    @invariant()
    def is_the_model(self):
        if hasattr(self, "cache"):
            self.cache.hold_to_model()


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=25, stateful_step_count=20)


@every_backend
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_every_backend_runs_two_batches_in_flight_as_the_model(policy, backend):
    cache, in_flight = Cache(3, 4, policy, backend), []
    random = torch.Generator().manual_seed(1)
    for _ in range(8):
        rows = torch.randperm(ROWS, generator=random)[:7].tolist()  # unsorted
        in_flight.append(cache.batch(rows))
        if len(in_flight) == 2:
            cache.lock(in_flight.pop(0), -1)
        cache.hold_to_model()
    assert all(cache.counted.values()), f"expected some of each, given {cache.counted}"


@every_backend
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_full_locked_set_gives_conflict_misses_and_changes_nothing(policy, backend):
    tags, stamps, locks = new_cache(1, 2)
    rows = torch.tensor([5, 6])
    first = kernels.cache_admit(rows, tags, stamps, locks, policy, 1, backend)
    assert first.slots.tolist() == [0, 1]
    assert first.evicted.tolist() == [-1, -1]
    kernels.cache_lock(first.slots, locks, backend)
    before = tags.clone(), stamps.clone()
    again = kernels.cache_admit(torch.tensor([9, 7, 8]), tags, stamps, locks, policy, 2, backend)
    assert again.slots.tolist() == again.evicted.tolist() == [-1, -1, -1]
    assert again.conflicts == 3
    assert torch.equal(tags, before[0])
    assert torch.equal(stamps, before[1])
    kernels.cache_unlock(first.slots[:1], locks, backend)
    last = kernels.cache_admit(torch.tensor([9, 7, 8]), tags, stamps, locks, policy, 2, backend)
    assert last.slots.tolist() == [-1, 0, -1], "expected the lowest row to take the one free line"
    assert last.evicted.tolist() == [-1, 5, -1]
    kernels.cache_unlock(first.slots[:1], locks, backend)
    assert locks.tolist() == [[-1, 1]]
    assert kernels.cache_admit(torch.tensor([1]), tags, stamps, locks, policy, 3, backend).conflicts == 1


@every_backend
def test_stamps_by_row_make_look_ahead_and_peek_changes_nothing(backend):
    tags, stamps, locks = new_cache(1, 3)
    rows, next_use = torch.tensor([10, 11, 12]), torch.tensor([4, 9, 6])
    kernels.cache_admit(rows, tags, stamps, locks, "lru", -next_use, backend)
    assert kernels.cache_admit(torch.tensor([13]), tags, stamps, locks, "lru", -5, backend).evicted.tolist() == [11]
    before = stamps.clone()
    assert kernels.cache_probe(rows, tags, stamps, "peek", backend=backend).tolist() == [0, -1, 2]
    assert torch.equal(stamps, before)


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(import_module("kernels.cache_probe._cpu"), "PROBE_WORK", 1)
    monkeypatch.setattr(import_module("kernels.cache_probe._cpu"), "INDEX_WORK", 1)
    random = torch.Generator().manual_seed(1)
    rows = torch.randperm(5000, generator=random)[:1500]
    before, states = numba.get_num_threads(), []
    try:
        for threads in (1, 2):
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            state = new_cache(37, 4)
            for step, part in enumerate(rows.split(300)):
                slots = kernels.cache_probe(part, *state[:2], "lru", step, "cpu")
                new = kernels.cache_admit(part[slots < 0], *state, "lru", step, "cpu")
            states.append((*state, slots, *new))
    finally:
        numba.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))


def test_the_hash_spreads_runs_and_strides():
    # Poisson: 100 rows a set with a standard deviation of 10; that of 1000 sets is 10 +- 0.22. Six of them either side.
    truth = import_module("kernels.cache_probe._torch").set_of
    for rows in (torch.arange(100_000), torch.arange(100_000) * 64, torch.arange(100_000) * 2**28):
        loads = torch.bincount(truth(rows, 1000), minlength=1000)
        assert 8.6 < loads.double().std() < 11.4
    assert truth(torch.tensor([0, 5, 2**40 + 3]), 7).tolist() == [set_of(row, 7) for row in (0, 5, 2**40 + 3)]


@pytest.mark.parametrize("op", ["admit", "lock"])
def test_admit_and_lock_are_well_formed_custom_ops(op):
    tags, stamps, locks = new_cache(2, 2)
    rows, step = torch.tensor([1, 2, 3]), torch.tensor([1])
    arguments = {"admit": (rows, tags, stamps, locks, "lru", step), "lock": (torch.tensor([0, -1]), locks, 1)}
    torch.library.opcheck(getattr(torch.ops.kernels, f"cache_{op}"), (*arguments[op], "torch"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows, *state: kernels.cache_probe(rows, *state[:2], "fifo"), "choose one of lru, lfu, peek"),
        (lambda rows, *state: kernels.cache_admit(rows, *state, "peek"), "choose one of lru, lfu$"),
        (lambda rows, *state: kernels.cache_probe(rows.float(), *state[:2], "lru"), "rows: expected .* int32 or int64"),
        (lambda rows, *state: kernels.cache_probe(rows, state[0].int(), state[1], "lru"), "tags: expected .* int64"),
        (lambda rows, *state: kernels.cache_probe(rows, state[0], state[1][:1], "lru"), r"stamps: expected \(2, 3\)"),
        (lambda rows, *state: kernels.cache_admit(rows, *state[:2], state[2][:1], "lru"), r"locks: expected \(2, 3\)"),
        (lambda rows, *state: kernels.cache_admit(rows, *state[:2], state[0], "lru"), "locks: expected .* int32"),
        (lambda rows, *state: kernels.cache_probe(rows, *state[:2], "lru", torch.zeros(3).long()), "step: expected"),
        (lambda rows, *state: kernels.cache_lock(rows.int(), state[2]), "slots: expected .* int64"),
        (lambda rows, *state: new_cache(0, 4), "expected 1 <= sets"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.tensor([1, 2]), *new_cache(2, 3))
