"""The oracle of sizing alone: every table's size on a dense grid of memory, the best of all by dynamic programming.

A multiple-choice knapsack: best(t, g) = min over k of best(t - 1, g - k) + moved(t, k cells). Exact on its grid, which
wastes up to a cell a table; so a proposer may come out a little better. The published planner's oracle, a dense grid of
budgets, is in `scale_up.py`.
"""

from collections.abc import Sequence

import numpy as np

from .demand import Demand, Sizing, require_start


def knapsack(demands: Sequence[Demand], budget: float, cells: int = 400) -> Sizing:
    """The best sizes whose bytes above the least ones come in `cells` equal parts of what is left of `budget`.

    ValueError if the least sizes do not fit. Time: tables x cells^2.
    """
    start = require_start(demands, budget)
    cell = (budget - start.bytes(demands)) / cells
    choices, costs = [], []
    for demand, first in zip(demands, start.cached, strict=True):
        memory = demand.bytes(first) + cell * np.arange(cells + 1)
        rows = np.clip((memory - demand.fixed_bytes) / demand.line_bytes, first, demand.rows * (1 - 1e-12))
        rows = np.where((memory >= demand.whole_bytes) | (first >= demand.rows), demand.rows, rows)
        choices.append(rows)
        costs.append(demand.moved(rows))
    best = np.zeros(cells + 1)
    taken = []
    for cost in costs:
        # row g, column k: k cells to this table, g - k to those before it
        k = np.arange(cells + 1)
        before = k[:, None] - k[None, :]
        total = np.where(before >= 0, best[np.maximum(before, 0)] + cost[None, :], np.inf)
        taken.append(total.argmin(1))
        best = total.min(1)
    left, cached = cells, []
    for rows, choice in zip(reversed(choices), reversed(taken), strict=True):
        k = int(choice[left])
        cached.append(float(rows[k]))
        left -= k
    return Sizing(tuple(reversed(cached)))
