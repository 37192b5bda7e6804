"""What one plan puts on every rank, table by table: the search's inner loop.

What the strategies send and their phases compute is written here a second time, for symmetric sources: every rank
brings the same expected batch, so bytes from source to owner depend on the owner alone. Tests hold this copy to
`Strategy.sent` and to `comm.simulate`. `score.py` says what each phase is charged.
"""

import numpy as np
from numba import njit

from ._arrays import (
    ALL_DISTINCT,
    APPLY,
    BAGS,
    BUCKETIZE,
    BUFFER,
    COMBINE,
    COPY,
    DISTINCT,
    EVERYWHERE,
    FLAT,
    GATHER,
    GATHER_OWN,
    GRAD,
    GRAD_RAIL,
    IDS,
    INDEX,
    INTRA,
    KEYS,
    KEYS_RAIL,
    LOOKUP,
    MEET,
    N_ALL,
    N_BLOCKS,
    N_DISTINCT,
    N_IDS,
    N_ROWS,
    NIC,
    NODE_DISTINCT,
    NODE_REDUCE,
    NODES,
    ROUTE,
    SEGMENT,
    SEND,
    UNIQUE,
    UNIQUE_IDS,
    UNIQUE_NODE,
    UPDATE,
    Fixed,
    Ints,
    State,
)  # fmt: skip
from ._links import busiest, charge, closed, collective, seconds


@njit(cache=True)
def table_bytes(f: Fixed, t: int, k: int, rows: float) -> float:
    """Bytes of `rows` rows of one block of table t under team k, optimizer state included."""
    return rows * f.item[k] * (f.width[k] * (1.0 + f.cells) + f.per_row)


