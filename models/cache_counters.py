"""What a cache counts."""

from dataclasses import asdict, dataclass


@dataclass
class CacheCounters:
    """Since the start, of distinct rows a batch unless said otherwise.

    `leases`: out now. `rows` asked for, of which `hits` were in the cache's lines and `overflow_hits` in an overflow
    line; the others, misses, came over the link or were made: `first_touches` of them had never been written.
    `conflicts`: rows that got no line and live in an overflow line for this batch. `evictions`: rows that lost their
    line, of which those changed are among the `write_backs`, as are those of overflow lines and flushes. `bytes_in` to
    the device, `bytes_out` from it, states included. `stall_ns`: nanoseconds in `prepare` for rows not prefetched.
    """

    leases: int = 0
    batches: int = 0
    rows: int = 0
    hits: int = 0
    overflow_hits: int = 0
    first_touches: int = 0
    conflicts: int = 0
    evictions: int = 0
    write_backs: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    stall_ns: int = 0

    @property
    def misses(self) -> int:
        """Rows that were on the device nowhere."""
        return self.rows - self.hits - self.overflow_hits

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return {**asdict(self), "misses": self.misses}
