"""What sizing knows of a table, and what it decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..miss_curve import Floats, MissCurve, lower_hull


@dataclass(frozen=True, eq=False)
class Demand:
    """One table, or one shard of one. Bytes are of device memory, but for `move_bytes`.

    A cache of c rows takes `fixed_bytes` + `line_bytes` * c: the overflow lines that two batches may need, and a row's
    value, states, tag, stamp and lock. The whole table takes `whole_bytes` and never misses. `move_bytes`: what crosses
    the link for a miss; once warm a row out for each row in. `least`: fewest rows of a cache.
    """

    name: str
    rows: float
    line_bytes: float
    fixed_bytes: float
    whole_bytes: float
    move_bytes: float
    curve: MissCurve
    least: float = 0.0

    def bytes(self, cached: float) -> float:
        """Device bytes of a cache of so many rows; all of them: of the whole table."""
        return self.whole_bytes if cached >= self.rows else self.fixed_bytes + self.line_bytes * cached

    def moved(self, cached: Floats | float) -> Floats:
        """Link bytes a batch with so many rows cached; none for a whole table."""
        return (np.asarray(cached) < self.rows) * (self.move_bytes * self.curve.at(cached))

    @cached_property
    def start(self) -> float:
        """Rows of the cheapest choice: the least cache, or the whole table where that takes no more memory."""
        smallest = min(self.least, self.rows)
        return self.rows if self.whole_bytes <= self.bytes(smallest) else smallest

    @cached_property
    def options(self) -> tuple[Floats, Floats, Floats]:
        """(rows, bytes, moved) of every size worth asking for, [K] each, by bytes: the points of the curve from `least`
        up that take less than the whole table, and the whole table last."""
        inner = self.curve.sizes[(self.curve.sizes > self.least) & (self.curve.sizes < self.rows)]
        cached = np.concatenate([[min(self.least, self.rows)], inner])
        bytes_ = self.fixed_bytes + self.line_bytes * cached
        cached, bytes_ = cached[bytes_ < self.whole_bytes], bytes_[bytes_ < self.whole_bytes]
        moved = self.move_bytes * self.curve.at(cached)
        return np.append(cached, self.rows), np.append(bytes_, self.whole_bytes), np.append(moved, 0.0)

    @cached_property
    def steps(self) -> list[tuple[float, int, int]]:
        """(bytes moved more a byte of memory, option before, option after) along the lower convex hull of the options
        from `start` up: steepest first, none that saves nothing."""
        cached, bytes_, moved = self.options
        first = int(np.searchsorted(cached, self.start))
        corners = [first + c for c in lower_hull(bytes_[first:], moved[first:])]
        slopes = [(moved[b] - moved[a]) / (bytes_[b] - bytes_[a]) for a, b in pairwise(corners)]
        return [(float(s), a, b) for s, (a, b) in zip(slopes, pairwise(corners), strict=True) if s < 0]


@dataclass(frozen=True)
class Sizing:
    """Rows of each demand that are cached, in order; all of them means the whole table is on the device, uncached."""

    cached: tuple[float, ...]

    def bytes(self, demands: Sequence[Demand]) -> float:
        """Device bytes of all of them."""
        return sum(d.bytes(c) for d, c in zip(demands, self.cached, strict=True))

    def moved(self, demands: Sequence[Demand]) -> float:
        """Link bytes a batch of all of them."""
        return float(sum(d.moved(c) for d, c in zip(demands, self.cached, strict=True)))

    def left(self, demands: Sequence[Demand], budget: float) -> str:
        """What of `budget` is not spent, and why, in words."""
        rest = budget - self.bytes(demands)
        short = [(d, c) for d, c in zip(demands, self.cached, strict=True) if c < d.rows]
        if not short:
            return f"{rest:.0f} bytes left: every table is whole on the device"
        if not any(d.moved(c) > 0 for d, c in short):
            return f"{rest:.0f} bytes left: no cache that is left would miss less if it were larger"
        smallest = min(min(d.line_bytes, d.whole_bytes - d.bytes(c)) for d, c in short)
        if rest < smallest:
            return f"{rest:.0f} bytes left: less than the {smallest:.0f} of the next row"
        return f"{rest:.0f} bytes left: this rule gives them to no table"


def require_start(demands: Sequence[Demand], budget: float) -> Sizing:
    """The least sizes; ValueError if they do not fit, with the needed and the given bytes."""
    start = Sizing(tuple(d.start for d in demands))
    need = start.bytes(demands)
    if need > budget:
        raise ValueError(
            f"expected at least {need:.0f} bytes of device memory for the least caches of {len(demands)} tables, given "
            f"{budget:.0f}: use more devices, smaller batches or fewer rows at the least"
        )
    return start
