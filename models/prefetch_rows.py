"""The prefetch pipeline: while a batch trains, the rows of the next one come to the device.

Four stages, each on a stream of its own: copy the batch, exchange keys, bring rows, compute. With the batch of the
iteration called t they work on t + 3, t + 2, t + 1 and t. Values of rows are never stale: what is brought for t + 1 is
brought to lines, and t updates lines. Source: the four-stage pipeline of TorchRec
(`PrefetchTrainPipelineSparseDist`), whose prefetch also runs beside forward and dense work, not beside the sparse
backward.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from comm.canonical import RowOrder
from comm.pipeline import Pipeline, Staged, ahead
from comm.schedule import Phase
from comm.store import Store
from kernels import Bags

from .embedding import ShardedEmbedding, Team
from .step import TrainingStep

ASKED = (".asked", ".arrived", ".wanted")
"""Ends of the names under which a strategy's `gather` gets the rows that it will read."""


def prefetched(step: TrainingStep, lookahead: int = 0) -> Pipeline:
    """The phases of `step` as a Pipeline that brings rows one batch ahead, for every team with a slower tier.

    `lookahead`: how many further batches' rows a store is told of, for its policy; keys travel that much earlier. Teams
    whose rows no exchange names (replicated tables) load on demand.
    """
    embedding = step.embedding
    assert isinstance(embedding, ShardedEmbedding)
    if lookahead < 0:
        raise ValueError(f"lookahead: expected >= 0 batches, given {lookahead}")
    schedule, keys_at = step.schedule(), 2 + lookahead
    phases, fetches = list(schedule.phases), []
    for team in embedding.teams:
        if team.strategy.store.slots_are_rows:
            continue
        gather = next(phase for phase in phases if phase.name == f"{team.label}.gather")
        if gather.needs[0].endswith(ASKED):
            order = f"{team.label}.order"
            known = order if any(order in phase.gives for phase in phases) else gather.needs[0]
            fetches.append(Staged(1, _fetch(team, gather.needs[0], known, lookahead)))
            phases = _with_settled_rows(phases, team, gather)
    staged = ahead(phases, keys_at)
    keys = [s for s in staged if s.ahead]
    copies = [Staged(keys_at + 1, Phase("copy", _copy, ("bags",), ("near_bags",), "host_link", "copy"))]
    # Fetches stand first: with one thread they then run before the forward pass, the order in which most can go wrong.
    order = (*fetches, *(s for s in staged if not s.ahead), *keys, *copies)
    return Pipeline((_of_near_bags(s) for s in order), schedule.inputs)


def _fetch(team: Team, asked: str, known: str, lookahead: int) -> Phase:
    """Bring the rows of a batch in and lock them; gives how many were asked for.

    `known` is the `order` that the strategy sums gradients in, if it has one: on one node it is the index of the same
    rows, and one sort serves both.
    """
    store = team.strategy.store

    def fetch(wanted: Any, own: Any, *coming: Any) -> int:  # `wanted.rows` [n]
        there = [later for later in coming if later is not None]  # the stream ends
        window = [later.last.rows if isinstance(later, RowOrder) else later.rows for later in there]
        store.prefetch(wanted.rows, window, own.last if isinstance(own, RowOrder) and not own.levels else None)
        return len(wanted.rows)

    window = tuple(f"{k:+d}/{known}" for k in range(1, lookahead + 1))
    return Phase(f"{team.label}.fetch", fetch, (asked, known, *window), (f"{team.label}.fetched",), "host_link")


def _with_settled_rows(phases: list[Phase], team: Team, gather: Phase) -> list[Phase]:
    """`gather` after the fetch of its own batch; the sparse backward on the rows' places after the next one's.

    That the next batch's fetch has ended before the first update is invariant I2; that the places are looked up after
    it is I4. Both are in what `settle` needs. A store that does not move rows in use needs neither.
    """
    label, store = team.label, team.strategy.store
    fetched, lease, settled = (f"{label}.{name}" for name in ("fetched", "lease", "settled"))
    forward = {phase.name for phase in team.strategy.forward()}
    users = [p for p in phases if lease in p.needs and p.name not in forward]
    needs = (lease, *_exclusion(store, fetched), users[0].needs[0])
    settle = Phase(f"{label}.settle", lambda lease, *_: store.settle(lease), needs, (settled,), "compute")
    found = []
    for phase in phases:
        if phase is gather:
            found.append(replace(phase, run=_without_last(phase.run), needs=(*phase.needs, fetched)))
        elif phase in users:
            found += [settle] if phase is users[0] else []
            found.append(replace(phase, needs=tuple(settled if name == lease else name for name in phase.needs)))
        else:
            found.append(phase)
    return found


def _exclusion(store: Store, fetched: str) -> tuple[str, ...]:
    """What the sparse backward of a batch waits for: the next batch's fetch, if the store moves rows in use."""
    return (f"+1/{fetched}",) if getattr(store, "exclusive", False) else ()


def _without_last(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: run(*values[:-1])


def _copy(bags: Bags) -> Bags:
    """The batch's own copy of its bags, on the device."""
    weights = None if bags.weights is None else bags.weights.clone()
    return replace(bags, ids=bags.ids.clone(), offsets=bags.offsets.clone(), weights=weights)


def _of_near_bags(staged: Staged) -> Staged:
    phase = staged.phase
    if phase.name == "copy":
        return staged
    return replace(staged, phase=replace(phase, needs=tuple("near_bags" if n == "bags" else n for n in phase.needs)))
