"""Which rows are worth a copy on every rank: FEC's tier boundary, from a counting pass and a calibrated Topology.

A hot row costs its share of an all-reduce, read or not. A cold one costs its exchange, as often as a rank's batch names
it, but only where that is *exposed*: a row that the global batch before does not update can come ahead, a gradient that
the next batch does not read can leave behind (`Timing`), and what travels under compute is free until the window is
full. Popular rows are the ones that neither can hide, which is why tiers and pre-fetching complete each other.

Rows become hot in the order of how many batches touch them, so that every boundary is a prefix; every prefix is priced
with the collectives' own cost and the cheapest one within the memory cap taken. The paper's own rule is not public: the
model is a derivation. Not in it: what a row costs its owner's cores, and an owner that more rows are asked of.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from comm.canonical import chunk_sizes, node_bytes
from comm.cost import Collective, PhaseCost
from comm.strategy import off_diagonal
from comm.topology import Topology

MOST_WEIGHED = 100
"""Boundaries that are priced: all where the count falls, or every few of them."""
TOUCH_BYTES = 4
"""Of the touch count that travels with a hot row's gradient."""


@dataclass(frozen=True)
class RowUse:
    """What a counting pass over `batches` consecutive global batches, each cut over `world` ranks, saw of every row.

    All [rows seen] int64, by falling `touches`, then key. `keys` in one space over all tables; `lookups`; `touches`: in
    how many of the batches * world local batches the row is; `follows`: of these, how many whose global batch before
    has it too (it cannot come ahead); `precedes`: whose global batch after has it too (its gradient cannot wait).
    """

    keys: NDArray[np.int64]
    lookups: NDArray[np.int64]
    touches: NDArray[np.int64]
    follows: NDArray[np.int64]
    precedes: NDArray[np.int64]
    world: int
    batches: int

    def __post_init__(self) -> None:
        if self.batches < 2:
            raise ValueError(f"batches: expected 2 or more, to see what follows what, given {self.batches}")
        if not len(self.keys):
            raise ValueError("keys: expected a counting pass that saw rows, given an empty one")

    @property
    def per_step(self) -> float:
        """What turns a sum of touches into distinct rows of a rank and step."""
        return 1.0 / (self.batches * self.world)

    @property
    def per_transition(self) -> float:
        """The same for `follows` and `precedes`, which a pass sees one batch less often."""
        return 1.0 / ((self.batches - 1) * self.world)


@dataclass(frozen=True)
class Timing:
    """When rows travel: `prefetch` brings safe rows ahead, `deferral` lets gradients wait, and the local batch goes in
    `parts`; `window_s` seconds of a step's compute hide what then travels off the critical path.
    """

    prefetch: bool = False
    deferral: bool = False
    parts: int = 1
    window_s: float = 0.0


@dataclass(frozen=True)
class RowCost:
    """Bytes of one row: `value` on the wire, `key` on the wire, `memory` with its optimizer state, on every rank."""

    value: int
    key: int
    memory: int


@dataclass(frozen=True)
class Priced:
    """A boundary and its price: the first `rows` are hot; `exposed_s` seconds of a step's communication that compute
    does not hide, `hidden_s` what it does; `cold` distinct cold rows of a rank and step.
    """

    rows: int
    exposed_s: float
    hidden_s: float
    cold: float


@dataclass(frozen=True)
class Boundary:
    """The choice: `hot` [n] int64 ascending keys, its price, and that of every boundary weighed."""

    hot: NDArray[np.int64]
    chosen: Priced
    weighed: tuple[Priced, ...]

    def of_tables(self, rows: Sequence[int]) -> list[tuple[int, ...]]:
        """Hot ids of each table, ascending, for tables of `rows` stacked into the key space: `Placement.hot`."""
        starts = np.concatenate([[0], np.cumsum(rows)])
        cuts = np.searchsorted(self.hot, starts)
        return [tuple((self.hot[a:b] - first).tolist()) for a, b, first in zip(cuts, cuts[1:], starts, strict=False)]


def choose(use: RowUse, timing: Timing, topology: Topology, row: RowCost, memory: int | None = None) -> Boundary:
    """The boundary with the least exposed time whose copies fit into `memory` bytes of each rank (None: no cap)."""
    cap = len(use.keys) if memory is None else max(0, memory) // row.memory
    edges = np.flatnonzero(np.diff(use.touches)) + 1  # a prefix ends where the count falls: rows of one count are alike
    edges = edges[edges <= cap]
    few = np.unique(np.linspace(0, max(len(edges) - 1, 0), MOST_WEIGHED).round().astype(int))  # the price is flat there
    prefixes = sorted({0, *(int(edges[i]) for i in few if len(edges)), min(cap, len(use.keys))})
    weighed = tuple(price(use, prefixes, timing, topology, row))
    best = min(weighed, key=lambda priced: (priced.exposed_s, priced.rows))
    return Boundary(np.sort(use.keys[: best.rows]), best, weighed)


