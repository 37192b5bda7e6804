"""`unique` in k parts of the local batch, still one update a step: values travel under the compute of other parts.

A row travels before the first part that reads it, its gradient after the last part that does; the owner applies once,
in canonical order. A rank's gradient of a row is the sum over its parts, in order, of the sums by position within a
part: that grouping, and nothing else, tells the weights from those of one part. Beyond FEC, which exchanges whole
batches.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels import Bags, pooled_lookup, segment_grads, unique_ids

from .canonical import RowGrads, group_by_row
from .counts import Counts
from .schedule import Phase, Resource
from .store import Lease
from .strategy import off_diagonal
from .unique import Unique
from .wire import Wire, send_values


class Part(NamedTuple):
    """One part of the batch: its bags' `slots` in the buffer of rows, `offsets` and `weights`, table-major."""

    slots: Tensor
    offsets: Tensor
    weights: Tensor | None


class Asking(NamedTuple):
    """A rank's distinct rows in the order in which they leave: by owner, then by the first part that reads them.

    `first`, `last` [rows] the parts that read a row first and last; `splits` [owners, parts] rows by owner and first
    part; `owners` [rows].
    """

    rows: Tensor
    first: Tensor
    last: Tensor
    splits: Tensor
    owners: Tensor
    parts: tuple[Part, ...]


class Wanted(NamedTuple):
    """What an owner was asked: `rows` [N], rank by rank; for each its source, first and last part."""

    rows: Tensor
    source: Tensor
    first: Tensor
    last: Tensor


