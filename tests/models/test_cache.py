import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernels import Optimizer
from models.cache import CachedStore
from models.cache_size import SmallCache
from models.file_tier import FileTier
from models.host_store import HostStore
from models.host_tier import HostTier
from models.link import Link
from models.tier import StoreSpec

ROWS, DIM, BATCH_ROWS = 40, 3, 12


def initial(rows: torch.Tensor) -> torch.Tensor:
    return rows[:, None] + torch.arange(DIM) / 8.0


SPEC = StoreSpec(
    label="team",
    rows=ROWS,
    dim=DIM,
    dtype=torch.float32,
    optimizer=Optimizer("rowwise_adam"),
    initial=initial,
    whole=lambda: initial(torch.arange(ROWS)),
    table_of=lambda row: f"table of {row}",
)


def cache(lines: int = 8, **options) -> CachedStore:
    options = {"batch_rows": BATCH_ROWS, "ways": 4, "backend": "cpu"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallCache)
        return CachedStore(options.pop("tier", None) or HostTier(SPEC, backend="cpu"), lines, **options)


batches = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=BATCH_ROWS).map(torch.tensor)


class Cache(RuleBasedStateMachine):
    """A store under any order of batches, two in flight as in the pipeline, against a plain array."""

    @initialize(
        lines=st.sampled_from([4, 8, 16, 48]),
        policy=st.sampled_from(["lru", "lfu", "static", "lookahead"]),
        exclusive=st.booleans(),
        keyed=st.booleans(),
        eager=st.booleans(),
    )
    def make(self, lines, policy, exclusive, keyed, eager):
        hot = torch.arange(0, ROWS, 3) if policy == "static" else None
        tier = HostTier(SPEC, eager=eager, backend="cpu")
        self.store = cache(lines, policy=policy, exclusive=exclusive, keyed=keyed, hot=hot, tier=tier)
        values = SPEC.whole()
        self.truth = [values, *SPEC.states_of(values)]
        self.now = self.ahead = None
        self.changes = 0

    def arrays(self):
        return (self.store.values, *self.store.states)

    @rule(rows=batches, coming=st.lists(batches, max_size=2))
    @precondition(lambda self: self.ahead is None)
    def prefetch(self, rows, coming):
        self.store.prefetch(rows, coming)
        self.ahead = rows

    @rule(rows=batches)
    @precondition(lambda self: self.now is None and self.ahead is None)
    def prepare(self, rows):
        self.now = rows, self.store.prepare(rows, 0)

    @rule()
    @precondition(lambda self: self.now is None and self.ahead is not None)
    def prepare_what_was_prefetched(self):
        self.now, self.ahead = (self.ahead, self.store.prepare(self.ahead, 0)), None

    @rule()
    @precondition(lambda self: self.now is not None)
    def look(self):
        rows, lease = self.now
        for array, truth in zip(self.arrays(), self.truth, strict=True):
            assert torch.equal(array[lease.slots], truth[rows])

    @rule(update=st.booleans())
    @precondition(lambda self: self.now is not None)
    def end(self, update):
        rows, lease = self.now
        lease = self.store.settle(lease)
        if update:
            self.changes += 1
            for array, truth in zip(self.arrays(), self.truth, strict=True):
                truth[rows] += self.changes
                array[lease.slots.unique()] += self.changes
        self.store.release(lease, dirty=update)
        self.now = None

    @rule()
    @precondition(lambda self: self.now is None)
    def flush(self):
        self.store.flush()
        assert not self.store.dirty.any()

    @rule(rows=batches)
    @precondition(lambda self: self.now is None)
    def read(self, rows):
        for array, truth in zip(self.store.read(rows), self.truth, strict=True):
            assert torch.equal(array, truth[rows])

    @rule(rows=batches)
    @precondition(lambda self: self.now is None and self.ahead is None)
    def write(self, rows):
        rows = rows.unique()
        for truth in self.truth:
            truth[rows] -= 1
        self.store.write(rows, [truth[rows] for truth in self.truth])

    @invariant()
    def leases_and_locks_agree(self):
        if hasattr(self, "store"):
            out = sum(lease is not None for lease in (self.now, self.ahead))
            assert self.store.stats()["leases"] == out
            assert int(self.store.locks.min()) >= 0
            assert out or not self.store.locks.any()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_thousand_evaluation_steps_leak_no_lock():
    store = cache(8, exclusive=True)
    for step in range(1000):
        rows = torch.randint(0, ROWS, (9,), generator=torch.Generator().manual_seed(step))
        store.release(store.prepare(rows, 0), dirty=False)
    assert not store.locks.any()
    assert store.stats()["leases"] == 0
    assert store.stats()["write_backs"] == 0  # nothing changed


def test_a_batch_is_prefetched_once():
    store, rows = cache(), torch.arange(4)
    store.prefetch(rows)
    with pytest.raises(ValueError, match="each batch prefetched once"):
        store.prefetch(rows)


@pytest.mark.parametrize("policy", ["lru", "lfu", "lookahead"])
def test_a_locked_line_is_never_the_victim(policy):
    store = cache(8, policy=policy, exclusive=False)
    first = store.prepare(torch.arange(12), 0)
    held = {int(slot): row for row, slot in enumerate(first.slots)}
    for begin in (12, 20, 28):
        store.release(store.prepare(torch.arange(begin, begin + 8), 0), dirty=True)
        assert all(int(store._rows_in(torch.tensor([slot]))) == row for slot, row in held.items())


