"""A device cache in front of a slower tier: what a batch needs is brought to lines, changed there, and written back
when its line goes to another row.

One array holds the lines of a set-associative cache and, behind them, overflow lines for rows that found their set full
of rows in use. Kernels get slots of that array, so a cached run and an uncached one are the same arithmetic. A row's
optimizer states travel with it. At any time exactly one copy of a row counts: its line if it has one, else the tier's;
a row that was never written is a function of its number.

What keeps it exact, by the numbers of the published design (FBGEMM, TorchRec):

- I1: a line that a batch in flight uses is locked, from `prefetch` to `release`, and a locked line is never the victim.
- I2, I4: `prefetch` may move a row out of an overflow line that the batch before still uses. So with `exclusive` the
  sparse backward begins after the next batch's prefetch has ended, and `settle` looks its rows up once more. Without
  `exclusive` such rows stay where they are, and neither is needed.
- I5: a batch is brought in once. I6: every lease is released, in evaluation too.
- I7: a victim is written back before its line is filled; slots are handed out when the rows are there.
- I9: whatever reads the tier flushes first.

Source: M. Park et al., "Toward 100TB Recommendation Models with Embedding Offloading", RecSys '24; the invariants from
the code of FBGEMM. Overflow lines, dirty bits and states in the lines are this project's.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from comm.store import Lease
from kernels import Unique, cache_admit, cache_lock, cache_probe, cache_unlock, new_cache, unique_ids

from .cache_counters import CacheCounters
from .cache_policy import KNOWN, POLICIES, Policy, is_in, stamps_of
from .cache_size import check_cache
from .link import Link
from .overflow import Overflow
from .tier import Tier, fetch

WAYS = 32
"""Lines of a set: with fewer, more rows find their set full."""


@dataclass(frozen=True)
class Held(Lease):
    """A lease on `rows` [U], distinct and ascending: their places `at` [U]. Of `asked` [n], row i is rows[inverse[i]];
    no inverse: they are the same. `left` are overflow lines that its rows were moved from.
    """

    asked: Tensor
    rows: Tensor
    inverse: Tensor | None
    at: Tensor
    left: Tensor
    settled: bool = False


@dataclass(frozen=True)
class Moves:
    """What a batch needs moved, in this order: rows out to the tier, rows from line to line, rows in from the tier."""

    out_rows: Tensor
    out_slots: Tensor
    from_slots: Tensor
    to_slots: Tensor
    in_rows: Tensor
    in_slots: Tensor


class CachedStore:
    """See the module's docstring. `tier` holds every row; `lines` [rounded up to whole sets of `ways`] cache some.

    `batch_rows`: the most distinct rows that one batch has on this rank; there are twice as many overflow lines, so
    that two batches in flight always find room. `policy`: `lru`, `lfu`, `static` (only the rows of `hot` get lines) or
    `lookahead` (see `stamps_of`). `exclusive`: see I2 above. `keyed`: a row that was never written is made on the
    device and does not cross the `link`. Without a link nothing is paced.

    `prefetch` and `prepare` may run in one thread while `release` and kernels run in another.
    """

    slots_are_rows = False

    def __init__(
        self,
        tier: Tier,
        lines: int,
        batch_rows: int,
        ways: int = WAYS,
        policy: Policy = "lru",
        link: Link | None = None,
        exclusive: bool = True,
        keyed: bool = False,
        hot: Tensor | None = None,
        backend: str | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
        if (policy == "static") != (hot is not None):
            raise ValueError("hot: expected the rows to keep with policy 'static', and with no other")
        sets = -(-lines // max(ways, 1))
        check_cache(tier, sets, ways, batch_rows, link)
        self.tier, self.link, self.policy, self.backend = tier, link, policy, backend
        self.exclusive, self.keyed = exclusive, keyed
        self.lines, self.batch_rows, self.optimizer = sets * ways, batch_rows, tier.spec.optimizer
        self.hot = hot if hot is None else hot.long().unique()
        self.tags, self.stamps, _ = new_cache(sets, ways)
        self.overflow = Overflow(self.lines, 2 * batch_rows, tier.spec.label)
        total = self.lines + 2 * batch_rows
        self.values = torch.empty(total, tier.spec.dim, dtype=tier.spec.dtype)
        self.states = tier.spec.states_of(self.values)
        self.locks = torch.zeros(1, total, dtype=torch.int32)
        self.dirty = torch.zeros(total, dtype=torch.bool)
        self.counters = CacheCounters()
        self._tick = 0
        self._pending: dict[int, Held] = {}  # prefetched, not yet prepared; by the identity of the tensor of rows
        self._known: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}  # likewise: distinct rows of coming batches
        self._moving = threading.Lock()  # one batch is brought in at a time
        self._places = threading.Lock()  # held while places or locks change, never while rows move

    # -- the Store protocol --------------------------------------------------------------------------------------------

    def prefetch(self, rows: Tensor, coming: Sequence[Tensor] = (), index: Unique | None = None) -> None:
        """Bring `rows` in and lock them for the `prepare` of the same tensor. `coming`: rows of the batches after."""
        if id(rows) in self._pending:
            raise ValueError(f"{self.tier.spec.label!r}: expected each batch prefetched once, given one again")
        self._pending[id(rows)] = self._bring(rows, coming, index, move_locked=self.exclusive)

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """The slots of `rows`; brings them in first, unless `prefetch` had this very tensor."""
        held = self._pending.pop(id(rows), None)
        if held is None:
            begin = time.perf_counter_ns()
            held = self._bring(rows, (), None, move_locked=False)
            self.counters.stall_ns += time.perf_counter_ns() - begin
        return held

    def settle(self, lease: Lease) -> Lease:
        """The lease with its rows' places as they are now: before the sparse backward, after the next batch's
        `prefetch` (I4)."""
        assert isinstance(lease, Held)
        if not self.exclusive or lease.settled:
            return lease
        with self._places:
            at = self._look_up(lease.rows)
            left = lease.at[at != lease.at]
        return replace(lease, slots=_spread(at, lease.inverse), at=at, left=left, settled=True)

    def release(self, lease: Lease, dirty: bool) -> None:
        """Unlock the lines; `dirty`: their rows differ from the tier's now."""
        assert isinstance(lease, Held)
        with self._places:
            if dirty:
                self.dirty[lease.at] = True
            self._unlock(lease.at)
            self._unlock(lease.left)
            self.counters.leases -= 1

    def flush(self) -> None:
        """Write every changed row back to the tier (I9)."""
        with self._moving:
            with self._places:
                slots = torch.nonzero(self.dirty).flatten()
                rows = self._rows_in(slots)
                self.dirty[slots] = False
            self._write_back(rows, slots)

    def read(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Values and states of `rows` [n], copied from the tier after a flush."""
        self.flush()
        values = torch.empty(len(rows), self.tier.spec.dim, dtype=self.tier.spec.dtype)
        found = (values, *self.tier.spec.states_of(values))
        fetch(self.tier, rows, found, torch.arange(len(rows)))
        return found

    def write(self, rows: Tensor, arrays: Sequence[Tensor]) -> None:
        """Set values and states of `rows` [n], distinct, in the tier; every line is emptied first."""
        self.flush()
        self._empty()
        self.tier.write(rows, arrays, torch.arange(len(rows)))

    def clear(self) -> None:
        """Every row as it was before training."""
        self._empty()
        self.dirty.fill_(False)
        self.tier.clear()

    def _empty(self) -> None:
        """No row is in any line; changes that were not flushed are gone."""
        if self.counters.leases:
            raise RuntimeError(f"{self.tier.spec.label!r}: expected no lease out while rows are set from outside")
        self.tags.fill_(-1)
        slots, _ = self.overflow.lines()
        self.overflow.free(slots)

    def stats(self) -> dict[str, int]:
        """See `CacheCounters`."""
        return self.counters.as_dict()

    # -- bringing a batch in -------------------------------------------------------------------------------------------

    def _bring(self, asked: Tensor, coming: Sequence[Tensor], index: Unique | None, move_locked: bool) -> Held:
        with self._moving:
            rows, inverse = (index.rows, index.inverse) if index else self._distinct(asked)
            # what was worked out for the window of the batch before serves this one's
            self._known = {id(later): (later, *self._distinct(later)) for later in coming}
            window = [self._known[id(later)][1] for later in coming]
            with self._places:
                at, moves = self._place(rows, window, move_locked)
                self.counters.leases += 1
            self._move(moves)
            return Held(_spread(at, inverse), asked, rows, inverse, at, at[:0])

    def _distinct(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Distinct rows, ascending, and where each of `rows` is among them (None: they are the same)."""
        known = self._known.get(id(rows))
        if known is not None:
            return known[1:]
        if bool((rows[1:] > rows[:-1]).all()):
            return rows, None
        index = unique_ids(rows, self.backend)
        return index.rows, index.inverse

    def _place(self, rows: Tensor, window: Sequence[Tensor], move_locked: bool) -> tuple[Tensor, Moves]:
        """Give every row a place and lock it there (I1); says what has to move for that. Nothing has moved yet."""
        self._tick += 1
        stamps = self._stamps(rows, window)
        at = cache_probe(rows, self.tags, self.stamps, self._rule, stamps, self.backend)
        self._lock(at)
        missed = torch.nonzero(at < 0).flatten()
        if not len(missed) and not self.overflow.used:
            self._count(rows, missed, 0, 0)
            return at, Moves(*[missed] * 6)
        wanted = rows[missed]
        over = self.overflow.find(wanted)

        places, victims = self._admit(wanted, over, stamps if len(stamps) == 1 else stamps[missed], move_locked)
        moved = torch.nonzero((over >= 0) & (places >= 0)).flatten()
        self._promote(over[moved], places[moved])
        places = torch.where(places < 0, over, places)
        stays = torch.nonzero((over >= 0) & (places == over)).flatten()
        self._lock(over[stays])
        leavers = self._clear_overflow()
        homeless = torch.nonzero(places < 0).flatten()
        places[homeless] = self.overflow.put(wanted[homeless])
        self._lock(places[homeless])
        at[missed] = places

        self._count(rows, missed, len(moved) + len(stays), len(homeless) + len(stays))
        out_rows, out_slots = (torch.cat(pair) for pair in zip(victims, leavers, strict=True))
        loads = torch.nonzero(over < 0).flatten()
        return at, Moves(out_rows, out_slots, over[moved], places[moved], wanted[loads], places[loads])

    def _count(self, rows: Tensor, missed: Tensor, overflow_hits: int, conflicts: int) -> None:
        count = self.counters
        count.batches += 1
        count.rows += len(rows)
        count.hits += len(rows) - len(missed)
        count.overflow_hits += overflow_hits
        count.conflicts += conflicts

    def _admit(
        self, wanted: Tensor, over: Tensor, stamps: Tensor, move_locked: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A line, locked, for each of `wanted` that may have one: its slot, or -1. Also the changed rows that lost
        theirs, and the slots that still hold them.
        """
        may = torch.ones_like(wanted, dtype=torch.bool)
        if self.overflow.used and not move_locked:
            may &= (over < 0) | (self.locks[0, over.clamp(min=0)] == 0)
        if self.hot is not None:
            may &= is_in(wanted, self.hot)
        may = torch.nonzero(may).flatten()
        stamps = stamps if len(stamps) == 1 else stamps[may]
        slots, evicted, _ = cache_admit(
            wanted[may], self.tags, self.stamps, self._line_locks, self._rule, stamps, self.backend
        )
        self._lock(slots)
        losers = torch.nonzero(evicted >= 0).flatten()
        self.counters.evictions += len(losers)
        losers = losers[self.dirty[slots[losers]]]
        out = evicted[losers], slots[losers]
        self.dirty[slots[slots >= 0]] = False
        places = torch.full_like(wanted, -1)
        places[may] = slots
        return places, out

    def _promote(self, old: Tensor, new: Tensor) -> None:
        """Rows of overflow lines `old` have lines `new`: whoever holds the old place holds the new one too."""
        if len(old):
            self.dirty[new], self.dirty[old] = self.dirty[old], False
            self.locks[0, new] += self.locks[0, old]
            self.overflow.vacate(old)

    def _clear_overflow(self) -> tuple[Tensor, Tensor]:
        """Free the overflow lines that no batch uses any more; the changed rows in them, and their slots."""
        slots, rows = self.overflow.lines()
        idle = self.locks[0, slots] == 0
        slots, rows = slots[idle], rows[idle]
        changed = self.dirty[slots]  # never of a vacated line
        self.dirty[slots] = False
        self.overflow.free(slots)
        return rows[changed], slots[changed]

    def _stamps(self, rows: Tensor, window: Sequence[Tensor]) -> Tensor:
        """The stamps of `rows`; rows of the window's last batch, known from now on, are stamped here."""
        if self.policy != "lookahead":
            return torch.full((1,), self._tick)
        if window:
            at = cache_probe(window[-1], self.tags, self.stamps, "peek", backend=self.backend)
            at, stamps = at[at >= 0], self.stamps.view(-1)
            stamps[at] = stamps[at].clamp(min=KNOWN - (self._tick + len(window)))
        return stamps_of(rows, self._tick, window)

    def _move(self, moves: Moves) -> None:
        """Rows out, from line to line, and in: a victim leaves before its line is filled (I7)."""
        if not len(moves.in_rows) + len(moves.out_rows) + len(moves.to_slots):
            return
        fresh = len(moves.in_rows) - int(self.tier.is_written(moves.in_rows).sum())
        loaded = len(moves.in_rows) - (fresh if self.keyed else 0)
        self.counters.first_touches += fresh
        self.counters.bytes_in += loaded * self.tier.row_bytes
        with self._transfer(loaded, len(moves.out_rows)):
            self._write_out(moves.out_rows, moves.out_slots)
            for array in (self.values, *self.states):
                array[moves.to_slots] = array[moves.from_slots]
            fetch(self.tier, moves.in_rows, (self.values, *self.states), moves.in_slots)

    def _write_back(self, rows: Tensor, slots: Tensor) -> None:
        with self._transfer(0, len(rows)):
            self._write_out(rows, slots)

    def _write_out(self, rows: Tensor, slots: Tensor) -> None:
        self.counters.write_backs += len(rows)
        self.counters.bytes_out += len(rows) * self.tier.row_bytes
        if len(rows):
            self.tier.write(rows, (self.values, *self.states), slots)

    def _transfer(self, inward: int, outward: int):  # noqa: ANN202 (a context manager)
        if self.link is None:
            return nullcontext()
        size = self.tier.row_bytes
        return self.link.transfer((inward, inward * size), (outward, outward * size))

    # -- places and locks ----------------------------------------------------------------------------------------------

    @property
    def _rule(self) -> str:
        """What `cache_probe` and `cache_admit` do with stamps."""
        return "lfu" if self.policy == "lfu" else "lru"

    @property
    def _line_locks(self) -> Tensor:
        return self.locks[0, : self.lines].view(self.tags.shape)

    def _look_up(self, rows: Tensor) -> Tensor:
        """Where `rows` are; all of them are somewhere."""
        at = cache_probe(rows, self.tags, self.stamps, "peek", backend=self.backend)
        missed = torch.nonzero(at < 0).flatten()
        at[missed] = self.overflow.find(rows[missed])
        return at

    def _rows_in(self, slots: Tensor) -> Tensor:
        """The row in each of `slots`."""
        return torch.cat([self.tags.view(-1), self.overflow.rows])[slots]

    def _lock(self, slots: Tensor) -> None:
        if len(slots):
            cache_lock(slots, self.locks, self.backend)

    def _unlock(self, slots: Tensor) -> None:
        if len(slots):
            cache_unlock(slots, self.locks, self.backend)


def _spread(at: Tensor, inverse: Tensor | None) -> Tensor:
    return at if inverse is None else at[inverse]
