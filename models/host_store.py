"""No cache: every access crosses the link. The bound that a cache is measured against."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from comm.store import Lease
from kernels import Unique, unique_ids

from .cache_counters import CacheCounters
from .host_tier import HostTier
from .link import Link


@dataclass(frozen=True)
class _Access(Lease):
    distinct: int


class HostStore:
    """The rows of `tier`, read and written in place over `link`.

    A row is charged each time it is asked for (a kernel that reads host memory reads every row of every bag), and once
    each way, states included, for its update. A row moved is a byte count only: on this machine both tiers are memory.
    """

    slots_are_rows = True

    def __init__(self, tier: HostTier, link: Link | None = None) -> None:
        if tier.values.dtype != tier.spec.dtype or not tier.eager:
            raise ValueError(
                f"{tier.spec.label!r}: expected an eager tier of {tier.spec.dtype} (kernels read it in place), given "
                f"{tier.values.dtype}, eager={tier.eager}"
            )
        self.tier, self.link, self.optimizer = tier, link, tier.spec.optimizer
        self.values, self.states = tier.values, tier.states
        self.counters = CacheCounters()

    def prepare(self, rows: Tensor, step: int) -> Lease:
        """The rows themselves, after the time that reading them takes."""
        distinct = len(unique_ids(rows).rows)
        self.counters.leases += 1
        self.counters.batches += 1
        self.counters.rows += distinct
        size = self.values.shape[1] * self.values.itemsize
        self._move((len(rows), len(rows) * size), (0, 0))
        return _Access(rows, distinct)

    def settle(self, lease: Lease) -> Lease:
        """Rows do not move."""
        return lease

    def release(self, lease: Lease, dirty: bool) -> None:
        """`dirty`: after the time that the update took on the link."""
        assert isinstance(lease, _Access)
        if dirty:
            moved = lease.distinct, lease.distinct * self.tier.row_bytes
            self._move(moved, moved)
            self.counters.write_backs += lease.distinct
        self.counters.leases -= 1

    def _move(self, inward: tuple[int, int], outward: tuple[int, int]) -> None:
        self.counters.bytes_in += inward[1]
        self.counters.bytes_out += outward[1]
        if self.link is not None:
            with self.link.transfer(inward, outward):
                pass

    def prefetch(self, rows: Tensor, coming: Sequence[Tensor] = (), index: Unique | None = None) -> None:
        """There is nowhere to bring them."""

    def flush(self) -> None:
        """Rows are where they live."""

    def read(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Copies of values and states of `rows`."""
        return self.values[rows], *(state[rows] for state in self.states)

    def write(self, rows: Tensor, arrays: Sequence[Tensor]) -> None:
        """Set values and states of `rows`."""
        for mine, given in zip((self.values, *self.states), arrays, strict=True):
            mine[rows] = given

    def stats(self) -> dict[str, int]:
        """See `CacheCounters`; every row is a miss."""
        return self.counters.as_dict()
