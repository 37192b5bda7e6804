"""The published planner: grow the caches by ever other budgets, keep the plan that rates best.

The least sizes are rated first. Then 16 times: a budget from a Luus-Jaakola search, sizes by the priority rule from the
*least* ones, a plan, its rating. A budget whose plan cannot be placed becomes the search's right end: larger ones are
taken to fail too. What is left of the budget is not always spent: a plan with less may pack better. Source: TorchRec's
`EmbeddingOffloadScaleupProposer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .demand import Demand, Sizing
from .luus_jaakola import LuusJaakola
from .priority import grow, priorities

Rate = Callable[[Sizing], float | None]
"""The rating of the plan that these sizes make, lower is better; None: it cannot be placed."""


@dataclass(frozen=True)
class Probe:
    """One budget, above the least sizes, and what came of it: `rating` None if it could not be placed."""

    budget: float
    sizing: Sizing
    rating: float | None


def scale_up(
    demands: Sequence[Demand], start: Sizing, budget: float, rate: Rate, iterations: int = 16, seed: int = 42
) -> list[Probe]:
    """Every probe, the start first; the best is `best_of` them. `budget`: bytes of all devices together.

    One probe alone if the start cannot be placed, or nothing can grow.
    """
    probes = [Probe(0.0, start, rate(start))]
    right = _ceiling(demands, start, budget)
    if probes[0].rating is None or right <= 0:
        return probes
    search = LuusJaakola(0.0, right, iterations, seed, probes[0].rating)
    more = search.next(0.0)
    while more is not None:
        sizing = grow(demands, start, more)
        rating = rate(sizing)
        probes.append(Probe(more, sizing, rating))
        if rating is None:
            search.shrink_right(sizing.bytes(demands) - start.bytes(demands))
        more = search.next(float("inf") if rating is None else rating)
    return probes


def dense_grid(demands: Sequence[Demand], start: Sizing, budget: float, rate: Rate, points: int = 200) -> list[Probe]:
    """The oracle of the search: `points` budgets, evenly spaced, the ends among them."""
    found = []
    for more in np.linspace(0.0, max(0.0, _ceiling(demands, start, budget)), points):
        sizing = grow(demands, start, float(more))
        found.append(Probe(float(more), sizing, rate(sizing)))
    return found


def best_of(probes: Sequence[Probe]) -> Probe:
    """The one of the best rating, the smallest budget first; ValueError if none could be placed."""
    placed = [probe for probe in probes if probe.rating is not None]
    if not placed:
        raise ValueError(f"expected a plan that can be placed, given {len(probes)} that cannot: use more memory")
    return min(placed, key=lambda probe: (probe.rating, probe.budget))


def _ceiling(demands: Sequence[Demand], start: Sizing, budget: float) -> float:
    """Bytes above the start that the budget allows and the tables that can grow could use."""
    can = priorities(demands) > 0
    whole = sum(d.whole_bytes - d.bytes(c) for d, c, g in zip(demands, start.cached, can, strict=True) if g)
    return min(budget - start.bytes(demands), whole)