def test_look_ahead_keeps_what_is_needed_soonest():
    """One set of 4 lines holds 0..3; the next batches need 3, then 2: rows 0 and 1 make room, least recent first."""
    store = cache(4, policy="lookahead")
    window = [torch.tensor([3]), torch.tensor([2])]
    store.release(store.prepare(torch.tensor([0]), 0), False)
    store.prefetch(rows := torch.arange(1, 4), window)
    store.release(store.prepare(rows, 0), False)
    store.prefetch(rows := torch.tensor([9]), [])
    store.release(store.prepare(rows, 0), False)
    assert set(store.tags.flatten().tolist()) == {9, 1, 2, 3}
    store.prefetch(rows := torch.tensor([10]), [])
    store.release(store.prepare(rows, 0), False)
    store.prefetch(rows := torch.tensor([11]), [])
    store.release(store.prepare(rows, 0), False)
    assert {2, 3} <= set(store.tags.flatten().tolist())


def test_counters_of_three_batches():
    link = Link(1e12)
    store = cache(48, keyed=True, link=link)  # 12 sets of 4: no conflict below
    for rows in (torch.arange(6), torch.arange(3, 9)):
        store.release(store.prepare(rows, 0), dirty=True)
    store.flush()
    store.release(store.prepare(torch.arange(2), 0), dirty=False)
    row = (DIM + DIM + 1) * 4
    counted = {name: n for name, n in store.stats().items() if name != "stall_ns"}
    assert counted == {
        "leases": 0, "batches": 3, "rows": 14, "hits": 5, "overflow_hits": 0, "misses": 9, "first_touches": 9,
        "conflicts": 0, "evictions": 0, "write_backs": 9, "bytes_in": 0, "bytes_out": 9 * row,
    }  # fmt: skip


def test_first_touches_cross_the_link_unless_keyed():
    for keyed in (False, True):
        store = cache(48, keyed=keyed)
        store.release(store.prepare(torch.arange(6), 0), dirty=True)
        assert store.stats()["bytes_in"] == (0 if keyed else 6 * 28)
        assert store.stats()["first_touches"] == 6


def test_a_row_that_nobody_changed_takes_no_memory_of_the_host():
    store = cache(4, keyed=True)
    for begin in range(0, ROWS, 4):
        store.release(store.prepare(torch.arange(begin, begin + 4), 0), dirty=begin == 0)
    store.flush()
    assert (torch.nonzero(store.tier.is_written(torch.arange(ROWS))).flatten().tolist(), store.tier.used) == (
        [0, 1, 2, 3],
        4,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": 0}, "expected at least one set"),
        ({"ways": 0}, "expected at least one set"),
        ({"batch_rows": 0}, "expected batch_rows >= 1"),
        ({"policy": "fifo"}, "unknown policy 'fifo'"),
        ({"policy": "static"}, "hot: expected the rows to keep"),
        ({"hot": torch.arange(3)}, "hot: expected the rows to keep"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cache(**options)


def test_a_cache_smaller_than_a_batch_is_warned_of_with_its_cost():
    tier = HostTier(SPEC)
    with pytest.warns(
        SmallCache, match=r"4 lines hold less than a batch of 12 .*8 rows \(224 bytes\) each way .*0.448 ms"
    ):
        CachedStore(tier, 4, BATCH_ROWS, ways=4, link=Link(1e6))


def test_more_rows_than_promised_are_refused():
    store = cache(4, batch_rows=2)
    with pytest.raises(RuntimeError, match="'team': expected at most 4 more rows without a line"):
        store.prepare(torch.arange(30), 0)


def test_rows_are_not_set_under_a_lease():
    store = cache()
    store.prepare(torch.arange(3), 0)
    with pytest.raises(RuntimeError, match="no lease out"):
        store.write(torch.arange(3), store.read(torch.arange(3)))


def test_the_host_alone_takes_its_rows_whole_and_charges_every_access():
    store = HostStore(HostTier(SPEC, eager=True), Link(1e9))
    lease = store.prepare(torch.tensor([3, 3, 5]), 0)
    assert torch.equal(store.values[lease.slots], initial(torch.tensor([3, 3, 5])))
    store.release(store.settle(lease), dirty=True)
    assert store.stats()["bytes_in"] == 3 * DIM * 4 + 2 * 28
    assert store.stats()["bytes_out"] == 2 * 28
    with pytest.raises(ValueError, match="expected an eager tier"):
        HostStore(HostTier(SPEC))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 2.0**-11), (torch.uint8, 0.5 / 255)])
def test_a_narrow_tier_rounds_once_a_trip(dtype, error):
    """A row of numbers 0 to 1/4: float16 rounds relatively, int8 by half a step of its range (`kernels.row_copy`)."""
    tier = HostTier(SPEC, dtype)
    rows = torch.arange(4)
    values = torch.rand(4, DIM) / 4
    tier.write(rows, (values, *SPEC.states_of(values)), rows)
    back = (torch.empty_like(values), *SPEC.states_of(values))
    tier.read(rows, back, rows)
    assert float((back[0] - values).abs().max()) <= error / 4 + 1e-7
    assert tier.row_bytes == (2 * DIM if dtype == torch.float16 else DIM + 8) + 4 * (DIM + 1)


def test_file_and_memory_hold_the_same(tmp_path):
    tiers = HostTier(SPEC, backend="cpu"), FileTier(tmp_path / "rows", SPEC)
    stores = [cache(8, tier=tier) for tier in tiers]
    for step in range(12):
        rows = torch.randint(0, ROWS, (9,), generator=torch.Generator().manual_seed(step)).unique()
        for store in stores:
            lease = store.prepare(rows, 0)
            store.values[lease.slots] += step
            store.states[0][lease.slots] += 1
            store.release(lease, dirty=True)
    for one, other in zip(*(store.read(torch.arange(ROWS)) for store in stores), strict=True):
        assert torch.equal(one, other)
    tiers[1].close()
