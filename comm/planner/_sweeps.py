"""Passes over all tables: every table, or every class of equal tables at once, tries its other options."""

import numpy as np
from numba import njit

from ._arrays import Fixed, Floats, Ints, State
from ._load import price
from ._moves import Choice, copy_rest, copy_team, enter, settle, worth
from ._step import step_seconds


@njit(cache=True)
def sweep_classes(
    f: Fixed, s: State, c: Choice, back: State, dense: Floats, overlap: int, cap: float, classes: Ints,
    rng: np.random.Generator,
) -> int:  # fmt: skip
    """All tables of a class [tables] take one option together, each placed anew, if that is better; how many did.

    What one table cannot gain alone: the latency of a team that all its tables leave, or that others join.
    """
    tables, teams, better = len(c.option), len(f.kind), 0
    scale = step_seconds(s, dense, overlap)
    members, load = np.empty(tables, np.int64), np.empty(f.world)
    option, ranks = c.option.copy(), c.ranks.copy()
    before = worth(s, dense, overlap, cap, scale)[0]
    for number in range(classes.max() + 1):
        n = 0
        for t in range(tables):
            if classes[t] == number:
                members[n] = t
                n += 1
        for o in c.tries[members[0]]:
            if o < 0:
                continue
            copy_rest(s, back)
            for k in range(teams):
                copy_team(s, back, k)
            load[:] = c.load
            for i in range(n):
                t = members[i]
                option[t] = c.option[t]
                ranks[t] = c.ranks[t]
                enter(f, s, c, t, -1.0)
            for i in range(n):
                t = members[i]
                c.option[t] = o
                settle(f, s, c, t, cap, 0.0, rng)
                enter(f, s, c, t, 1.0)
            for k in range(teams):
                price(f, s, k)
            cost = worth(s, dense, overlap, cap, scale)[0]
            if cost < before * (1 - 1e-9):
                before = cost
                better += 1
                continue
            copy_rest(back, s)
            for k in range(teams):
                copy_team(back, s, k)
            c.load[:] = load
            for i in range(n):
                t = members[i]
                c.option[t] = option[t]
                c.ranks[t] = ranks[t]
    return better


@njit(cache=True)
def runners_up(
    f: Fixed,
    s: State,
    c: Choice,
    back: State,
    dense: Floats,
    overlap: int,
    cap: float,
    improve: bool,
    exact: bool,
    rng: np.random.Generator,
) -> tuple[Ints, Floats, int]:
    """For every table the best of its other options: option (-1: none) and step.

    A table has its ranks chosen anew under each. With `improve` an option that is better than the table's own is taken
    (`exact`: by the step alone); how many were, comes last.
    """
    tables, world = len(c.option), f.world
    second, seconds, better = np.full(tables, -1), np.full(tables, np.inf), 0
    ranks, load = c.ranks[0].copy(), np.empty(world)
    scale = step_seconds(s, dense, overlap)
    for t in range(tables):
        own, both = c.option[t], worth(s, dense, overlap, cap, scale)
        before = both[1] if exact else both[0]
        ranks[:] = c.ranks[t]
        chosen, chosen_ranks = own, ranks.copy()
        for o in c.tries[t]:
            if o < 0 or o == own:
                continue
            a, b = c.options[own, 0], c.options[o, 0]
            copy_rest(s, back)
            load[:] = c.load
            copy_team(s, back, a)
            copy_team(s, back, b)
            enter(f, s, c, t, -1.0)
            c.option[t] = o
            settle(f, s, c, t, cap, 0.0, rng)
            enter(f, s, c, t, 1.0)
            price(f, s, a)
            price(f, s, b)
            cost, step = worth(s, dense, overlap, cap, scale)
            if step < seconds[t]:
                second[t], seconds[t] = o, step
            cost = step if exact else cost
            if improve and cost < before:
                before, chosen = cost, o
                chosen_ranks[:] = c.ranks[t]
            copy_team(back, s, a)
            copy_team(back, s, b)
            copy_rest(back, s)
            c.load[:] = load
            c.option[t] = own
            c.ranks[t] = ranks
        if chosen != own:
            better += 1
            enter(f, s, c, t, -1.0)
            c.option[t] = chosen
            c.ranks[t] = chosen_ranks
            enter(f, s, c, t, 1.0)
            price(f, s, c.options[own, 0])
            price(f, s, c.options[chosen, 0])
    return second, seconds, better
