"""`unique` or `hot_cold` in k parts of the local batch, still one update a step: values travel under the compute of
other parts.

A row travels before the first part that reads it, its gradient after the last part that does; the owner applies once,
in canonical order. A rank's gradient of a row is the sum over its parts, in order, of the sums by position within a
part: that grouping, and nothing else, tells the weights from those of one part. Hot rows are read where they are, and
their gradients summed over ranks once, after the last part. Beyond FEC, which exchanges whole batches.

Which part of the exchange a row belongs to is data: `first` and `last`, on both sides. `comm/prefetch.py` moves rows
to one more part before all others, and gradients to one more after.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels import Bags, pooled_lookup, segment_grads, unique_ids
from kernels import Unique as Index

from .canonical import RowGrads, group_by_row
from .counts import Counts
from .hot_cold import HotCold, Tiers, all_cold
from .schedule import Phase, Resource
from .store import Lease
from .strategy import Strategy, off_diagonal
from .travel import Travel
from .unique import Unique
from .unique_node import UniqueNode
from .when import part_sizes
from .wire import Wire, row_bytes, send_values


class Part(NamedTuple):
    """One part of the batch: its bags' `slots` in the buffer of rows, `offsets` and `weights`, table-major; `by_slot`
    where each slot comes.
    """

    slots: Tensor
    offsets: Tensor
    weights: Tensor | None
    by_slot: Index


class Asking(NamedTuple):
    """A rank's distinct rows: cold ones in the order in which they leave (by owner, then by the first part that reads
    them), then hot ones; in this order they lie in its buffer of rows.

    `rows` [cold] the owners' row numbers; `first`, `last` [cold] the parts of the exchange in which a row and its
    gradient travel; `owners` [cold]; `copies` [hot] where hot rows are among this rank's copies.
    """

    rows: Tensor
    first: Tensor
    last: Tensor
    owners: Tensor
    copies: Tensor
    parts: tuple[Part, ...]


class Wanted(NamedTuple):
    """What an owner was asked: `rows` [N], rank by rank; for each its source, and the parts of the exchange in which
    the row and its gradient travel. `splits`: how many by each rank.
    """

    rows: Tensor
    source: Tensor
    first: Tensor
    last: Tensor
    splits: list[int]


class MicroBatch:
    """The exchange of `unique` or `hot_cold` in `parts` parts. See the module's docstring."""

    def __init__(self, exchange: Strategy, parts: int) -> None:
        if not (type(exchange) is Unique or (isinstance(exchange, HotCold) and not isinstance(exchange, UniqueNode))):
            raise ValueError(
                f"microbatch: expected tables under 'unique' or 'hot_cold', given {exchange.label!r}; other strategies "
                "exchange whole batches"
            )
        if parts < 1:
            raise ValueError(f"parts: expected at least 1, given {parts}")
        self.exchange, self.parts = exchange, parts
        self.label, self.group, self.store = exchange.label, exchange.group, exchange.store
        self.backend = exchange.backend
        self.wire: Wire = exchange.wire

    @property
    def hot(self) -> HotCold | None:
        """The exchange, if it has a hot tier."""
        return self.exchange if isinstance(self.exchange, HotCold) else None

    def prologue(self) -> tuple[Phase, ...]:
        """From `bags` to the owners' `rows`: keys travel once for all parts."""
        return *self.key_phases(), self.gather_phase(), self.room_phase()

    def key_phases(self) -> tuple[Phase, ...]:
        """From `bags` to both sides' knowledge of what is wanted."""
        return (
            self.phase("dedup", self.dedup, ("bags",), ("asking",), "compute"),
            self.phase("keys", self.keys, ("asking",), ("wanted",), "network"),
        )

    def gather_phase(self) -> Phase:
        """Rows that others asked for."""
        return self.phase("gather", self.gather, ("wanted", "step"), ("rows", "lease", "slots"), "compute")

    def room_phase(self) -> Phase:
        """Room for what this rank gets, hot rows in it already, and for its sums."""
        return self.phase("room", self.room, ("asking",), ("buffer", "sums"), "compute")

    def send_phase(self, part: int) -> Phase:
        """Rows that `part` is the first to read."""

        def send(rows: Tensor, wanted: Wanted, asking: Asking) -> Tensor:
            chosen = rows if self.parts == 1 else rows[wanted.first[wanted.first >= 0] == part]
            return self.send(chosen, wanted, asking, part, f"send.{part}")

        return self.phase(f"send.{part}", send, ("rows", "wanted", "asking"), (f"returned.{part}",), "network")

    def combine_phase(self, part: int) -> Phase:
        """Put what came into the buffer of rows and pool the part's bags."""
        before = "buffer" if part == 0 else f"buffer.{part - 1}"

        def combine(buffer: Tensor, returned: Tensor, asking: Asking) -> tuple[Tensor, Tensor]:
            buffer[: len(asking.rows)][asking.first == part] = returned
            here = asking.parts[part]
            return buffer, pooled_lookup(buffer, here.slots, here.offsets, here.weights, "sum", backend=self.backend)

        names = (f"buffer.{part}", f"pooled.{part}")
        return self.phase(f"combine.{part}", combine, (before, f"returned.{part}", "asking"), names, "compute")

    def reduce_phase(self, part: int) -> Phase:
        """Add the part's gradients, row by row, to the sums of the parts before."""
        before = "sums" if part == 0 else f"sums.{part - 1}"

        def local_reduce(grad: Tensor, asking: Asking, sums: Tensor) -> tuple[Tensor, Tensor]:
            here = asking.parts[part]
            order, starts = here.by_slot.order, here.by_slot.starts
            of_part = segment_grads(grad, here.offsets, here.weights, "sum", order, starts, self.backend)
            if self.parts == 1:  # it reads every row
                sums = of_part
            else:
                sums[here.by_slot.rows] += of_part
            return sums, sums[: len(asking.rows)][asking.last == part]

        names = (f"sums.{part}", f"done.{part}")
        return self.phase(f"local_reduce.{part}", local_reduce, (f"grad.{part}", "asking", before), names, "compute")

    def grad_phase(self, part: int) -> Phase:
        """Gradients of the rows that no later part reads."""

        def grad_send(done: Tensor, asking: Asking, wanted: Wanted) -> Tensor:
            return self.send_grads(done, asking, wanted, part, f"grad_send.{part}")

        return self.phase(
            f"grad_send.{part}", grad_send, (f"done.{part}", "asking", "wanted"), (f"grads.{part}",), "network"
        )

    def epilogue(self) -> tuple[Phase, ...]:
        """One update of the owner's rows, and of the copies of hot ones."""
        return *self.hot_phases(), self.owner_phase(), *self.apply_phases()

    def apply_phases(self) -> tuple[Phase, ...]:
        """From `row_grads` to the update of the store; gives `lease` back."""
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in self.exchange.apply_phases())

    def owner_phase(self) -> Phase:
        """The owner's sum of what came with the parts of the batch."""
        grads = tuple(f"grads.{part}" for part in range(self.parts))
        return self.phase("owner_reduce", self.owner_reduce, ("wanted", "slots", *grads), ("row_grads",), "compute")

    def hot_phases(self) -> tuple[Phase, ...]:
        """The sum of hot gradients over ranks and the update of the copies; none without a hot tier."""
        hot = self.hot
        if hot is None:
            return ()

        needs = (f"sums.{self.parts - 1}", "asking")
        return hot.hot_phases(lambda sums, asking: (asking.copies, sums[len(asking.rows) :]), needs)

    def dedup(self, bags: Bags) -> Asking:
        """Distinct rows of the whole local batch, and which part reads each first and last."""
        exchange, k = self.exchange, self.parts
        tiers: Tiers = exchange.tiers(bags) if isinstance(exchange, HotCold) else all_cold(exchange.dedup(bags))
        index, cold = tiers.unique, tiers.cold[tiers.buckets.order]
        owners = torch.repeat_interleave(torch.arange(self.group.size), tiers.buckets.counts)
        rows, slots = tiers.buckets.rows, tiers.slots
        if k == 1:
            first = last = torch.zeros_like(owners)
            part = Part(slots, bags.offsets, bags.weights, unique_ids(slots, self.backend))
            return Asking(rows, first, last, owners, tiers.copies, (part,))
        tables = len(exchange.shards.tables)
        part_of_sample = torch.repeat_interleave(
            torch.arange(k), torch.tensor(part_sizes(exchange.shards.batch(bags), k))
        )
        part_of = torch.repeat_interleave(part_of_sample.repeat(tables), bags.lengths)  # [N]
        # a row's positions ascend, all in one table: so do their samples, and their parts
        first = part_of[index.order[index.starts[:-1]]][cold]
        last = part_of[index.order[index.starts[1:] - 1]][cold]
        leave = torch.argsort(owners * k + first, stable=True)
        place = torch.arange(len(index.rows))  # hot ones stay behind the cold ones
        place[leave] = torch.arange(len(leave))
        slots = place[slots]
        parts = tuple(self._part(bags, slots, part_of_sample, part_of, part) for part in range(k))
        return Asking(rows[leave], first[leave], last[leave], owners[leave], tiers.copies, parts)

    def keys(self, asking: Asking) -> Wanted:
        """Exchange counts by part, row numbers and, if there are several parts, the last of each row."""
        group, label, k = self.group, f"{self.label}.keys", self.parts
        by_part = torch.bincount(asking.owners * k + asking.first, minlength=group.size * k).view(-1, k)
        counts = group.exchange(by_part, label)  # [source, part]
        send, receive = by_part.sum(1).tolist(), counts.sum(1).tolist()
        rows = group.all_to_all(asking.rows.to(self.exchange.shards.wire_ids), send, receive, label).long()
        source = torch.repeat_interleave(torch.arange(group.size), counts.sum(1))
        first = torch.repeat_interleave(torch.arange(k).repeat(group.size), counts.flatten())
        last = first
        if k > 1:
            last = group.all_to_all(asking.last.to(torch.uint8), send, receive, label).long()
        return Wanted(rows, source, first, last, receive)

    def gather(self, wanted: Wanted, step: int) -> tuple[Tensor, Lease, Tensor]:
        """The rows that others asked for, and their slots in the store."""
        lease = self.store.prepare(wanted.rows, step)
        return self.store.values[lease.slots], lease, lease.slots

    def room(self, asking: Asking) -> tuple[Tensor, Tensor]:
        """A line for every distinct row of this rank; and, if there are several parts, for every one's gradient."""
        buffer, sums = self.lines(asking)
        self.put_hot(buffer, asking)
        return buffer, sums

    def lines(self, asking: Asking) -> tuple[Tensor, Tensor]:
        """The same, with nothing in them yet."""
        lines, width = len(asking.rows) + len(asking.copies), self.store.values.shape[1]
        sums = self.store.values.new_zeros(lines if self.parts > 1 else 0, width)
        return self.store.values.new_empty(lines, width), sums

    def put_hot(self, buffer: Tensor, asking: Asking) -> None:
        """Put hot rows, as they are now, where they belong in `buffer`."""
        if self.hot:
            buffer[len(asking.rows) :] = self.store.values[self.hot.first_copy + asking.copies]

    def send(self, rows: Tensor, wanted: Wanted, asking: Asking, part: int, name: str) -> Tensor:
        """The owner's `rows` of one part of the exchange to who asked for them."""
        send = torch.bincount(wanted.source[wanted.first == part], minlength=self.group.size).tolist()
        receive = torch.bincount(asking.owners[asking.first == part], minlength=self.group.size).tolist()
        return send_values(self.group, rows, send, receive, f"{self.label}.{name}", self.wire)

    def send_grads(self, grads: Tensor, asking: Asking, wanted: Wanted, part: int, name: str) -> Tensor:
        """Gradients of one part of the exchange to the owners of their rows."""
        send = torch.bincount(asking.owners[asking.last == part], minlength=self.group.size).tolist()
        receive = torch.bincount(wanted.source[wanted.last == part], minlength=self.group.size).tolist()
        return send_values(self.group, grads, send, receive, f"{self.label}.{name}", self.wire)

    def owner_reduce(self, wanted: Wanted, slots: Tensor, *grads: Tensor) -> RowGrads:
        """Every source's gradients in the order of its keys, then summed over ranks in canonical order."""
        return self.row_sums(wanted, slots, dict(enumerate(grads)))

    def row_sums(self, wanted: Wanted, slots: Tensor, grads: dict[int, Tensor]) -> RowGrads:
        """Of the rows whose gradients came with the parts of `grads`: all sources' gradients in the order of their
        keys, summed over ranks in canonical order. `slots` are those of all rows of `wanted`.
        """
        here = torch.isin(wanted.last, torch.tensor(list(grads)))
        last, whole = wanted.last[here], next(iter(grads.values()))
        if len(grads) > 1:
            whole = torch.empty(len(last), self.store.values.shape[1], dtype=whole.dtype)
            for part, arrived in grads.items():
                whole[last == part] = arrived
        offsets = torch.arange(len(whole) + 1)
        return group_by_row(slots[here], wanted.source[here], whole, offsets, None, self.group, True, self.backend)

    def sent(self, counts: Counts, travel: Travel | None = None) -> dict[str, Tensor]:
        """Bytes from rank to rank: those of the exchange but for a count a part and, if several, a byte a key.
        `travel` says in which part each row and gradient travels; without it, parts are counted together, as `send` and
        `grad_send`.
        """
        whole = self.exchange.sent(counts)
        whole["keys"] = whole["keys"] + off_diagonal(8 * (self.parts - 1) + counts.unique * (self.parts > 1))
        if travel is None:
            return whole
        row = row_bytes(self.store.values.shape[1], self.store.values.dtype, self.wire)
        del whole["send"], whole["grad_send"]
        for part in range(self.parts):
            whole[f"send.{part}"] = off_diagonal(travel.first[part].T * row)
            whole[f"grad_send.{part}"] = off_diagonal(travel.last[part] * row)
        return whole

    def phase(
        self, name: str, run: Callable[..., Any], needs: tuple[str, ...], gives: tuple[str, ...], resource: Resource
    ) -> Phase:
        """A phase of this exchange, its names under its label."""
        return Phase(name, run, needs, gives, resource).scoped(self.label, ("lr", "step"))

    def _part(self, bags: Bags, slots: Tensor, part_of_sample: Tensor, part_of: Tensor, part: int) -> Part:
        here = part_of == part
        lengths = bags.lengths[(part_of_sample == part).repeat(len(self.exchange.shards.tables))]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        weights, slots = None if bags.weights is None else bags.weights[here], slots[here]
        return Part(slots, offsets, weights, unique_ids(slots, self.backend))


def in_turn(parts: int) -> Iterator[tuple[str, int]]:
    """The order in which parts move: rows are sent while the part before computes, gradients follow at once."""
    yield "send", 0
    for part in range(parts):
        if part + 1 < parts:
            yield "send", part + 1
        yield "compute", part
        yield "grad", part
