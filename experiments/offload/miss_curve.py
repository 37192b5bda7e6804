"""Miss rates predicted by stack distances against caches that ran: full, 32-, 8- and 1-way, LRU.

Paper figure: none known; the planner of its public code sizes caches by such curves. The curve is measured on the same
batches as the cache (`same`), and on the batches before them (`past`), which is what a planner has; exact, and from a
sample of the rows. First touches are misses and are counted apart. The full cache is the plain definition of LRU, the
others are the store that trains.

Run:      python -m experiments run offload/miss_curve --laptop   (about 15 s)
Expect:   within 1.5 points above three times two batches' rows, for 32 ways too; 1 way misses more, its sets being full
          while others are empty; below one multiple rows in use cannot be evicted and the curve says nothing.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from comm.planner.miss_curve import MissCurve
from comm.planner.miss_curve import measure as curve_of
from experiments.config import Measurement
from experiments.offload._streams import Order, Stream, distinct_by_batch
from kernels import Optimizer
from models.cache import CachedStore
from models.cache_size import SmallCache
from models.host_tier import HostTier
from models.tier import StoreSpec

Rows = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Config:
    """`multiples`: lines over the distinct rows of two batches. `ways` 0: full. The last `counted` batches count."""

    orders: tuple[Order, ...] = ("iid", "meta_low", "meta_medium", "sessions", "drift")
    alphas: tuple[float, ...] = (0.8, 1.05, 1.2)
    stream: Stream = field(default_factory=lambda: Stream(rows=50_000, samples=256, batches=120, dim=1))
    multiples: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
    ways: tuple[int, ...] = (0, 32, 8, 1)
    counted: int = 50
    samples: tuple[float, ...] = (0.1, 0.01)


GRID = (Config(),)
LAPTOP = (
    Config(
        orders=("iid", "meta_medium"), alphas=(1.05,), multiples=(1.0, 3.0, 6.0),
        stream=Stream(rows=50_000, samples=256, batches=60, dim=1), counted=30, samples=(0.1,),
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), alphas=(1.05,), stream=Stream(rows=2000, samples=16, batches=20, dim=1),
        multiples=(3.0,), ways=(0, 8), counted=8, samples=(0.5,),
    ),
)  # fmt: skip
BUDGET_S = 8.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every stream: curves, then every cache."""
    for order in config.orders:
        for alpha in config.alphas if order in ("iid", "drift") else config.alphas[:1]:
            stream = replace(config.stream, order=order, alpha=alpha)
            rows = list(distinct_by_batch(stream, stream.bags()))
            shuffled = _shuffled(rows)
            skip = len(rows) - config.counted
            two = float(np.mean([len(np.union1d(a, b)) for a, b in zip(rows[skip:], rows[skip + 1 :], strict=False)]))
            curves = {"same": curve_of(shuffled, skip=skip), "past": curve_of(shuffled[:skip], skip=skip // 2)}
            curves |= {f"sample {s:g}": curve_of(shuffled, sample=s, skip=skip) for s in config.samples}
            for multiple in config.multiples:
                for ways in config.ways:
                    lines = round(multiple * two / max(ways, 1)) * max(ways, 1)
                    seen = full(rows, lines, skip) if not ways else stored(rows, lines, ways, skip, stream.total_rows)
                    yield _measured(stream, multiple, ways, lines, curves, seen, two)


def _measured(
    stream: Stream, multiple: float, ways: int, lines: int, curves: dict[str, MissCurve], seen: dict[str, float],
    two: float,
) -> Measurement:  # fmt: skip
    found = {f"rate_{name}".replace(" ", "_"): float(curve.rate(lines)) for name, curve in curves.items()}
    found["rate_no_first"] = float(curves["same"].rate(lines, first=False))
    metrics = found | seen | {"two": two}
    point = {"order": stream.order, "alpha": stream.alpha, "multiple": multiple, "ways": ways}
    units = {n: "share of rows" if n != "two" else "rows" for n in metrics}
    return Measurement(point, metrics, units, 1)


def _shuffled(rows: Rows) -> list[NDArray[np.int64]]:
    """Rows of a batch count as used in this order: not by their number."""
    rng = np.random.default_rng(0)
    return [rng.permutation(ids) for ids in rows]


def full(rows: Rows, lines: int, skip: int) -> dict[str, float]:
    """Shares of the rows after `skip` batches that a full LRU cache misses, and that are first touches."""
    kept: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    missed = fresh = accesses = 0
    for number, ids in enumerate(_shuffled(rows)):
        found = ids.tolist()
        if number >= skip:
            missed += sum(row not in kept for row in found)
            fresh += sum(row not in seen for row in found)
            accesses += len(found)
        seen.update(found)
        for row in found:
            kept[row] = None
            kept.move_to_end(row)
        while len(kept) > lines:
            kept.popitem(last=False)
    return {"rate_seen": missed / accesses, "first_touches": fresh / accesses, "conflicts": 0.0}


def stored(rows: Rows, lines: int, ways: int, skip: int, total: int) -> dict[str, float]:
    """The same of the store that trains, asked for a batch at a time, each released before the next."""
    spec = StoreSpec(
        "rows", total, 1, torch.float32, Optimizer("sgd"), initial=lambda some: torch.zeros(len(some), 1),
        whole=lambda: torch.zeros(total, 1), table_of=lambda row: "rows",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallCache)  # a sweep over sizes has such caches on purpose
        store = CachedStore(HostTier(spec), lines, max(map(len, rows)), ways)
    before: dict[str, int] = {}
    for number, ids in enumerate(rows):
        if number == skip:
            before = store.stats()
        store.release(store.prepare(torch.from_numpy(ids), number), dirty=True)
    after = store.stats()
    moved = {
        name: after[name] - before[name] for name in ("rows", "misses", "overflow_hits", "first_touches", "conflicts")
    }
    # a row in an overflow line has no line: for a cache without them it would be a miss
    return {
        "rate_seen": (moved["misses"] + moved["overflow_hits"]) / moved["rows"],
        "first_touches": moved["first_touches"] / moved["rows"],
        "conflicts": moved["conflicts"] / moved["rows"],
    }
