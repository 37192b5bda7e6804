"""A load factor in proportion to the table's bytes: memory to where the bytes are."""

from collections.abc import Sequence

from .demand import Demand, Sizing
from .fixed import largest


def proportional(demands: Sequence[Demand], budget: float) -> Sizing:
    """The largest table gets the largest load factor, at most 1; half its bytes, half its load factor. Fills `budget`.

    Load factors go on growing in proportion after the largest one is 1. ValueError if the least sizes do not fit.
    """
    weights = [d.rows * d.line_bytes for d in demands]
    top, bottom = max(weights), min(weights)

    def size(factor: float) -> Sizing:
        reach = factor * top / bottom  # at 1 the smallest table is whole too
        return Sizing(
            tuple(
                min(d.rows, max(d.least, min(1.0, reach * w / top) * d.rows))
                for d, w in zip(demands, weights, strict=True)
            )
        )

    return largest(demands, budget, size)
