"""The published rule: memory above the least sizes in proportion to cacheability times expected look-ups.

It looks at the area under a table's miss curve, not at its shape, nor at the bytes of a row. Source: TorchRec's
`EmbeddingOffloadScaleupProposer` (steps 5 to 8 of its published code), whose values are the tests.
"""

from collections.abc import Sequence

import numpy as np

from ..miss_curve import Floats
from .demand import Demand, Sizing, require_start

PASSES = 128


def allocate(load: Floats, priority: Floats, slope: Floats, fixed: Floats, whole: Floats, budget: float) -> Floats:
    """New load factors [T] after `budget` bytes were spent on tables of load factors `load` [T].

    A table at load factor x takes slope * x + fixed bytes, at 1 it takes `whole`. Each pass gives those below 1 their
    share by `priority` of what is left; a table that has more than it can use, or as much as the whole table takes,
    becomes whole and gives the rest back. All [T] float64.
    """
    load = np.asarray(load, np.float64).copy()
    bytes_of = lambda x: np.where(x >= 1.0, np.minimum(slope + fixed, whole), slope * x + fixed)  # noqa: E731
    start = float(bytes_of(load).sum())
    left = float(budget)
    for _ in range(PASSES):
        open_ = (load < 1.0) & (priority > 0)
        if left <= 1.0 or not open_.any():
            break
        share = np.where(open_, priority, 0.0)
        grown = np.minimum(1.0, load + left * share / share.sum() / slope)
        promoted = open_ & (slope * grown + fixed >= whole)
        load = np.where(open_, np.where(promoted, 1.0, grown), load)
        left = budget - (float(bytes_of(load).sum()) - start)
    return load


def priorities(demands: Sequence[Demand]) -> Floats:
    """Cacheability times accesses a batch of each, [T]."""
    return np.array([d.curve.cacheability(d.rows) * d.curve.accesses for d in demands])


def grow(demands: Sequence[Demand], start: Sizing, budget: float) -> Sizing:
    """`start` after `budget` more bytes were spent by the published rule; tables of no priority keep their size."""
    load = np.array([c / d.rows for d, c in zip(demands, start.cached, strict=True)])
    slope = np.array([d.line_bytes * d.rows for d in demands])
    fixed, whole = (np.array([getattr(d, name) for d in demands]) for name in ("fixed_bytes", "whole_bytes"))
    grown = allocate(load, priorities(demands), slope, fixed, whole, budget)
    return Sizing(tuple(d.rows if x > 0.9999 else float(x * d.rows) for d, x in zip(demands, grown, strict=True)))


def by_priority(demands: Sequence[Demand], budget: float) -> Sizing:
    """All of `budget` by the published rule; ValueError if the least sizes do not fit."""
    start = require_start(demands, budget)
    return grow(demands, start, budget - start.bytes(demands))
