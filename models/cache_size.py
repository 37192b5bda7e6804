"""Whether a cache of some size can be had, and what a small one will cost: said before anything is allocated."""

import warnings

from .link import Link
from .memory import require_memory
from .tier import Tier, state_bytes

LINE_STATE = 21
"""Bytes beside a line's row: tag and stamp 8 each, lock 4, dirty 1; of an overflow line no more."""


class SmallCache(UserWarning):
    """A cache cannot hold the rows of one batch: every batch will have conflict misses."""


def check_cache(tier: Tier, sets: int, ways: int, batch_rows: int, link: Link | None) -> None:
    """Raise ValueError for a cache that cannot be, MemoryError for one that does not fit; warn of one smaller than a
    batch, with the least that it will move.
    """
    label = tier.spec.label
    if sets < 1 or ways < 1:
        raise ValueError(f"{label!r}: expected at least one set of at least one line, given {sets} sets x {ways} ways")
    if batch_rows < 1:
        raise ValueError(f"{label!r}: expected batch_rows >= 1 (most distinct rows of a batch), given {batch_rows}")
    lines = sets * ways
    row = tier.spec.dim * tier.spec.dtype.itemsize + state_bytes(tier.spec)
    require_memory((lines + 2 * batch_rows) * (row + LINE_STATE), f"cache of {label!r}", touched=False)
    if lines < batch_rows:
        extra = batch_rows - lines
        cost = f"{extra} rows ({extra * tier.row_bytes:,} bytes) each way a batch"
        if link is not None:
            seconds = link.seconds(extra, extra * tier.row_bytes)
            cost += f", {1e3 * seconds * (1 if link.duplex else 2):.3g} ms of the link"
        warnings.warn(
            SmallCache(
                f"cache of {label!r}: {lines} lines hold less than a batch of {batch_rows} distinct rows; at least "
                f"{cost} will not find a line"
            ),
            stacklevel=3,
        )
