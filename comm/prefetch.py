"""Rows before their step and gradients after it, where no step can tell: FEC's pre-fetching, and its dual.

While step t computes, the rows of batch t + depth travel that no batch from t to t + depth - 1 asks for on any rank:
nothing changes them in between (*safe*). The others travel on demand, after update t. A gradient of step t leaves the
critical path if batch t + 1 does not read its row: it travels and is applied, with step t's learning rate, under step
t + 1, before the safe rows of batch t + 1 + depth are read. The owner of a row decides both, from the keys of all ranks
(`last_touch.py`), and says so in a bit each (`verdict.py`). Sums and rules are those of the exchange underneath: not a
bit of what is learned changes.

Parts of the exchange as in `microbatch.py`: EARLY, one for every part of the batch, and `late`, one more.

What the order of the store's readers and writers rests on, in one iteration (batch t its own):
  late_apply (t - 1) and everything of t: rows that batch t does not ask for, against rows that it does
  late_apply (t - 1) before early_gather (t + depth): one stream, in the order of the list
  early_gather (t + depth) and apply (t): rows that batch t does not ask for, against rows that it does
  apply (t) before gather (t + 1): iterations one after another
A store is asked for leases by two streams at once; hot copies are touched by the iteration's own batch alone.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .canonical import RowGrads, apply_grads
from .counts import Counts
from .exact_rule import refuse_inexact
from .microbatch import Asking, MicroBatch, Wanted
from .pipeline import Staged
from .schedule import Phase
from .store import Lease
from .strategy import Strategy, off_diagonal
from .travel import Travel
from .verdict import flag_bytes, send_flags
from .when import When
from .wire import row_bytes

EARLY = -1
STREAM = "ahead"
"""What runs beside the step, in this order: keys of later batches, late gradients, early rows."""


class Prefetch(MicroBatch):
    """The exchange of `unique` or `hot_cold` with early rows and late gradients. See the module's docstring."""

    def __init__(self, exchange: Strategy, when: When) -> None:
        super().__init__(exchange, when.parts)
        refuse_inexact(exchange.store.optimizer, when.deferral)
        if not exchange.store.slots_are_rows:
            raise ValueError(
                f"{exchange.label!r}: expected a store whose slots are its rows: rows of several batches are out "
                "at once, and a cache would move some of them between reading and updating"
            )
        if when.deferral and self.exchange.norm:
            raise ValueError(
                f"deferral: {exchange.label!r} cuts tables into columns under a row-wise rule, whose square sums "
                "travel between a row's holders before every update; expected whole rows, or deferral off"
            )
        self.when, self.late = when, when.parts
        self.split = when.prefetch or when.deferral  # else keys run ahead, and everything else on demand
        self.noted = when.last_touch(exchange.shards.rows_of_rank[self.group.rank])

    def key_stages(self) -> tuple[Staged, ...]:
        """Which rows the batch after the last early one asks for, and how long ago others did."""
        dedup, keys = self.key_phases()
        if not self.split:
            return tuple(Staged(self.when.depth + 1, self._beside(phase)) for phase in (dedup, keys))
        touch = self.phase("touch", self.touch, ("asked",), ("ages",), "compute")
        # `asking` and `wanted` are these with the owners' word on when each row travels
        names = {
            f"{self.label}.{old}": f"{self.label}.{new}" for old, new in (("asking", "named"), ("wanted", "asked"))
        }
        phases = (renamed(dedup, names), renamed(keys, names), touch)
        return tuple(Staged(self.when.depth + 1, self._beside(phase)) for phase in phases)

    def early_stages(self) -> tuple[Staged, ...]:
        """The owners' word on when each row and gradient travels; safe rows."""
        if not self.split:
            return ()
        # the next batch must have been noted: that is what says which gradients may be late
        needs = ("asked", "ages", "+1/ages")
        phases = [
            self.phase("judge", self.judge, needs, ("wanted", "flags"), "compute"),
            self.phase("verdict", self.verdict, ("flags", "asked", "named"), ("asking",), "network"),
        ]
        if self.when.prefetch:
            needs = ("early_rows", "wanted", "asking")
            phases += [
                self.phase(
                    "early_gather", self.early_gather, ("wanted", "step"), ("early_rows", "early_lease"), "compute"
                ),
                self.phase("early_send", self.early_send, needs, ("returned.early",), "network"),
                self.phase(
                    "early_room", self.early_room, ("asking", "returned.early"), ("lines", "no_sums"), "compute"
                ),
            ]
        return tuple(Staged(self.when.depth, self._beside(phase)) for phase in phases)

    def late_stages(self) -> tuple[Staged, ...]:
        """Gradients of the batch before whose rows this one does not read."""
        if not self.when.deferral:
            return ()
        sums, leases = f"sums.{self.parts - 1}", self._leases()
        phases = (
            self.phase("late_send", self.late_send, (sums, "asking", "wanted"), ("late_grads",), "network"),
            self.phase("late_reduce", self.late_reduce, ("wanted", "slots", "late_grads"), ("late_sums",), "compute"),
            self.phase("late_apply", self.late_apply, ("late_sums", "lr", "step", *leases), (), "compute"),
        )
        return tuple(Staged(-1, self._beside(phase)) for phase in phases)

    def gather_phase(self) -> Phase:
        """Rows that travel on demand."""
        early = ("early_lease",) if self.when.prefetch else ()
        run, needs = self.gather_rest, ("wanted", "step", *early)
        return self.phase("gather", run, needs, ("rows", "lease", "slots"), "compute")

    def room_phase(self) -> Phase:
        """Room for what this rank gets, hot and early rows in it already."""
        if not self.when.prefetch:
            return super().room_phase()
        needs = ("asking", "lines", "no_sums")
        return self.phase("room", self.room_for_rest, needs, ("buffer", "sums"), "compute")

    def apply_phases(self) -> tuple[Phase, ...]:
        """From `row_grads` to the update of the store; leases go back after the last update of their rows."""
        if self.when.deferral:
            return (self.phase("apply", self.apply, ("row_grads", "lr", "step"), (), "compute"),)
        phases = super().apply_phases()
        if self.when.prefetch:
            phases = *phases, self.phase("release", self.release, ("early_lease",), (), "compute")
        return phases

    def touch(self, asked: Wanted) -> Tensor:
        """Note that a batch asks for these rows, whichever rank it is; how many batches ago another did."""
        return self.noted.touch(asked.rows)

    def judge(self, asked: Wanted, ages: Tensor, ages_of_next: Tensor | None) -> tuple[Wanted, Tensor]:
        """Which rows are safe, and which gradients may be late: of rows that the next batch, the last one noted, does
        not ask for. After the last batch nothing need hurry, and nothing is deferred.
        """
        del ages_of_next  # there only once the next batch is noted
        safe, calm = torch.zeros(2, len(ages), dtype=torch.bool)
        if self.when.prefetch:
            safe = ages > self.when.depth
        if self.when.deferral:
            calm = ~self.noted.in_latest(asked.rows)
        if self.when.window is not None:
            safe, calm = within(self.when.window, asked.rows, safe, calm)
        first, last = asked.first.masked_fill(safe, EARLY), asked.last.masked_fill(calm, self.late)
        return asked._replace(first=first, last=last), torch.stack([safe, calm], dim=1)[:, self._flags()]

    def verdict(self, flags: Tensor, asked: Wanted, named: Asking) -> Asking:
        """What the owners say of this rank's rows."""
        asking = torch.bincount(named.owners, minlength=self.group.size).tolist()
        told = send_flags(self.group, flags, asked.splits, asking, f"{self.label}.verdict")
        both = torch.zeros(len(told), 2, dtype=torch.bool)
        both[:, self._flags()] = told
        first, last = named.first.masked_fill(both[:, 0], EARLY), named.last.masked_fill(both[:, 1], self.late)
        return named._replace(first=first, last=last)

    def early_gather(self, wanted: Wanted, step: int) -> tuple[Tensor, Lease]:
        """Safe rows: no update until their step changes them."""
        lease = self.store.prepare(wanted.rows[wanted.first == EARLY], step)
        return self.store.values[lease.slots], lease

    def early_send(self, rows: Tensor, wanted: Wanted, asking: Asking) -> Tensor:
        """Safe rows to who will ask for them."""
        return self.send(rows, wanted, asking, EARLY, "early_send")

    def gather_rest(self, wanted: Wanted, step: int, early: Lease | None = None) -> tuple[Tensor, Lease, Tensor]:
        """The other rows, as the last update left them; the slots of all."""
        rest = wanted.first != EARLY
        lease = self.store.prepare(wanted.rows[rest], step)
        slots = torch.empty_like(wanted.rows)
        slots[rest] = lease.slots
        if early is not None:
            slots[~rest] = early.slots
        return self.store.values[lease.slots], lease, slots

    def early_room(self, asking: Asking, early: Tensor) -> tuple[Tensor, Tensor]:
        """A line for every distinct row of this rank, early ones in it, and for every one's gradient."""
        lines, sums = self.lines(asking)
        lines[: len(asking.rows)][asking.first == EARLY] = early
        return lines, sums

    def room_for_rest(self, asking: Asking, lines: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The same with hot rows as the last update left them."""
        self.put_hot(lines, asking)
        return lines, sums

    def apply(self, sums: RowGrads, lr: float, step: int) -> None:
        """Update the rows that the next batch reads."""
        apply_grads(self.store, sums, lr, step, self.backend)

    def late_send(self, sums: Tensor, asking: Asking, wanted: Wanted) -> Tensor:
        """Late gradients to the owners of their rows."""
        done = sums[: len(asking.rows)][asking.last == self.late]
        return self.send_grads(done, asking, wanted, self.late, "late_send")

    def late_reduce(self, wanted: Wanted, slots: Tensor, grads: Tensor) -> RowGrads:
        """The owner's sum of them, as of the others."""
        return self.row_sums(wanted, slots, {self.late: grads})

    def late_apply(self, sums: RowGrads, lr: float, step: int, *leases: Lease) -> None:
        """Update their rows as their own step would have; nothing of that step is left to do."""
        apply_grads(self.store, sums, lr, step, self.backend)
        for lease in leases:
            self.store.release(lease, dirty=True)

    def release(self, lease: Lease) -> None:
        """Give the early rows' slots back, updated."""
        self.store.release(lease, dirty=True)

    def sent(self, counts: Counts, travel: Travel | None = None) -> dict[str, Tensor]:
        """Bytes from rank to rank of one batch, whenever they travel, without a `window`. Equal to what a Group
        counts.
        """
        if travel is None:
            raise ValueError("travel: expected when the rows of this batch travel (comm.travel.Travel), given None")
        whole = super().sent(counts, travel)
        if self.split:
            told = [[flag_bytes(n, len(self._flags())) for n in of_owner] for of_owner in counts.unique.T.tolist()]
            whole["verdict"] = off_diagonal(torch.tensor(told))
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        if self.when.prefetch:
            whole["early_send"] = off_diagonal(travel.early.T * row)
        if self.when.deferral:
            whole["late_send"] = off_diagonal(travel.late * row)
        return whole

    def _leases(self) -> tuple[str, ...]:
        return ("early_lease", "lease") if self.when.prefetch else ("lease",)

    def _flags(self) -> list[int]:
        return [i for i, used in enumerate((self.when.prefetch, self.when.deferral)) if used]

    def _beside(self, phase: Phase) -> Phase:
        return replace(phase, stream=STREAM, yields=phase.resource == "network")


def renamed(phase: Phase, names: Mapping[str, str]) -> Phase:
    """`phase` with its values under other `names`."""
    needs, gives = (tuple(names.get(name, name) for name in of) for of in (phase.needs, phase.gives))
    return replace(phase, needs=needs, gives=gives)


def within(window: int, rows: Tensor, safe: Tensor, calm: Tensor) -> tuple[Tensor, Tensor]:
    """At most `window` of an owner's rows early and late together: late gradients first (they leave first), then early
    rows. A row's gradients, one from each rank that has one, are late together or not at all: its sum is one.
    """
    distinct, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    may = torch.zeros(len(distinct), dtype=torch.bool)
    may[inverse[calm]] = True
    fits = may & ((counts * may).cumsum(0) <= window)
    calm = fits[inverse]
    left = window - int(calm.sum())
    return safe & (safe.cumsum(0) <= left), calm
