"""Water-filling: the next byte of memory goes where it saves the most bytes on the link.

On convex miss curves this is the optimum (every table ends at the same marginal gain, or at an end). Curves that are
not convex are filled along their convex hulls; so is the step from a cache to the whole table, which needs no overflow
lines and no tags. What is then left and fits no step of a hull goes to whichever size in reach saves most.
"""

from collections.abc import Sequence

import numpy as np

from .demand import Demand, Sizing, require_start


def marginal(demands: Sequence[Demand], budget: float) -> Sizing:
    """Sizes within `budget`; ValueError if the least sizes do not fit."""
    start = require_start(demands, budget)
    left = budget - start.bytes(demands)
    options = [d.options for d in demands]
    at = [int(np.searchsorted(o[0], c)) for o, c in zip(options, start.cached, strict=True)]  # the option each has
    steps = [(gain, number, low, high) for number, d in enumerate(demands) for gain, low, high in d.steps]
    stopped = set()
    for _, number, low, high in sorted(steps):
        bytes_ = options[number][1]
        cost = bytes_[high] - bytes_[low]
        if number in stopped:
            continue
        if cost <= left:
            at[number] = high
            left -= cost
        else:
            stopped.add(number)  # its later steps begin where this one ends
    cached = [float(options[number][0][place]) for number, place in enumerate(at)]
    return _spend(demands, Sizing(tuple(cached)), left)


def _spend(demands: Sequence[Demand], sizing: Sizing, left: float) -> Sizing:
    """The rest, table after table, each time where it saves most."""
    cached, memory = list(sizing.cached), [d.bytes(c) for d, c in zip(demands, sizing.cached, strict=True)]
    saved = [_best_reach(d, c, m, left) for d, c, m in zip(demands, cached, memory, strict=True)]
    for _ in range(2 * len(demands)):
        best = max(range(len(demands)), key=lambda number: saved[number][0])
        gain, rows = saved[best]
        if gain <= 0:
            break
        left -= demands[best].bytes(rows) - memory[best]
        cached[best], memory[best] = rows, demands[best].bytes(rows)
        saved = [
            _best_reach(d, c, m, left) if number == best or s[0] > 0 else s
            for number, (d, c, m, s) in enumerate(zip(demands, cached, memory, saved, strict=True))
        ]
    return Sizing(tuple(cached))


def _best_reach(demand: Demand, cached: float, memory: float, left: float) -> tuple[float, float]:
    """(bytes a batch saved, rows) by spending up to `left` on this one."""
    if cached >= demand.rows:
        return 0.0, cached
    now = float(demand.moved(cached))
    if demand.whole_bytes - memory <= left:
        return now, demand.rows
    rows = min(cached + left / demand.line_bytes, demand.rows * (1 - 1e-12))
    return now - float(demand.moved(rows)), rows