def fixed(
    use: RowUse, rows: int, timing: Timing, topology: Topology, row: RowCost, memory: int | None = None
) -> Boundary:
    """The boundary after the first `rows` rows, whatever it costs.

    Raises ValueError for fewer rows than that in the pass, or copies that do not fit into `memory` bytes.
    """
    if not 0 <= rows <= len(use.keys):
        raise ValueError(f"hot rows: expected 0 to the {len(use.keys)} that the counting pass saw, given {rows}")
    if memory is not None and rows * row.memory > memory:
        raise ValueError(
            f"hot rows: expected at most {memory // row.memory} ({row.memory} bytes each with optimizer state, in "
            f"{memory} bytes of a rank), given {rows}: lower the number, or let `choose` find one"
        )
    (priced,) = price(use, [rows], timing, topology, row)
    return Boundary(np.sort(use.keys[:rows]), priced, (priced,))


def price(use: RowUse, prefixes: Sequence[int], timing: Timing, topology: Topology, row: RowCost) -> list[Priced]:
    """Exposed and hidden seconds of a step with each of the `prefixes` hot."""
    cold, rows, grads = (_left(counts) for counts in _travelling(use, timing))
    return [_priced(h, float(cold[h]), float(rows[h]), float(grads[h]), timing, topology, row) for h in prefixes]


def price_of(use: RowUse, hot: NDArray[np.int64], timing: Timing, topology: Topology, row: RowCost) -> Priced:
    """The same with the `hot` keys hot, whether or not the pass saw them: what a hot set from another pass costs."""
    cold = ~np.isin(use.keys, hot)
    asked, rows, grads = (float(counts[cold].sum()) for counts in _travelling(use, timing))
    return _priced(len(hot), asked, rows, grads, timing, topology, row)


def _travelling(use: RowUse, timing: Timing) -> tuple[NDArray[np.floating], ...]:
    """For every row, how often a rank and step asks for it; how often its value, and its gradient, are waited for."""
    touched = use.touches * use.per_step
    late_rows = use.follows * use.per_transition if timing.prefetch else touched
    late_grads = use.precedes * use.per_transition if timing.deferral else touched
    if timing.parts > 1:
        # Of rows that have to come after the update, only those of the first part does a part wait for; of gradients,
        # those of the last. A part of 1 / k of a batch has a row of m look-ups with probability 1 - exp(-m / k).
        mean = use.lookups * use.per_step
        share = np.expm1(-mean / timing.parts) / np.expm1(-mean)
        late_rows, late_grads = late_rows * share, late_grads * share
    return touched, late_rows, late_grads


def _priced(
    hot: int, cold: float, rows: float, grads: float, timing: Timing, topology: Topology, row: RowCost
) -> Priced:
    """Of `cold` rows a rank and step asks for, `rows` and `grads` of them waited for, and `hot` copies."""
    keys = _all_to_all(topology, cold * row.key, calls=2)
    exposed = _all_to_all(topology, rows * row.value) + _all_to_all(topology, grads * row.value)
    exposed += _all_reduce(topology, hot, row.value) if hot else 0.0
    hidden = 0.0
    for late, moved in ((rows, timing.prefetch), (grads, timing.deferral)):
        if moved or timing.parts > 1:
            hidden += _all_to_all(topology, (cold - late) * row.value)
    if timing.prefetch:
        hidden += keys
    else:
        exposed += keys
    over = max(0.0, hidden - timing.window_s)
    return Priced(hot, exposed + over, hidden - over, cold)


def _left(counts: NDArray[np.floating]) -> NDArray[np.floating]:
    """What each prefix, from none to all, leaves of the sum of `counts`."""
    gone = np.concatenate([[0.0], np.cumsum(counts)])
    return np.maximum(gone[-1] - gone, 0.0)


def _all_to_all(topology: Topology, bytes_: float, calls: int = 1) -> float:
    """Seconds of an exchange in which a rank sends `bytes_` to all owners, its own share to itself."""
    pairs = torch.full((topology.world, topology.world), bytes_ / topology.world, dtype=torch.float64)
    return PhaseCost((Collective("all_to_all", off_diagonal(pairs), calls),)).network_seconds(topology)


def _all_reduce(topology: Topology, rows: int, value: int) -> float:
    """Seconds of the canonical all-reduce of `rows` rows and their touch counts, through the nodes if there are
    several.
    """
    world, local, row = topology.world, topology.ranks_per_node, value + TOUCH_BYTES
    if topology.nodes > 1 and local > 1:
        stages = list(node_bytes(rows, row, world, local).values())
    else:
        chunks = torch.tensor(chunk_sizes(rows, world)) * row
        scatter = off_diagonal(chunks[None, :].expand(world, world))
        stages = [scatter, scatter.T]
    return PhaseCost(tuple(Collective("all_to_all", stage, 1) for stage in stages)).network_seconds(topology)
