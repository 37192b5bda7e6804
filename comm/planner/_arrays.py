"""The arrays of a search: what does not change in it (`Fixed`), and what a plan adds up to (`State`).

A team (tables of one strategy, width, dtype and wire: one exchange) has one line in each array of a State.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLAT, NODES, UNIQUE, UNIQUE_NODE, EVERYWHERE = range(5)
"""Kinds of team: pooled, pooled through nodes, de-duplicated, de-duplicated per node as well, on every rank."""
INTRA, NIC, BUCKETIZE, UNIQUE_IDS, LOOKUP, COPY, SEGMENT, UPDATE = range(8)
"""Lines of `Fixed.rate`: two links, then the ops that phases are made of."""
KEYS, KEYS_RAIL, SEND, GRAD, GRAD_RAIL = range(5)
"""Network stages: lines of `State.net`."""
ROUTE, MEET, GATHER, GATHER_OWN, COMBINE, NODE_REDUCE, INDEX, APPLY, BUFFER = range(9)
"""Compute stages, and bytes of buffers: lines of `State.work`."""
IDS, BAGS, DISTINCT, NODE_DISTINCT, ALL_DISTINCT = range(5)
"""Of a rank, for one source's batch: ids asked, blocks held, distinct rows of a source, of a node, of all."""
N_IDS, N_BLOCKS, N_ROWS, N_DISTINCT, N_ALL = range(5)
"""Of a team, for one source: ids, blocks, rows (their sum decides the width of keys), distinct rows, those of all."""


class Fixed(NamedTuple):
    """What does not change in a search. `ids` .. `hot_part` by table; `kind` .. `wire` by team; `rate` by link or op:
    [alpha, beta, number of points], whose points are in `xs`, `ys`. `cells`, `per_row`: numbers of optimizer state for
    each number and each row.
    """

    world: int
    local: int
    per_nic: int
    batch: float
    cells: float
    per_row: float
    ids: Floats
    distinct: Floats
    node_distinct: Floats
    all_distinct: Floats
    rows: Ints
    hot_id: Ints
    hot_share: Floats
    kind: Ints
    width: Ints
    item: Ints
    wire: Ints
    rate: Floats
    xs: Floats
    ys: Floats


class State(NamedTuple):
    """What a plan adds up to: `stat` [teams, 5, world], `cover` [teams, nodes] blocks in a node, `team` [teams, 5],
    `tables` [teams], `weights` [world] bytes of tables and optimizer; then, priced: `work` [teams, 9, world] seconds
    (last: bytes), `net` [teams, 5] seconds, `rough` [teams] seconds of root mean squares; `total` [9, world].
    """

    stat: Floats
    cover: Floats
    team: Floats
    tables: Ints
    weights: Floats
    work: Floats
    net: Floats
    rough: Floats
    total: Floats
    mark: Ints
    vector: Floats


def empty_state(teams: int, world: int, nodes: int) -> State:
    """Nothing placed."""
    return State(
        np.zeros((teams, 5, world)),
        np.zeros((teams, nodes)),
        np.zeros((teams, 5)),
        np.zeros(teams, np.int64),
        np.zeros(world),
        np.zeros((teams, 9, world)),
        np.zeros((teams, 5)),
        np.zeros(teams),
        np.zeros((9, world)),
        np.full((2, world), -1, np.int64),
        np.zeros((4, world)),
    )