@njit(cache=True)
def put(f: Fixed, s: State, t: int, k: int, columns: int, parts: int, ranks: Ints, sign: float) -> None:
    """Add table t (`sign` 1) or take it out (-1): `columns` blocks, part p of block c on ranks[c * parts + p]."""
    s.tables[k] += np.int64(sign)
    blocks = 1 if f.kind[k] == EVERYWHERE else columns
    s.team[k, N_IDS] += sign * f.ids[t] * blocks
    s.team[k, N_BLOCKS] += sign * blocks
    s.team[k, N_ROWS] += sign * f.rows[t] * blocks
    s.team[k, N_DISTINCT] += sign * f.distinct[t] * blocks
    s.team[k, N_ALL] += sign * f.all_distinct[t] * blocks
    if f.kind[k] == EVERYWHERE:
        s.weights[:] += sign * table_bytes(f, t, k, f.rows[t])
        return
    even, hot = 1.0 / parts, f.hot_id[t] % parts
    for c in range(columns):
        s.mark[:] = -1
        for p in range(parts):
            r = ranks[c * parts + p]
            share = (1.0 - f.hot_share[t]) * even + (f.hot_share[t] if p == hot else 0.0)
            s.stat[k, IDS, r] += sign * f.ids[t] * share
            s.stat[k, DISTINCT, r] += sign * f.distinct[t] * even
            s.stat[k, NODE_DISTINCT, r] += sign * f.node_distinct[t] * even
            s.stat[k, ALL_DISTINCT, r] += sign * f.all_distinct[t] * even
            s.weights[r] += sign * table_bytes(f, t, k, (f.rows[t] - p + parts - 1) // parts)
            if s.mark[0, r] < 0:  # a rank with two parts of a block holds the block once
                s.mark[0, r] = 0
                s.stat[k, BAGS, r] += sign
            if s.mark[1, r // f.local] < 0:
                s.mark[1, r // f.local] = 0
                s.cover[k, r // f.local] += sign


@njit(cache=True)
def key_bytes(f: Fixed, k: int, s: State) -> float:
    """Bytes of a key: 4, or 8 where the team's rows are 2^31 or more (`Shards.wire_ids`)."""
    return 4.0 if s.team[k, N_ROWS] < 2**31 - 0.5 else 8.0


@njit(cache=True)
def price(f: Fixed, s: State, k: int) -> None:
    """Seconds of every stage of team k, into `net` and `work`; `total` follows."""
    s.total[:] -= s.work[k]
    s.work[k] = 0.0
    s.net[k] = 0.0
    s.rough[k] = 0.0
    if s.tables[k] == 0:  # exactly empty, whatever was rounded
        s.stat[k] = 0.0
        s.cover[k] = 0.0
        s.team[k] = 0.0
        return
    if f.kind[k] == EVERYWHERE:
        _price_everywhere(f, s, k)
    elif f.kind[k] <= NODES:
        _price_pooled(f, s, k)
    else:
        _price_unique(f, s, k)
    s.total[:] += s.work[k]


@njit(cache=True)
def _price_everywhere(f: Fixed, s: State, k: int) -> None:
    work, row = s.work[k], float(f.width[k] * f.item[k])
    n, bags = s.team[k, N_IDS], f.batch * s.team[k, N_BLOCKS]
    height, distinct = s.team[k, N_ROWS], s.team[k, N_DISTINCT]
    work[GATHER_OWN] = seconds(f, LOOKUP, n * (row + 8) + bags * (row + 8), 1)
    work[INDEX] = seconds(f, UNIQUE_IDS, 56 * n, 1)
    work[COMBINE] = seconds(f, SEGMENT, n * (row + 16) + distinct * (row + 8), 1)
    dense = height * (row + f.item[k])
    touched = s.team[k, N_ALL]
    work[APPLY] = seconds(f, COPY, 3 * dense, 1) + seconds(
        f, UPDATE, touched * (row * (3 + 2 * f.cells) + f.per_row * 2 * f.item[k] + 8), 1
    )
    work[BUFFER] = 2 * dense + 2 * bags * row + 16 * n
    x, loads, used = s.vector[0], np.zeros(3), np.zeros((2, 2))
    whole = np.floor(height / f.world)
    for r in range(f.world):
        x[r] = (whole + (r < height - whole * f.world)) * (f.wire[k] + f.item[k])
    busiest(f, x, loads)
    calls = 1.0 if f.wire[k] == f.width[k] * f.item[k] else 2.0
    collective(f, loads[0], loads[1], calls, used)
    collective(f, loads[0], loads[1], calls, used)
    s.net[k, GRAD] = closed(f, used)


@njit(cache=True)
def _owner(f: Fixed, s: State, k: int, raw: bool) -> None:
    """Index, sums by row and update of what each rank holds: the levels of the canonical order, then the fused update.

    `raw`: gradients come a bag, and are read once for each id; else one for each distinct row of a source.
    """
    work, stat, row, world = s.work[k], s.stat[k], float(f.width[k] * f.item[k]), f.world
    nodes = world // f.local
    sort, reduce, update = s.vector[1], s.vector[2], s.vector[3]
    by_rank = raw and world > 1
    by_node = nodes > 1 and f.kind[k] != UNIQUE_NODE
    each = row * (2 + 2 * f.cells) + f.per_row * 2 * f.item[k] + 8
    for r in range(world):
        of_ranks = world * stat[DISTINCT, r]
        of_nodes = nodes * stat[NODE_DISTINCT, r]
        parts = world * stat[IDS, r] if raw else of_ranks
        sort[r] = reduce[r] = 0.0
        if by_rank:
            sort[r] += 56 * parts
            reduce[r] += parts * (row + 16) + of_ranks * (row + 8)
            parts = of_ranks
        if by_node:
            sort[r] += 56 * parts
            reduce[r] += parts * (row + 16) + of_nodes * (row + 8)
            parts = of_nodes
        if f.kind[k] == UNIQUE_NODE:
            parts = of_nodes
        sort[r] += 56 * parts
        update[r] = parts * (row + 16) + stat[ALL_DISTINCT, r] * each
    charge(f, UNIQUE_IDS, sort, work[INDEX])
    charge(f, UPDATE, update, work[APPLY])
    if by_rank or by_node:
        charge(f, SEGMENT, reduce, work[APPLY])


@njit(cache=True)
def _price_pooled(f: Fixed, s: State, k: int) -> None:
    work, row, nodes = s.work[k], float(f.width[k] * f.item[k]), f.world // f.local
    key, x, loads, used = key_bytes(f, k, s), s.vector[0], np.zeros(3), np.zeros((2, 2))
    blocks, cover = s.team[k, N_BLOCKS], s.cover[k].sum()
    work[ROUTE] = seconds(f, BUCKETIZE, 32 * s.team[k, N_IDS], 1)
    _owner(f, s, k, True)
    held, amount = 0.0, s.vector[1]
    for r in range(f.world):
        ids, bags = f.world * s.stat[k, IDS, r], f.world * f.batch * s.stat[k, BAGS, r]
        held += s.stat[k, BAGS, r]
        x[r] = 16 + 4 * f.batch * s.stat[k, BAGS, r] + key * s.stat[k, IDS, r]
        amount[r] = ids * (row + 8) + bags * (row + 8)
        work[BUFFER, r] = 2 * bags * row + 16 * ids
    charge(f, LOOKUP, amount, work[GATHER])
    busiest(f, x, loads)
    collective(f, loads[0], loads[1], 3.0, used)
    s.net[k, KEYS] = closed(f, used)
    s.rough[k] += loads[2] / f.rate[NIC, 1]
    if f.kind[k] == FLAT:
        for r in range(f.world):
            x[r] = f.batch * s.stat[k, BAGS, r] * f.wire[k]
        busiest(f, x, loads)
        collective(f, loads[0], loads[1], 1.0, used)
        s.rough[k] += 2 * loads[2] / f.rate[NIC, 1]
        combine = seconds(f, COPY, (held + blocks) * f.batch * row, 1)
        work[COMBINE] = combine
        work[BUFFER] += 2 * held * f.batch * row
    else:
        intra = nic = square = inside = 0.0
        unit = f.batch * nodes * f.wire[k]
        for node in range(nodes):
            first, here = node * f.local, 0.0
            for r in range(first, first + f.local):
                here += s.stat[k, BAGS, r]
            for r in range(first, first + f.local):
                mine = s.stat[k, BAGS, r]
                intra = max(intra, (f.local - 1) * mine * unit, (here - mine) * unit)
                inside += (mine * unit) ** 2
            across = s.cover[k, node]
            wide = f.per_nic * f.batch * f.wire[k]
            nic = max(nic, (nodes - 1) * across * wide, (cover - across) * wide)
            square += ((nodes - 1) * across * wide) ** 2
            meeting = (here + across) * f.batch * nodes + (cover + blocks) * f.batch
            for r in range(first, first + f.local):
                amount[r] = meeting * row
                work[BUFFER, r] += 2 * ((here + across) * nodes + cover) * f.batch * row
        charge(f, COPY, amount, work[COMBINE])
        collective(f, intra, 0.0, 1.0, used)
        collective(f, 0.0, nic, 1.0, used)
        s.rough[k] += 2 * (square / nodes) ** 0.5 / f.rate[NIC, 1]
        s.rough[k] += 2 * (f.local - 1) * (inside / f.world) ** 0.5 / f.rate[INTRA, 1]
    s.net[k, SEND] = closed(f, used)
    s.net[k, GRAD] = s.net[k, SEND]


@njit(cache=True)
def _price_unique(f: Fixed, s: State, k: int) -> None:
    work, row = s.work[k], float(f.width[k] * f.item[k])
    key, x, loads, used = key_bytes(f, k, s), s.vector[0], np.zeros(3), np.zeros((2, 2))
    n, bags, distinct = s.team[k, N_IDS], f.batch * s.team[k, N_BLOCKS], s.team[k, N_DISTINCT]
    work[ROUTE] = seconds(f, UNIQUE_IDS, 56 * n, 1) + seconds(f, BUCKETIZE, 32 * distinct, 1)
    pool = seconds(f, LOOKUP, n * (row + 8) + bags * (row + 8), 1)
    work[COMBINE] = pool + seconds(f, SEGMENT, n * (row + 16) + distinct * (row + 8), 1)
    work[BUFFER] = 2 * distinct * row + 2 * bags * row + 24 * n
    _owner(f, s, k, False)
    if f.kind[k] == UNIQUE:
        amount = s.vector[1]
        for r in range(f.world):
            asked = f.world * s.stat[k, DISTINCT, r]
            amount[r] = asked * (2 * row + 8)
            work[BUFFER, r] += asked * (2 * row + 16)
            x[r] = 8 + key * s.stat[k, DISTINCT, r]
        charge(f, COPY, amount, work[GATHER])
        busiest(f, x, loads)
        collective(f, loads[0], loads[1], 2.0, used)
        s.net[k, KEYS] = closed(f, used)
        s.rough[k] += loads[2] / f.rate[NIC, 1]
        for r in range(f.world):
            x[r] = f.wire[k] * s.stat[k, DISTINCT, r]
        busiest(f, x, loads)
        collective(f, loads[0], loads[1], 1.0, used)
        s.net[k, SEND] = closed(f, used)
        s.net[k, GRAD] = s.net[k, SEND]
        s.rough[k] += 2 * loads[2] / f.rate[NIC, 1]
        return
    _price_through_places(f, s, k, key)


@njit(cache=True)
def _price_through_places(f: Fixed, s: State, k: int, key: float) -> None:
    """The two hops of `unique_node`: a rank's rows to the places of its node, the node's rows along rails."""
    work, row, nodes = s.work[k], float(f.width[k] * f.item[k]), f.world // f.local
    used, at_place, to_place, node_rows = np.zeros((2, 2)), s.vector[0], s.vector[1], s.vector[2]
    at_place[:] = 0.0
    node_rows[:] = 0.0
    for r in range(f.world):
        at_place[r % f.local] += s.stat[k, DISTINCT, r]
        node_rows[r % f.local] += s.stat[k, NODE_DISTINCT, r]
    amount = s.vector[3]
    for r in range(f.world):
        amount[r] = nodes * s.stat[k, NODE_DISTINCT, r] * (2 * row + 8)
    charge(f, COPY, amount, work[GATHER])
    for r in range(f.world):
        place, asked = r % f.local, nodes * s.stat[k, NODE_DISTINCT, r]
        met = f.local * at_place[place]
        if r < f.local:  # the same in every node
            work[MEET, r] = seconds(f, UNIQUE_IDS, 56 * met, 1)
            amount[r] = seconds(f, COPY, met * (2 * row + 8), 1)
            work[NODE_REDUCE, r] = seconds(f, SEGMENT, met * (row + 16) + node_rows[place] * (row + 8), 1)
        else:
            work[MEET, r], work[NODE_REDUCE, r] = work[MEET, place], work[NODE_REDUCE, place]
        work[COMBINE, r] += amount[place]
        work[BUFFER, r] += (asked + met + node_rows[place]) * (2 * row + 16)
    for hop in range(2):  # keys, then values
        base, each, calls = (8.0, key, 2.0) if hop == 0 else (0.0, float(f.wire[k]), 1.0)
        everything = 0.0
        for p in range(f.local):
            to_place[p] = base * nodes + each * at_place[p]
            everything += to_place[p]
        intra = nic = square = 0.0
        for p in range(f.local):
            intra = max(intra, everything - to_place[p], (f.local - 1) * to_place[p])
        for start in range(0, f.world, f.per_nic):
            coming = going = 0.0
            for r in range(start, start + f.per_nic):
                mine = base + each * s.stat[k, NODE_DISTINCT, r]
                coming += (nodes - 1) * mine
                going += nodes * base + each * node_rows[r % f.local] - mine
            nic = max(nic, coming, going)
            square += coming * coming
        collective(f, intra if f.local > 1 else 0.0, 0.0, calls, used)
        if hop == 0:
            s.net[k, KEYS] = closed(f, used)
            collective(f, 0.0, nic if nodes > 1 else 0.0, calls, used)
            s.net[k, KEYS_RAIL] = closed(f, used)
        else:
            collective(f, 0.0, nic if nodes > 1 else 0.0, calls, used)
            s.net[k, SEND] = closed(f, used)
            collective(f, intra if f.local > 1 else 0.0, 0.0, calls, used)
            s.net[k, GRAD] = closed(f, used)
            collective(f, 0.0, nic if nodes > 1 else 0.0, calls, used)
            s.net[k, GRAD_RAIL] = closed(f, used)
        s.rough[k] += (1 if hop == 0 else 2) * (square * f.per_nic / f.world) ** 0.5 / f.rate[NIC, 1]
