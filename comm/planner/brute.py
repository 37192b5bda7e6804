"""Every plan of a tiny case, scored: what the search is held to."""

from itertools import combinations, combinations_with_replacement

import numpy as np
from numba import njit

from comm.plan import Plan
from comm.topology import Topology

from ._arrays import BUFFER, EVERYWHERE, Fixed, Floats, Ints, State
from ._load import price, put
from ._step import step_seconds
from .score import OVERLAPS, Overlap, dense_seconds
from .search import Options, Space
from .workload import Workload

MOST = 3_000_000
"""Plans that are tried at the most."""


def brute_force(
    workload: Workload, topology: Topology, cap: float, overlap: Overlap = "none", options: Options | None = None
) -> tuple[float, Plan | None]:
    """Seconds and plan of the best one: every option of every table on every set of ranks, every hot part. None if no
    plan keeps the cap (then infinite seconds).

    Ranks of one block of columns are distinct. Raises ValueError for a case of more than MOST plans.
    """
    space = Space(workload, topology, options or Options(), ())
    dense = dense_seconds(workload.dense, workload.batch / topology.world, topology)
    ways = [_ways(space, t) for t in range(len(workload.tables))]
    number = int(np.prod([len(of_table) for of_table in ways], dtype=np.float64))
    if number > MOST:
        raise ValueError(f"brute_force: expected at most {MOST:,} plans, given {number:,}: fewer tables or ranks")
    first = np.cumsum([0, *(len(of_table) for of_table in ways)])
    every = [way for of_table in ways for way in of_table]
    option = np.array([o for o, _ in every], np.int64)
    ranks = np.zeros((len(every), space.slots), np.int64)
    for i, (_, held) in enumerate(every):
        ranks[i, : len(held)] = held
    best, chosen = _enumerate(
        space.fixed, space.empty(), space.options, option, ranks, first, dense, OVERLAPS.index(overlap), cap
    )
    if best == np.inf:
        return best, None
    return float(best), space.plan_of([(int(option[i]), ranks[i]) for i in chosen])


@njit(cache=True)
def _enumerate(
    f: Fixed, s: State, options: Ints, option: Ints, ranks: Ints, first: Ints, dense: Floats, overlap: int, cap: float
) -> tuple[float, Ints]:
    """The best step and the way of each table: table t has ways first[t] .. first[t + 1] - 1, all combinations tried.

    An odometer: the last table turns fastest, so that a plan differs from the one before in few tables.
    """
    tables = len(first) - 1
    at, chosen, best = first[:-1].copy(), first[:-1].copy(), np.inf
    for t in range(tables):
        k, columns, parts = options[option[at[t]]]
        put(f, s, t, k, columns, parts, ranks[at[t]], 1.0)
    for k in range(len(f.kind)):
        price(f, s, k)
    while True:
        step = step_seconds(s, dense, overlap)
        if step < best and (s.weights + s.total[BUFFER]).max() <= cap:
            best = step
            chosen[:] = at
        t = tables - 1
        while t >= 0:
            k, columns, parts = options[option[at[t]]]
            put(f, s, t, k, columns, parts, ranks[at[t]], -1.0)
            price(f, s, k)
            at[t] += 1
            wrapped = at[t] == first[t + 1]
            if wrapped:
                at[t] = first[t]
            k, columns, parts = options[option[at[t]]]
            put(f, s, t, k, columns, parts, ranks[at[t]], 1.0)
            price(f, s, k)
            if not wrapped:
                break
            t -= 1
        if t < 0:
            return best, chosen


def _ways(space: Space, t: int) -> list[tuple[int, Ints]]:
    """Every option of table t with every choice of ranks that could cost something else."""
    f, ways = space.fixed, []
    for o in np.flatnonzero(space.allowed[t]):
        k, columns, parts = (int(x) for x in space.options[o])
        if f.kind[k] == EVERYWHERE:
            ways.append((int(o), np.zeros(0, np.int64)))
            continue
        hot = int(f.hot_id[t]) % parts
        blocks = []
        for ranks in combinations(range(f.world), parts):
            for first in range(parts) if f.hot_share[t] > 0 and parts > 1 else (0,):
                turned = [ranks[(first + p - hot) % parts] for p in range(parts)]
                blocks.append(turned)
        alike = combinations_with_replacement(blocks, columns)  # blocks of one table
        ways.extend((int(o), np.array(several, np.int64).flatten()) for several in alike)
    return ways
