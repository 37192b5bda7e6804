"""HugeCTR's planner with its thresholds swept by hand, the best by a score of ours: the strongest use of it we know.

HugeCTR leaves to its user how many tables are replicated and how many de-duplicated. A user who sweeps looks at the
classes of tables: the limits here are rows for the first and hotness for the second, four each, with both searches.
The best of these is then tried with column splits. A score that the planner itself does not have makes the choice, so
this is more than HugeCTR does on its own.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from comm.plan import Plan
from comm.wire import Wire
from kernels import TableSpec

from .hugectr import Limits, OutOfMemory, auto, hier_auto

ROWS = (0, 1_000, 10_000, 100_000)
"""Tables with at most so many rows are replicated."""
HOTNESS = (0, 1, 10, 30)
"""Of the others, those with at most so many ids a sample are de-duplicated."""


def swept(
    tables: Sequence[TableSpec],
    hotness: Sequence[float],
    limits: Limits,
    pooled: str,
    wire: Wire,
    score: Callable[[Plan], float],
) -> tuple[str, Plan]:
    """The best plan and what made it, in words; `score` gives infinity to a plan that does not fit.

    `pooled` as in `hugectr`. Raises OutOfMemory if nothing fits.
    """
    found = list(_found(tables, hotness, limits, pooled, wire, score))
    if not found:
        raise OutOfMemory("no thresholds give a plan that fits")
    _, name, plan = min(found, key=lambda one: (one[0], one[1]))
    return name, plan


def _found(
    tables: Sequence[TableSpec],
    hotness: Sequence[float],
    limits: Limits,
    pooled: str,
    wire: Wire,
    score: Callable[[Plan], float],
) -> Iterator[tuple[float, str, Plan]]:
    searches = {"auto": auto} | ({"hier_auto": hier_auto} if limits.nodes > 1 else {})
    best = (float("inf"), "", 0, 0)

    def tried(search: str, replicated: int, unique: int, columns: bool) -> tuple[float, str, Plan] | None:
        try:
            plan = searches[search](tables, hotness, limits, replicated, unique, columns, pooled, wire)
        except OutOfMemory:
            return None
        seconds = score(plan)
        name = f"{search}, {replicated} replicated, {unique} unique" + ", columns" * columns
        return (seconds, name, plan) if seconds < float("inf") else None

    pairs = {_counts(tables, hotness, *most): None for most in product(ROWS, HOTNESS)}
    for search, (replicated, unique) in product(searches, pairs):
        if one := tried(search, replicated, unique, False):
            yield one
            best = min(best, (one[0], search, replicated, unique))
    if best[1] and (one := tried(*best[1:], True)):
        yield one


def _counts(tables: Sequence[TableSpec], hotness: Sequence[float], rows: int, most: int) -> tuple[int, int]:
    """The thresholds, as the numbers of tables that HugeCTR takes."""
    left = [h for table, h in zip(tables, hotness, strict=True) if table.rows > rows]
    return len(tables) - len(left), sum(h <= most for h in left)
