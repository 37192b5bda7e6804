"""What no plan can beat: every load spread perfectly, each table by its cheapest option, and the latency of the
exchanges that are used.

A stage takes at least the mean of its loads over ranks, and means add up over tables. So a step takes at least the sum
over tables of their cheapest option, plus what the set of used teams costs without bytes, for the best such set.
Memory is left out, and so is what does not divide. Links with a knee are replaced by a line below them.
"""

from dataclasses import dataclass

import numpy as np

from ._arrays import (
    BUFFER,
    COMBINE,
    EVERYWHERE,
    GATHER_OWN,
    GRAD,
    GRAD_RAIL,
    INDEX,
    KEYS,
    KEYS_RAIL,
    MEET,
    N_ROWS,
    ROUTE,
    SEND,
    Fixed,
    Floats,
    Ints,
    State,
    empty_state,
)  # fmt: skip
from ._load import price, put
from ._step import BOTTOM_BACKWARD, BOTTOM_FORWARD, DENSE_REDUCE, NONE, STEPS, TOP

MOST_TEAMS = 14
"""Of which every subset is tried; the latency of further ones is taken for nothing, which is still a bound."""
ALMOST = 1e-9
"""Ids and blocks of a team that has none to speak of."""
EARLY_NET, EARLY_WORK = (KEYS, KEYS_RAIL), (ROUTE, MEET)


@dataclass(frozen=True)
class Means:
    """Seconds of each table under each option with perfect spread [tables, options], in the stages that add up under an
    overlap, and those of its owners alone (what ranks differ in). `fixed` [teams]: a team without a byte.
    """

    whole: Floats
    owner: Floats
    fixed: Floats


def lower_lines(f: Fixed) -> Fixed:
    """`f` with every link and op a line that is nowhere above it."""
    rate = f.rate.copy()
    for i in range(len(rate)):
        points = int(rate[i, 2])
        if points:
            xs, ys = f.xs[i, :points], f.ys[i, :points]
            start = min(rate[i, 0], ys[0])
            slopes = [(y - start) / x for x, y in zip(xs, ys, strict=True) if x > 0]
            rate[i] = start, 1 / max(min([1 / rate[i, 1], *slopes]), 1e-18), 0
    return f._replace(rate=rate)


def counted(overlap: int) -> tuple[list[int], list[int]]:
    """Network and compute stages that are on every step's longest way under `overlap`, whatever it hides."""
    net = [KEYS, KEYS_RAIL, SEND, GRAD, GRAD_RAIL]
    work = [stage for stage in range(BUFFER) if overlap == NONE or stage not in (GATHER_OWN, INDEX)]
    if overlap == STEPS:
        return [n for n in net if n not in EARLY_NET], [w for w in work if w not in EARLY_WORK]
    return net, work


def means(f: Fixed, options: Ints, allowed: np.ndarray, overlap: int) -> Means:
    """Mean seconds of `options` [n, 3] (team, columns, parts) by table, inf where not `allowed` [tables, n]."""
    lines = lower_lines(f)
    tables, nodes = len(f.ids), f.world // f.local
    teams = len(f.kind)
    shape = (tables, len(options))
    whole, owner = np.full(shape, np.inf), np.full(shape, np.inf)
    net, work = counted(overlap)
    spread = [w for w in work if w not in (ROUTE, COMBINE, GATHER_OWN)]
    state = empty_state(teams, f.world, nodes)
    fixed, idle = np.zeros(teams), np.zeros(teams)
    for k in range(teams):
        state.tables[k] = 1
        state.stat[k] = state.cover[k] = 0.0 if f.kind[k] == EVERYWHERE else ALMOST  # its links are those of bytes
        price(lines, state, k)
        idle[k] = state.net[k, net].sum()
        fixed[k] = idle[k] + state.work[k][work, 0].sum()
        state.tables[k] = 0
        price(lines, state, k)
    seen: dict[tuple, tuple[float, float]] = {}
    for t in range(tables):
        like = (f.ids[t], f.distinct[t], f.node_distinct[t], f.all_distinct[t], f.rows[t])
        for o in np.flatnonzero(allowed[t]):
            k, columns, parts = (int(x) for x in options[o])
            if (like, o) not in seen:
                _spread(lines, state, t, k, columns, parts)
                price(lines, state, k)
                moved = state.net[k, net].sum()
                seconds, owners = (state.work[k][stages].mean(1).sum() for stages in (work, spread))
                if f.kind[k] == EVERYWHERE:  # chunks are whole rows: what a row a rank takes, over the ranks
                    state.team[k, N_ROWS] = f.rows[t] * f.world
                    price(lines, state, k)
                    moved = idle[k] + (state.net[k, net].sum() - idle[k]) / f.world
                seen[like, o] = moved + seconds - fixed[k], max(moved + owners - fixed[k], 0.0)
                state.tables[k] = 0
                price(lines, state, k)
            whole[t, o], owner[t, o] = seen[like, o]
    return Means(whole, owner, fixed)


def _spread(f: Fixed, s: State, t: int, k: int, columns: int, parts: int) -> None:
    """Table t alone in team k, evenly over all ranks and nodes."""
    put(f, s, t, k, columns, 1, np.zeros(columns, np.int64), 1.0)  # the team's own sums
    if f.kind[k] == EVERYWHERE:
        return
    counts = (f.ids[t], parts, f.distinct[t], f.node_distinct[t], f.all_distinct[t])
    for line, count in enumerate(counts):
        s.stat[k, line] = count * columns / f.world
    s.cover[k] = columns * -(-parts // f.local) * f.local / f.world


@dataclass(frozen=True)
class Bound:
    """`seconds` that every plan takes at least, and the `teams` whose use comes to that."""

    seconds: float
    teams: tuple[int, ...]


def bound(m: Means, options: Ints, dense: Floats, overlap: int) -> Bound:
    """The bound over `options` [n, 3]; see the module's docstring."""
    teams = len(m.fixed)
    tables = np.unique(m.whole, axis=0, return_counts=True)
    best = np.full((len(tables[0]), teams), np.inf)
    for k in range(teams):
        mine = options[:, 0] == k
        if mine.any():
            best[:, k] = tables[0][:, mine].min(1)
    usable = np.flatnonzero(np.isfinite(best).any(0))
    costly = sorted(usable, key=lambda k: -m.fixed[k])[:MOST_TEAMS]
    free = [k for k in usable if k not in costly]
    at_least = np.full(len(best), np.inf) if not free else best[:, free].min(1)
    found, used = np.inf, 0
    for subsets in np.array_split(np.arange(1 << len(costly)), max(1, (1 << len(costly)) // 1024)):
        chosen = (subsets[:, None] >> np.arange(len(costly))) & 1 == 1
        of_table = np.where(chosen[:, None, :], best[None, :, costly], np.inf).min(2, initial=np.inf)
        seconds = np.minimum(of_table, at_least) @ tables[1] + chosen @ m.fixed[costly]
        least = int(np.argmin(seconds))
        if seconds[least] < found:
            found, used = float(seconds[least]), int(subsets[least])
    chosen_teams = tuple(int(k) for i, k in enumerate(costly) if used >> i & 1) + tuple(int(k) for k in free)
    if overlap == NONE:
        return Bound(found + float(dense.sum()), chosen_teams)
    alone = float(dense[[BOTTOM_FORWARD, TOP, BOTTOM_BACKWARD, DENSE_REDUCE]].sum())
    return Bound(max(found + float(dense[TOP]), alone), chosen_teams)