class MicroBatch:
    """The exchange of `unique` in `parts` parts. See the module's docstring."""

    def __init__(self, exchange: Unique, parts: int) -> None:
        if type(exchange) is not Unique:
            raise ValueError(
                f"microbatch: expected tables under 'unique', given {exchange.label!r}; other strategies exchange "
                "whole batches"
            )
        self.exchange, self.parts = exchange, parts
        self.label, self.group, self.store = exchange.label, exchange.group, exchange.store
        self.backend = exchange.backend
        self.wire: Wire = exchange.wire

    def prologue(self) -> tuple[Phase, ...]:
        """From `bags` to the owners' `rows`: keys travel once for all parts."""
        phases = (
            Phase("dedup", self.dedup, ("bags",), ("asking",), "compute"),
            Phase("keys", self.keys, ("asking",), ("wanted",), "network"),
            Phase("gather", self.gather, ("wanted", "asking", "step"), ("rows", "lease", "buffer", "sums"), "compute"),
        )
        return tuple(phase.scoped(self.label, ("step",)) for phase in phases)

    def send_phase(self, part: int) -> Phase:
        """Rows that `part` is the first to read."""

        def send(rows: Tensor, wanted: Wanted, asking: Asking) -> Tensor:
            chosen = rows[wanted.first == part]
            splits = self._by_source(wanted, wanted.first == part)
            receive = asking.splits[:, part].tolist()
            return send_values(self.group, chosen, splits, receive, f"{self.label}.send", self.wire)

        return self._phase(f"send.{part}", send, ("rows", "wanted", "asking"), (f"returned.{part}",), "network")

    def combine_phase(self, part: int) -> Phase:
        """Put what came into the buffer of rows and pool the part's bags."""
        before = "buffer" if part == 0 else f"buffer.{part - 1}"

        def combine(buffer: Tensor, returned: Tensor, asking: Asking) -> tuple[Tensor, Tensor]:
            buffer[asking.first == part] = returned
            here = asking.parts[part]
            return buffer, pooled_lookup(buffer, here.slots, here.offsets, here.weights, "sum", backend=self.backend)

        names = (f"buffer.{part}", f"pooled.{part}")
        return self._phase(f"combine.{part}", combine, (before, f"returned.{part}", "asking"), names, "compute")

    def reduce_phase(self, part: int) -> Phase:
        """Add the part's gradients, row by row, to the sums of the parts before."""
        before = "sums" if part == 0 else f"sums.{part - 1}"

        def local_reduce(grad: Tensor, asking: Asking, sums: Tensor) -> tuple[Tensor, Tensor]:
            here = asking.parts[part]
            index = unique_ids(here.slots, self.backend)
            sums[index.rows] += segment_grads(
                grad, here.offsets, here.weights, "sum", index.order, index.starts, self.backend
            )
            return sums, sums[asking.last == part]

        names = (f"sums.{part}", f"done.{part}")
        return self._phase(f"local_reduce.{part}", local_reduce, (f"grad.{part}", "asking", before), names, "compute")

    def grad_phase(self, part: int) -> Phase:
        """Gradients of the rows that no later part reads."""

        def grad_send(done: Tensor, asking: Asking, wanted: Wanted) -> Tensor:
            send = torch.bincount(asking.owners[asking.last == part], minlength=self.group.size).tolist()
            receive = self._by_source(wanted, wanted.last == part)
            return send_values(self.group, done, send, receive, f"{self.label}.grad_send", self.wire)

        return self._phase(
            f"grad_send.{part}", grad_send, (f"done.{part}", "asking", "wanted"), (f"grads.{part}",), "network"
        )

    def epilogue(self) -> tuple[Phase, ...]:
        """One update of the owner's rows."""
        grads = tuple(f"grads.{part}" for part in range(self.parts))
        phases = (
            Phase("owner_reduce", self.owner_reduce, ("wanted", "lease", *grads), ("row_grads",), "compute"),
            *self.exchange.apply_phases(),
        )
        return tuple(phase.scoped(self.label, ("lr", "step")) for phase in phases)

    def dedup(self, bags: Bags) -> Asking:
        """Distinct rows of the whole local batch, and which part reads each first and last."""
        shards, k = self.exchange.shards, self.parts
        distinct = self.exchange.dedup(bags)
        batch = shards.batch(bags)
        part_of_sample = torch.repeat_interleave(torch.arange(k), torch.tensor(part_sizes(batch, k)))
        part_of = torch.repeat_interleave(part_of_sample.repeat(len(shards.tables)), bags.lengths)  # [N]
        index, order = distinct.unique, distinct.buckets.order
        # a row's positions ascend, all in one table: so do their samples, and their parts
        first = part_of[index.order[index.starts[:-1]]][order]
        last = part_of[index.order[index.starts[1:] - 1]][order]
        owners = torch.repeat_interleave(torch.arange(self.group.size), distinct.buckets.counts)
        leave = torch.argsort(owners * k + first, stable=True)
        place = torch.empty_like(leave)
        place[leave] = torch.arange(len(leave))
        slots = place[distinct.slots]
        parts = tuple(self._part(bags, slots, part_of_sample, part_of, part) for part in range(k))
        splits = torch.bincount(owners * k + first, minlength=self.group.size * k).view(-1, k)
        return Asking(distinct.buckets.rows[leave], first[leave], last[leave], splits, owners[leave], parts)

    def keys(self, asking: Asking) -> Wanted:
        """Exchange counts by part, row numbers and last parts."""
        group, label, k = self.group, f"{self.label}.keys", self.parts
        counts = group.exchange(asking.splits, label)  # [source, part]
        send, receive = asking.splits.sum(1).tolist(), counts.sum(1).tolist()
        rows = group.all_to_all(asking.rows.to(self.exchange.shards.wire_ids), send, receive, label)
        last = group.all_to_all(asking.last.to(torch.uint8), send, receive, label)
        source = torch.repeat_interleave(torch.arange(group.size), counts.sum(1))
        first = torch.repeat_interleave(torch.arange(k).repeat(group.size), counts.flatten())
        return Wanted(rows.long(), source, first, last)

    def gather(self, wanted: Wanted, asking: Asking, step: int) -> tuple[Tensor, Lease, Tensor, Tensor]:
        """The rows that others asked for; and room for what this rank gets and for its sums."""
        lease = self.store.prepare(wanted.rows, step)
        rows = self.store.values[lease.slots]
        shape = (len(asking.rows), rows.shape[1])
        return rows, lease, rows.new_zeros(shape), rows.new_zeros(shape)

    def owner_reduce(self, wanted: Wanted, lease: Lease, *grads: Tensor) -> RowGrads:
        """Every source's gradients in the order of its keys, then summed over ranks in canonical order."""
        whole = torch.empty(len(wanted.rows), grads[0].shape[1], dtype=grads[0].dtype)
        for part, arrived in enumerate(grads):
            whole[wanted.last == part] = arrived
        offsets = torch.arange(len(whole) + 1)
        return group_by_row(lease.slots, wanted.source, whole, offsets, None, self.group, True, self.backend)

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes from rank to rank, parts together: those of `unique` but for a count a part and a byte a key."""
        keys = off_diagonal(8 * (self.parts - 1) + counts.unique)
        whole = self.exchange.sent(counts)
        return whole | {"keys": whole["keys"] + keys}

    def _phase(
        self, name: str, run: Callable[..., Any], needs: tuple[str, ...], gives: tuple[str, ...], resource: Resource
    ) -> Phase:
        return Phase(name, run, needs, gives, resource).scoped(self.label)

    def _by_source(self, wanted: Wanted, chosen: Tensor) -> list[int]:
        return torch.bincount(wanted.source[chosen], minlength=self.group.size).tolist()

    def _part(self, bags: Bags, slots: Tensor, part_of_sample: Tensor, part_of: Tensor, part: int) -> Part:
        here = part_of == part
        lengths = bags.lengths[(part_of_sample == part).repeat(len(self.exchange.shards.tables))]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return Part(slots[here], offsets, None if bags.weights is None else bags.weights[here])


def part_sizes(batch: int, parts: int) -> list[int]:
    """`batch` samples in `parts` parts, in order, the first ones taking one more."""
    return [batch // parts + (part < batch % parts) for part in range(parts)]


def in_turn(parts: int) -> Iterator[tuple[str, int]]:
    """The order in which parts move: rows are sent while the part before computes, gradients follow at once."""
    yield "send", 0
    for part in range(parts):
        if part + 1 < parts:
            yield "send", part + 1
        yield "compute", part
        yield "grad", part
