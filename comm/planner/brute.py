"""Every plan of a tiny case, scored: what the search is held to."""

from itertools import combinations, combinations_with_replacement, product

import numpy as np

from comm.plan import Plan
from comm.topology import Topology

from ._arrays import BUFFER, EVERYWHERE, Ints
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
    f, mode = space.fixed, OVERLAPS.index(overlap)
    dense = dense_seconds(workload.dense, workload.batch / topology.world, topology)
    ways = [_ways(space, t) for t in range(len(workload.tables))]
    number = int(np.prod([len(of_table) for of_table in ways], dtype=np.float64))
    if number > MOST:
        raise ValueError(f"brute_force: expected at most {MOST:,} plans, given {number:,}: fewer tables or ranks")
    state = space.empty()
    best, found = float("inf"), None
    for chosen in product(*ways):
        for t, (o, ranks) in enumerate(chosen):
            k, columns, parts = space.options[o]
            put(f, state, t, k, columns, parts, ranks, 1.0)
        for k in range(len(space.teams)):
            price(f, state, k)
        step = step_seconds(state, dense, mode)
        if step < best and (state.weights + state.total[BUFFER]).max() <= cap:
            best, found = step, chosen
        for t, (o, ranks) in enumerate(chosen):
            k, columns, parts = space.options[o]
            put(f, state, t, k, columns, parts, ranks, -1.0)
    if found is None:
        return best, None
    return best, space.plan_of([(int(o), ranks) for o, ranks in found])


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
