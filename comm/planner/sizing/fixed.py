"""One load factor for all tables: the baseline that knows nothing."""

from collections.abc import Sequence

from .demand import Demand, Sizing


def fixed(demands: Sequence[Demand], load_factor: float) -> Sizing:
    """`load_factor` of every table's rows, at least its least; 1 is every table whole."""
    if not 0.0 <= load_factor <= 1.0:
        raise ValueError(f"load_factor: expected 0 to 1, given {load_factor}")
    return Sizing(tuple(min(d.rows, max(d.least, load_factor * d.rows)) for d in demands))


def largest_fixed(demands: Sequence[Demand], budget: float) -> Sizing:
    """The largest load factor, to a part in 2^40, whose sizes fit `budget`; ValueError if not even 0 does."""
    return largest(demands, budget, lambda factor: fixed(demands, factor))


def largest(demands: Sequence[Demand], budget: float, size) -> Sizing:  # noqa: ANN001 (factor in [0, 1] -> Sizing)
    """`size` at the largest factor in [0, 1] whose sizes fit `budget`, by bisection.

    A whole table may take less than its cache just below; so 1 is tried first.
    """
    if size(1.0).bytes(demands) <= budget:
        return size(1.0)
    low, high, found = 0.0, 1.0, size(0.0)
    if found.bytes(demands) > budget:
        raise ValueError(f"expected at least {found.bytes(demands):.0f} bytes of device memory, given {budget:.0f}")
    for _ in range(40):
        middle = (low + high) / 2
        tried = size(middle)
        if tried.bytes(demands) <= budget:
            low, found = middle, tried
        else:
            high = middle
    return found
