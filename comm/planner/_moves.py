"""The local search over plans: moves of tables between options and ranks, kept or undone.

A table's option is (team, columns, parts); a table on every rank has no ranks. Annealing: a move that costs less is
kept, one that costs more with probability exp(-difference / temperature). What is minimised is the step, plus a little
of what `rough_seconds` says (a maximum over ranks does not fall until the last of its ranks does), plus memory beyond
the cap.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ._arrays import BUFFER, EVERYWHERE, FLAT, Fixed, Floats, Ints, State
from ._load import price, put
from ._step import rough_seconds, step_seconds

ROUGH = 0.05
"""Weight of root mean squares beside maxima."""


class Choice(NamedTuple):
    """A plan in a search: `option` [tables], `ranks` [tables, slots]; `load` [world] seconds that tables put on ranks,
    by which ranks are chosen; `options` [n, 3], `owner` [tables, n] as in `bound.Means`; `tries` [tables, m] the
    options of each table that are tried, likely ones first, then -1.
    """

    option: Ints
    ranks: Ints
    load: Floats
    options: Ints
    owner: Floats
    tries: Ints


@njit(cache=True)
def weigh(f: Fixed, c: Choice, t: int, sign: float) -> None:
    """Add the load of table t to its ranks, or take it off."""
    o = c.option[t]
    k, columns, parts = c.options[o]
    if f.kind[k] == EVERYWHERE:
        return
    hot = f.hot_id[t] % parts
    each = sign * c.owner[t, o] * f.world / columns
    for i in range(columns * parts):
        share = (1.0 - f.hot_share[t]) / parts + (f.hot_share[t] if i % parts == hot else 0.0)
        c.load[c.ranks[t, i]] += each * share


@njit(cache=True)
def enter(f: Fixed, s: State, c: Choice, t: int, sign: float) -> None:
    """Put table t where `c` says, or take it from there."""
    k, columns, parts = c.options[c.option[t]]
    put(f, s, t, k, columns, parts, c.ranks[t], sign)
    weigh(f, c, t, sign)


@njit(cache=True)
def _least(x: Floats, first: int, count: int, out: Ints) -> float:
    """The places of the smallest of x[first : first + count], ascending, ties by place; returns their sum."""
    total, last, at = 0.0, -np.inf, -1
    for i in range(len(out)):
        best, found = np.inf, -1
        for r in range(first, first + count):
            after = x[r] > last or (x[r] == last and r > at)
            if after and x[r] < best:
                best, found = x[r], r
        out[i] = found
        total, last, at = total + best, best, found
    return total


@njit(cache=True)
def settle(f: Fixed, s: State, c: Choice, t: int, cap: float, noise: float, rng: np.random.Generator) -> None:
    """Choose ranks for table t under its option: those of least load, each load blurred by `noise` of the mean.

    Row parts of less than a node stay in one node, of whole nodes take whole nodes; a flat exchange does not mind.
    The part of the most frequent id goes to the least loaded of them.
    """
    k, columns, parts = c.options[c.option[t]]
    if f.kind[k] == EVERYWHERE:
        return
    local, nodes = f.local, f.world // f.local
    scale = noise * (c.load.mean() + 1e-12)
    need = f.rows[t] / parts * f.item[k] * (f.width[k] * (1.0 + f.cells) + f.per_row)
    blurred = np.empty(f.world)
    for r in range(f.world):
        full = s.weights[r] + s.total[BUFFER, r] + need - cap
        blurred[r] = c.load[r] + scale * rng.random() + (1e3 * (1.0 + full / cap) if full > 0 else 0.0)
    each = c.owner[t, c.option[t]] * f.world / columns
    hot = f.hot_id[t] % parts
    for block in range(columns):
        if parts == f.world:
            order = np.arange(f.world)
        elif parts >= local and f.kind[k] != FLAT:
            of_node = blurred.reshape(nodes, local).sum(axis=1)
            chosen = np.sort(np.argsort(of_node, kind="mergesort")[: -(-parts // local)])
            order = np.empty(len(chosen) * local, np.int64)
            for i in range(len(chosen)):
                for j in range(local):
                    order[i * local + j] = chosen[i] * local + j
            order = order[:parts]
        elif f.kind[k] == FLAT or parts == 1:
            order = np.empty(parts, np.int64)
            _least(blurred, 0, f.world, order)
        else:
            best, order, inside = np.inf, np.empty(parts, np.int64), np.empty(parts, np.int64)
            for node in range(nodes):
                total = _least(blurred, node * local, local, inside)
                if total < best:
                    best = total
                    order[:] = inside
        least = 0
        for i in range(parts):
            if blurred[order[i]] < blurred[order[least]]:
                least = i
        for p in range(parts):  # the least loaded one becomes the hot part, the others follow in a ring
            r = order[(least + p - hot) % parts]
            c.ranks[t, block * parts + p] = r
            share = (1.0 - f.hot_share[t]) / parts + (f.hot_share[t] if p == hot else 0.0)
            blurred[r] += each * share


@njit(cache=True)
def beyond(s: State, cap: float) -> float:
    """Bytes over the cap, of all ranks, as a part of the cap."""
    total = 0.0
    for r in range(len(s.weights)):
        total += max(0.0, s.weights[r] + s.total[BUFFER, r] - cap)
    return total / cap


@njit(cache=True)
def worth(s: State, dense: Floats, overlap: int, cap: float, scale: float) -> tuple[float, float]:
    """(what is minimised, the step with its excess of memory); an excess costs at least `scale` seconds."""
    over = beyond(s, cap)
    step = step_seconds(s, dense, overlap) + (scale * (1.0 + over) if over > 0 else 0.0)
    return step + ROUGH * rough_seconds(s), step


@njit(cache=True)
def copy_team(a: State, b: State, k: int) -> None:
    b.stat[k] = a.stat[k]
    b.cover[k] = a.cover[k]
    b.team[k] = a.team[k]
    b.tables[k] = a.tables[k]
    b.work[k] = a.work[k]
    b.net[k] = a.net[k]
    b.rough[k] = a.rough[k]


@njit(cache=True)
def copy_rest(a: State, b: State) -> None:
    b.weights[:] = a.weights
    b.total[:] = a.total


@njit(cache=True)
def rebuild(f: Fixed, s: State, c: Choice) -> None:
    """The state of `c` from nothing: no rounding is left of past moves."""
    s.stat[:] = 0.0
    s.cover[:] = 0.0
    s.team[:] = 0.0
    s.tables[:] = 0
    s.weights[:] = 0.0
    s.work[:] = 0.0
    s.net[:] = 0.0
    s.rough[:] = 0.0
    s.total[:] = 0.0
    c.load[:] = 0.0
    for t in range(len(c.option)):
        enter(f, s, c, t, 1.0)
    for k in range(len(f.kind)):
        price(f, s, k)


@njit(cache=True)
def greedy(f: Fixed, s: State, c: Choice, order: Ints, cap: float, rng: np.random.Generator) -> None:
    """Place every table by its option, in `order`, each where load is least."""
    s.weights[:] = 0.0
    s.total[:] = 0.0
    c.load[:] = 0.0
    for t in order:
        settle(f, s, c, t, cap, 0.0, rng)
        k, columns, parts = c.options[c.option[t]]
        put(f, s, t, k, columns, parts, c.ranks[t], 1.0)  # weights only: nothing is priced yet
        weigh(f, c, t, 1.0)
    rebuild(f, s, c)


@njit(cache=True)
def _slots(c: Choice, t: int) -> int:
    o = c.option[t]
    return c.options[o, 1] * c.options[o, 2]


@njit(cache=True)
def anneal(
    f: Fixed, s: State, c: Choice, back: State, dense: Floats, overlap: int, cap: float, moves: int, hot: float,
    cold: float, rng: np.random.Generator,
) -> float:  # fmt: skip
    """`moves` tries from `c`, at temperatures from `hot` to `cold` (parts of the first step's embedding time).

    Leaves the best plan found in `c` and `s`, and returns its step (with its excess of memory).
    """
    tables, teams = len(c.option), len(f.kind)
    scale = step_seconds(s, dense, overlap)
    now, step = worth(s, dense, overlap, cap, scale)
    least, best_option, best_ranks = step, c.option.copy(), c.ranks.copy()
    wait, since = (0 if tables * c.ranks.shape[1] < 20_000 else moves // 200), 0
    unit = max(scale - dense.sum(), 0.05 * scale)
    load, touched = c.load.copy(), np.zeros(teams, np.bool_)
    old_option, old_ranks = c.option.copy(), c.ranks.copy()
    moved = np.empty(tables, np.int64)
    for move in range(moves):
        temperature = unit * hot * (cold / hot) ** (move / moves)
        n, kind, t = 0, rng.random(), int(rng.random() * tables)
        if kind < 0.45:  # another option
            o = c.tries[t, int(rng.random() ** 2 * c.tries.shape[1])]
            if o < 0 or o == c.option[t]:
                continue
            moved[0], n = t, 1
        elif kind < 0.75:  # other ranks
            if f.kind[c.options[c.option[t], 0]] == EVERYWHERE:
                continue
            o = c.option[t]
            moved[0], n = t, 1
        elif kind < 1.0 - min(0.05, 0.4 / tables):  # swap ranks
            u = int(rng.random() * tables)
            if u == t or _slots(c, t) != _slots(c, u) or c.options[c.option[t], 2] != c.options[c.option[u], 2]:
                continue
            if f.kind[c.options[c.option[t], 0]] == EVERYWHERE or f.kind[c.options[c.option[u], 0]] == EVERYWHERE:
                continue
            o = -1
            moved[0], moved[1], n = t, u, 2
        else:  # dissolve a team: all its tables at once, each to its cheapest option elsewhere
            k = c.options[c.option[t], 0]
            o = -2
            for v in range(tables):
                if c.options[c.option[v], 0] == k:
                    moved[n] = v
                    n += 1
            if n > 64:
                continue
        touched[:] = False
        copy_rest(s, back)
        load[:] = c.load
        for i in range(n):
            v = moved[i]
            old_option[v] = c.option[v]
            old_ranks[v] = c.ranks[v]
            k = c.options[c.option[v], 0]
            if not touched[k]:
                touched[k] = True
                copy_team(s, back, k)
            enter(f, s, c, v, -1.0)
        gone = c.options[old_option[moved[0]], 0]
        for i in range(n):
            v = moved[i]
            if o == -1:
                c.ranks[v] = old_ranks[moved[1 - i]]
            else:
                if o >= 0:
                    c.option[v] = o
                else:
                    cheapest, at = np.inf, -1
                    for other in c.tries[v]:
                        k = c.options[other, 0]
                        if other >= 0 and k != gone and (s.tables[k] > 0 or f.kind[k] == EVERYWHERE):
                            cost = c.owner[v, other] * (0.5 + rng.random())
                            if cost < cheapest:
                                cheapest, at = cost, other
                    if at >= 0:
                        c.option[v] = at
                settle(f, s, c, v, cap, 0.5 if n == 1 else 0.1, rng)
            k = c.options[c.option[v], 0]
            if not touched[k]:
                touched[k] = True
                copy_team(s, back, k)
            enter(f, s, c, v, 1.0)
        for k in range(teams):
            if touched[k]:
                price(f, s, k)
        then, step = worth(s, dense, overlap, cap, scale)
        if then <= now or rng.random() < np.exp((now - then) / temperature):
            now = then
            since += 1
            if step < least and since > wait:
                least, since = step, 0
                best_option[:] = c.option
                best_ranks[:] = c.ranks
        else:
            for k in range(teams):
                if touched[k]:
                    copy_team(back, s, k)
            copy_rest(back, s)
            c.load[:] = load
            for i in range(n):
                c.option[moved[i]] = old_option[moved[i]]
                c.ranks[moved[i]] = old_ranks[moved[i]]
    rebuild(f, s, c)
    now, step = worth(s, dense, overlap, cap, scale)
    if step > least:
        c.option[:] = best_option
        c.ranks[:] = best_ranks
        rebuild(f, s, c)
        now, step = worth(s, dense, overlap, cap, scale)
    return step
