"""Hot rows' gradients in the same all-reduce as the dense part's: one message in place of two.

Sums are taken number by number in the canonical order, so nothing else changes (a ring adds in the order that the size
of its message gives: not bit for bit, as ever). HugeCTR calls this a grouped all-reduce. The bytes of hot rows then
count under `dense_reduce`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from comm.canonical import canonical_all_reduce as flat_all_reduce
from comm.canonical import canonical_sum, node_all_reduce
from comm.copies import HotReduce
from comm.group import Group
from comm.pipeline import Pipeline, Staged
from comm.schedule import Phase, Schedule


def share_bucket(schedule: Schedule, group: Group) -> Schedule:
    """The schedule of a step with its hot rows' gradients in `dense_reduce`.

    Raises ValueError if there are no hot rows; when it runs, if tables and dense parameters differ in dtype.
    """
    shared = _shared([Staged(0, phase) for phase in schedule.phases], group)
    return Schedule(tuple(staged.phase for staged in shared), schedule.inputs)


def share_bucket_of(pipeline: Pipeline, group: Group) -> Pipeline:
    """The same of the pipeline of `PrefetchStep`."""
    return Pipeline(_shared(pipeline.staged, group), pipeline.inputs)


def _shared(staged: Sequence[Staged], group: Group) -> list[Staged]:
    """Everything that leads to the shared sum, and what waits for it, at the place of the last sum of its own."""
    hot = [s.phase for s in staged if isinstance(s.phase.run, HotReduce)]
    if not hot:
        raise ValueError("share_bucket: expected tables under 'hot_cold', given a step without hot rows")
    moved = {phase.name for phase in hot} | {"dense_sum", "dense_reduce"}
    applies = [s.phase for s in staged if s.phase.name.endswith(".hot_apply")]
    moved |= {phase.name for phase in applies}
    dense = [s.phase for s in staged if s.phase.name == "dense_sum"]
    packs, unpacks = zip(*(_around(phase) for phase in hot), strict=True)
    (own,) = (s.phase for s in staged if s.phase.name == "dense_reduce")
    packed, totals = (tuple(f"{phase.name}.{name}" for phase in hot) for name in ("packed", "total"))
    bucket = replace(own, run=_Bucket(group, hot), needs=(*own.needs, *packed), gives=(*own.gives, *totals))
    together = [Staged(0, phase) for phase in (*packs, *dense, bucket, *unpacks, *applies)]
    result = []
    for each in staged:
        if each.phase.name == hot[-1].name:
            result += together
        elif each.phase.name not in moved:
            result.append(each)
    return result


def _around(phase: Phase) -> tuple[Phase, Phase]:
    """What packs for the sum of `phase`, and what unpacks it."""
    exchange = phase.run
    assert isinstance(exchange, HotReduce)
    packed, total = f"{phase.name}.packed", f"{phase.name}.total"
    pack = Phase(f"{phase.name}.pack", exchange.pack, phase.needs, (packed,), "compute")
    return pack, Phase(f"{phase.name}.unpack", exchange.unpack, (total,), phase.gives, "compute")


class _Bucket:
    """The sum over ranks of the loss, and in one message of the dense gradients and what hot rows packed."""

    def __init__(self, group: Group, hot: Sequence[Phase]) -> None:
        tiers = [phase.run.hot for phase in hot if isinstance(phase.run, HotReduce)]
        self.group, self.ring = group, all(tier.ring for tier in tiers)
        self.through_nodes = all(tier.through_nodes for tier in tiers)
        self.label = "dense_reduce"

    def __call__(self, loss: Tensor, *parts: Tensor) -> tuple[float | Tensor, ...]:
        group = self.group
        losses = group.all_gather(loss.double().view(1), [1] * group.size, f"{self.label}.loss")
        given = {part.dtype for part in parts}
        if len(given) > 1:
            raise ValueError(f"share_bucket: expected tables and dense parameters of one dtype, given {given}")
        flat = torch.cat(parts)
        if self.ring:
            total = group.all_reduce(flat, self.label)
        else:
            reduce = node_all_reduce if self.through_nodes else flat_all_reduce
            total = reduce(group, flat, self.label)
        whole = float(canonical_sum(losses.unbind(0), group.ranks_per_node))
        return whole, *torch.split(total, [len(part) for part in parts])
