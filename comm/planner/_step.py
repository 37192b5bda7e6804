"""From stages to a step: which of them wait for each other, for every overlap."""

import numpy as np
from numba import njit

from ._arrays import (
    APPLY,
    COMBINE,
    GATHER,
    GATHER_OWN,
    GRAD,
    GRAD_RAIL,
    INDEX,
    KEYS,
    KEYS_RAIL,
    MEET,
    NODE_REDUCE,
    ROUTE,
    SEND,
    Floats,
    State,
)  # fmt: skip

NONE, STEP, STEPS = range(3)
BOTTOM_FORWARD, TOP, BOTTOM_BACKWARD, DENSE_REDUCE = range(4)
"""Seconds of the dense part, as `dense_seconds` in score.py gives them."""


@njit(cache=True)
def step_seconds(s: State, dense: Floats, overlap: int) -> float:
    """Seconds of a step: the recurrences of `comm.simulate` over the stages of all teams.

    NONE: stage after stage; a rank waits for all others before each exchange. STEP: values travel under the bottom MLP
    and the look-ups of replicated tables, gradients and the dense reduction under the bottom MLP's backward and the
    updates; the sort by row runs beside all that. STEPS: as STEP, and everything that needs ids alone runs one batch
    ahead, beside the step. Exchanges that run beside each other are not slowed down here, as they are in `simulate`.
    """
    net = np.zeros(5)
    for k in range(len(s.tables)):
        net += s.net[k]
    t = s.total
    early = t[ROUTE].max() + net[KEYS] + t[MEET].max() + net[KEYS_RAIL]
    if overlap == NONE:
        seconds = early + (t[GATHER] + t[GATHER_OWN]).max() + net[SEND]
        seconds += (t[COMBINE] + t[INDEX]).max() + dense[BOTTOM_FORWARD] + dense[TOP] + dense[BOTTOM_BACKWARD]
        seconds += net[GRAD] + t[NODE_REDUCE].max() + net[GRAD_RAIL]
        return seconds + t[APPLY].max() + dense[DENSE_REDUCE]
    begin = early if overlap == STEP else 0.0
    sent = begin + t[GATHER].max() + net[SEND]
    world = t.shape[1]
    forward = reduced = done = 0.0
    for r in range(world):
        own = begin + t[GATHER, r] + t[GATHER_OWN, r] + dense[BOTTOM_FORWARD]
        forward = max(forward, max(sent, own) + t[COMBINE, r] + dense[TOP])
    came = forward + net[GRAD]
    for r in range(world):
        own = begin + t[GATHER, r] + t[GATHER_OWN, r] + dense[BOTTOM_FORWARD]
        through = max(sent, own) + t[COMBINE, r] + dense[TOP] + dense[BOTTOM_BACKWARD]
        reduced = max(reduced, max(through, came) + t[NODE_REDUCE, r])
    arrived = reduced + net[GRAD_RAIL] if net[GRAD_RAIL] > 0 else came
    for r in range(world):
        own = begin + t[GATHER, r] + t[GATHER_OWN, r] + dense[BOTTOM_FORWARD]
        through = max(sent, own) + t[COMBINE, r] + dense[TOP] + dense[BOTTOM_BACKWARD]
        done = max(done, through + dense[DENSE_REDUCE])
        sorted_ = begin + t[INDEX, r] if overlap == STEP else 0.0
        last = max(through, came) + t[NODE_REDUCE, r]
        done = max(done, max(last, arrived, sorted_) + t[APPLY, r])
    dense_start = forward + dense[BOTTOM_BACKWARD]
    done = max(done, dense_start + dense[DENSE_REDUCE])
    if overlap == STEPS:
        done = max(done, early + t[INDEX].max())
    return done


@njit(cache=True)
def rough_seconds(s: State) -> float:
    """Root mean squares over ranks in place of maxima: what still falls while the maximum of a stage does not."""
    total = 0.0
    for k in range(len(s.tables)):
        total += s.rough[k]
    for stage in (MEET, GATHER, COMBINE, NODE_REDUCE, INDEX, APPLY):
        total += np.sqrt((s.total[stage] ** 2).mean())
    return total
