"""Where tables behind a host link go, and how much of each the devices cache: both chosen by the tables' miss curves.

The rows that a shard fetches are part of its cost, so ranks are balanced in what they wait for, not in look-ups alone;
and a rank's memory goes to the shards whose misses it saves most. A table whose cache would save nothing is whole on
its device. In turn:

    size     water-filling over all devices' memory together
    split    a table into row shards, until one costs at most half (or less) of a rank's share and of its memory
    place    shards by falling cost, each on the rank of the least cost so far that has room
    size     water-filling again, rank by rank: what is over is spent, what is short is saved where it costs least
    improve  shards of the costliest rank change places with those of others, while that helps

A rank takes memory + max(0, link - hidden) seconds a step: `memory` to read and update rows on the device, `link` for
misses, both ways, of which `hidden` seconds lie under the dense part. A plan rates as its costliest rank.

The body of the paper that defines Locality-Aware Sharding was not at hand: this is a reconstruction from what is public
of it, a miss cost in the shard's cost (TorchRec's `prefetch_compute`) and sizes by miss curves. There `hidden` is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comm.plan import Placement, Plan
from kernels import TableSpec

from .miss_curve import MissCurve
from .sizing.demand import Demand, Sizing
from .sizing.marginal import marginal

LINE_STATE = 25
"""Bytes beside a line: tag and stamp 8 each, lock 4, dirty bit 1, row of an overflow line 4 (models/cache_size.py)."""
FIRST = ((1.0, 2), (0.9, 4))
"""What planning begins from: share of the memory that the first sizes spend, shards a rank should hold at the least."""
SWAPS, OTHERS, TRIED = 200, 8, 12
"""Most changes of rank after the first placement; of each, ranks looked at, and exchanges sized before giving up."""


@dataclass(frozen=True)
class Described:
    """A table as the planner knows it: its `lookups` a global batch, and the miss curve of its distinct rows.

    `state_bytes` of the optimizer for a row travel and are cached with it.
    """

    spec: TableSpec
    lookups: float
    curve: MissCurve
    state_bytes: float = 4.0

    @property
    def row_bytes(self) -> float:
        """Bytes of a row and its states."""
        return self.spec.dim * self.spec.dtype.itemsize + self.state_bytes

    def demand(self, parts: int = 1) -> Demand:
        """What one of `parts` row shards asks of a device, with overflow lines for every row of two batches."""
        curve = self.curve.part(parts)
        line, rows = self.row_bytes + LINE_STATE, self.spec.rows / parts
        overflow = 2 * curve.accesses * line
        return Demand(self.spec.name, rows, line, overflow, rows * self.row_bytes, 2 * self.row_bytes, curve)

    def memory_bytes(self) -> float:
        """Device memory read and written in a step: a row for each look-up, two and their gradients for each update."""
        return self.row_bytes * (self.lookups + 3 * self.curve.accesses)


@dataclass(frozen=True)
class Devices:
    """`ranks` devices with `bytes` each for lines, at `bandwidth` bytes/s, behind a link of `link` bytes/s a rank.

    `duplex`: the link carries both directions at once. `hidden`: seconds of it that lie under the dense part.
    """

    ranks: int
    bytes: float
    bandwidth: float
    link: float
    duplex: bool = False
    hidden: float = 0.0


@dataclass(frozen=True)
class Shard:
    """Part `part` of `parts` of table `table` (its number), by rows."""

    table: int
    part: int
    parts: int


@dataclass(frozen=True)
class LocalityPlan:
    """`shards` by rank, and how many rows of each are cached there: a shard's rows all, if it is whole on the device.

    `seconds` [ranks] of a step, `link_seconds` of them on the link; `memory` [ranks] bytes; `left` says by rank what is
    not spent and why.
    """

    plan: Plan
    shards: tuple[tuple[Shard, ...], ...]
    cached: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]
    link_seconds: tuple[float, ...]
    memory: tuple[float, ...]
    left: tuple[str, ...]

    @property
    def rating(self) -> float:
        """Seconds of the costliest rank."""
        return max(self.seconds)


@dataclass
class _Rank:
    """What a rank holds so far, and how it rates."""

    shards: list[Shard]
    sizing: Sizing
    seconds: float
    link: float
    bytes: float


Sizer = Callable[[Sequence[Demand], float], Sizing]


class Locality:
    """The planner for `tables` on `devices`; `plan` is what it is for, `place` a step of it for sizes of one's own."""

    def __init__(self, tables: Sequence[Described], devices: Devices) -> None:
        self.tables, self.devices = tuple(tables), devices
        self.demands = tuple(table.demand() for table in tables)
        self._demands: dict[tuple[int, int], Demand] = {}

    @property
    def budget(self) -> float:
        """Bytes of all devices."""
        return self.devices.ranks * self.devices.bytes

    def plan(self, size: Sizer = marginal) -> LocalityPlan:
        """Sizes and places, improved in turns: the best of what each of FIRST leads to.

        ValueError if the least sizes fit no placement.
        """
        found = []
        for spent, pieces in FIRST:
            budget = max(spent * self.budget, min(self.budget, self._least_bytes))
            found.append(self.place(size(self.demands, budget), resize=True, improve=True, pieces=pieces))
        placed = [plan for plan in found if plan is not None]
        if not placed:
            raise ValueError(
                f"expected tables whose least caches fit {self.devices.ranks} devices of {self.devices.bytes:.0f} "
                "bytes, given none that does: use more devices or more memory in each"
            )
        return min(placed, key=lambda plan: plan.rating)

    @property
    def _least_bytes(self) -> float:
        return sum(d.bytes(d.start) for d in self.demands)

    def place(
        self, sizing: Sizing, aware: bool = True, resize: bool = False, improve: bool = False, pieces: int = 2
    ) -> LocalityPlan | None:
        """Shards of tables of these sizes on ranks; None if one has no room on any.

        `aware`: misses count in a shard's cost; without, ranks are balanced by look-ups alone. `resize`: each rank's
        memory is shared out anew. `improve`: shards then change ranks while the costliest one gains. `pieces`: a shard
        is at most one of so many that a rank holds.
        """
        shards = self._split(sizing, aware, pieces)
        ranks = self._pack(shards, resize)
        if ranks is None:
            return None
        held = [self._rank([shard for shard, _ in rank], None if resize else [c for _, c in rank]) for rank in ranks]
        if improve:
            self._improve(held)
        return self._result(held)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _split(self, sizing: Sizing, aware: bool, pieces: int) -> list[tuple[float, Shard, float]]:
        """(cost, shard, cached rows) of every shard, the costliest first."""
        costs = [self._seconds(n, 1, cached, aware) for n, cached in enumerate(sizing.cached)]
        share = sum(costs) / self.devices.ranks
        found = []
        for number, (cost, cached) in enumerate(zip(costs, sizing.cached, strict=True)):
            parts, size = 1, self.demands[number].bytes(cached)
            while parts < self.devices.ranks and (
                cost * pieces > share * parts or size * pieces > self.devices.bytes * parts
            ):
                parts = min(2 * parts, self.devices.ranks)
            parts = min(parts, self.tables[number].spec.rows)
            found += [(cost / parts, Shard(number, part, parts), cached / parts) for part in range(parts)]
        return sorted(found, key=lambda item: (-item[0], item[1].table, item[1].part))

    def _pack(
        self, shards: Sequence[tuple[float, Shard, float]], resize: bool
    ) -> list[list[tuple[Shard, float]]] | None:
        """Shards and cached rows by rank; by falling cost, or if that leaves one without room, by falling bytes."""
        by_bytes = sorted(shards, key=lambda s: (-self._demand(s[1].table, s[1].parts).bytes(s[2]), s[1].table))
        return self._pack_in(shards, resize) or self._pack_in(by_bytes, resize)

    def _pack_in(
        self, order: Sequence[tuple[float, Shard, float]], resize: bool
    ) -> list[list[tuple[Shard, float]]] | None:
        """Each shard on the rank of the least cost so far that has room. What will be sized anew (`resize`) may take
        more than there is, where its least size fits, if no rank has room for it as it is."""
        ranks: list[list[tuple[Shard, float]]] = [[] for _ in range(self.devices.ranks)]
        tables: list[set[int]] = [set() for _ in ranks]
        cost, used, least = ([0.0] * len(ranks) for _ in range(3))
        for load, shard, cached in order:
            demand = self._demand(shard.table, shard.parts)
            size, smallest = demand.bytes(cached), demand.bytes(demand.start)
            free = [r for r in range(len(ranks)) if shard.table not in tables[r]]
            fit = [r for r in free if used[r] + size <= self.devices.bytes]
            if not fit and resize:
                fit = [r for r in free if least[r] + smallest <= self.devices.bytes]
            if not fit:
                return None
            chosen = min(fit, key=lambda r: (cost[r], r))
            cost[chosen] += load
            used[chosen] += size
            least[chosen] += smallest
            ranks[chosen].append((shard, cached))
            tables[chosen].add(shard.table)
        return ranks

    def _improve(self, ranks: list[_Rank]) -> None:
        """Move or exchange one shard of the costliest rank at a time, as long as both ranks end below its cost.

        Exchanges are tried in the order of what they would come to if sizes stayed.
        """
        for _ in range(SWAPS):
            worst = max(range(len(ranks)), key=lambda r: ranks[r].seconds)
            others = sorted((r for r in range(len(ranks)) if r != worst), key=lambda r: ranks[r].seconds)[:OTHERS]
            mine, tried = self._costs(ranks[worst]), []
            for other in others:
                theirs = self._costs(ranks[other])
                for give, out in enumerate(mine):
                    for take, back in [(None, 0.0), *enumerate(theirs)]:
                        after = max(ranks[worst].seconds - out + back, ranks[other].seconds + out - back)
                        tried.append((after, other, give, take))
            tried.sort(key=lambda item: (item[0], item[1], item[2], -1 if item[3] is None else item[3]))
            for after, other, give, take in tried[:TRIED]:
                pair = self._exchanged(ranks[worst], ranks[other], give, take) if after < ranks[worst].seconds else None
                if pair and max(p.seconds for p in pair) < ranks[worst].seconds * (1 - 1e-6):
                    ranks[worst], ranks[other] = pair
                    break
            else:
                return

    def _costs(self, rank: _Rank) -> list[float]:
        """Seconds of each of the rank's shards, at its present size."""
        demands = [self._demand(s.table, s.parts) for s in rank.shards]
        links = [self._link_seconds(float(d.moved(c))) for d, c in zip(demands, rank.sizing.cached, strict=True)]
        return [self._memory_seconds(s) + link for s, link in zip(rank.shards, links, strict=True)]

    def _exchanged(self, a: _Rank, b: _Rank, give: int, take: int | None) -> tuple[_Rank, _Rank] | None:
        mine, theirs = list(a.shards), list(b.shards)
        given = mine.pop(give)
        taken = [] if take is None else [theirs.pop(take)]
        tables = {shard.table for shard in mine}, {shard.table for shard in theirs}
        if given.table in tables[1] or any(shard.table in tables[0] for shard in taken):
            return None
        mine, theirs = mine + taken, [*theirs, given]
        if any(self._least(side) > self.devices.bytes for side in (mine, theirs)):
            return None
        return self._rank(mine, None), self._rank(theirs, None)

    # -- one rank

    def _rank(self, shards: list[Shard], cached: Sequence[float] | None) -> _Rank:
        """Sized anew within the device's memory, unless `cached` says how."""
        demands = [self._demand(shard.table, shard.parts) for shard in shards]
        if not demands:
            return _Rank([], Sizing(()), 0.0, 0.0, 0.0)
        sizing = marginal(demands, self.devices.bytes) if cached is None else Sizing(tuple(cached))
        link = self._link_seconds(sizing.moved(demands))
        seconds = sum(self._memory_seconds(s) for s in shards) + max(0.0, link - self.devices.hidden)
        return _Rank(shards, sizing, seconds, link, sizing.bytes(demands))

    def _least(self, shards: Sequence[Shard]) -> float:
        demands = [self._demand(shard.table, shard.parts) for shard in shards]
        return sum(d.bytes(d.start) for d in demands)

    def _demand(self, table: int, parts: int) -> Demand:
        key = table, parts
        if key not in self._demands:
            self._demands[key] = self.tables[table].demand(parts)
        return self._demands[key]

    def _seconds(self, table: int, parts: int, cached: float, aware: bool) -> float:
        link = self._link_seconds(float(self._demand(table, parts).moved(cached))) if aware else 0.0
        return self._memory_seconds(Shard(table, 0, parts)) + link

    def _memory_seconds(self, shard: Shard) -> float:
        return self.tables[shard.table].memory_bytes() / shard.parts / self.devices.bandwidth

    def _link_seconds(self, moved: float) -> float:
        return moved / self.devices.link / (2 if self.devices.duplex else 1)

    def _result(self, ranks: Sequence[_Rank]) -> LocalityPlan:
        places: dict[int, dict[int, int]] = {}
        for rank, held in enumerate(ranks):
            for shard in held.shards:
                places.setdefault(shard.table, {})[shard.part] = rank
        placements = tuple(
            Placement(table.spec.name, "unique", tuple(places[n][part] for part in sorted(places[n])))
            for n, table in enumerate(self.tables)
        )
        demands = [[self._demand(s.table, s.parts) for s in held.shards] for held in ranks]
        return LocalityPlan(
            Plan(self.devices.ranks, tuple(table.spec for table in self.tables), placements),
            tuple(tuple(held.shards) for held in ranks),
            tuple(held.sizing.cached for held in ranks),
            tuple(held.seconds for held in ranks),
            tuple(held.link for held in ranks),
            tuple(held.bytes for held in ranks),
            tuple(held.sizing.left(d, self.devices.bytes) for held, d in zip(ranks, demands, strict=True)),
        )
