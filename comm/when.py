"""When values travel, as a value: how far ahead rows, how far behind gradients, in how many parts."""

from dataclasses import dataclass
from typing import Literal

from .last_touch import KeySets, LastTouch, Stamps


@dataclass(frozen=True)
class When:
    """When values travel (where they go is the plan's): safe rows `depth` batches ahead (`prefetch`), gradients that
    the next batch does not read one batch behind (`deferral`), the rest in `parts` of the batch.

    `window`: most rows that an owner lets travel beside one step, early and late together (None: all that may). It
    keeps what runs beside a step from outlasting the step's computing. `noted`: how owners note what was asked for,
    see `last_touch.py`; stamps may take `stamp_bytes` a rank.
    """

    prefetch: bool = True
    deferral: bool = True
    depth: int = 1
    parts: int = 1
    window: int | None = None
    noted: Literal["stamps", "key_sets"] = "stamps"
    stamp_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, given {getattr(self, name)}")
        for name in ("window", "stamp_bytes"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise ValueError(f"{name}: expected at least 0 or None, given {getattr(self, name)}")
        if self.noted not in ("stamps", "key_sets"):
            raise ValueError(f"noted: expected 'stamps' or 'key_sets', given {self.noted!r}")

    def last_touch(self, rows: int) -> LastTouch:
        """What notes the touches of an array of `rows` rows. Raises ValueError if stamps do not fit `stamp_bytes`."""
        if self.noted == "key_sets":
            return KeySets(self.depth)
        if self.stamp_bytes is not None and 4 * rows > self.stamp_bytes:
            raise ValueError(
                f"stamps of {rows:,} rows: expected at most {self.stamp_bytes:,} bytes, needs {4 * rows:,}: raise "
                "stamp_bytes, spread the table over more ranks, or note the key sets of the last batches "
                "(noted='key_sets': 8 bytes for every row asked for, and a search a batch)"
            )
        return Stamps(rows, self.depth)


def part_sizes(batch: int, parts: int) -> list[int]:
    """`batch` samples in `parts` parts, in order, the first ones taking one more."""
    return [batch // parts + (part < batch % parts) for part in range(parts)]
