"""HugeCTR's planner: `auto` places shards on ranks, `hier_auto` on nodes, each shard then in rows over its node.

Source: NVIDIA-Merlin/HugeCTR, benchmarks/embedding_collection/hugectr/sharding/{planner,generate_plan}.py (as which
EMBark's planner is published), rebuilt from what it does:

    clusters    the `replicated` smallest tables (bytes up, hotness down) everywhere; of the others the `unique` first
                ones (hotness up, bytes up) in rows over all ranks, de-duplicated; the rest pooled, and searched
    cost        of a bucket (rank or node): 4 * batch * sum(hotness * width / rows' parts), a look-up's bytes read and
                written in fp32 over those sent in fp16, plus ratio * batch * sum(width), ratio = memory over network
                bandwidth; in a node the first over its ranks, the second over its ranks times 3/2, for the hop inside
    search      at the start every table in rows over all buckets; then 20 rounds: shards by descending cost to the
                cheapest bucket that has room and nothing of that table; then double the split of the table with the
                largest hotness * width + 80 * width; a shard without room doubles its table's instead; the cheapest
                round wins

Left out are its defects: with one of both splits possible it took the other one; without columns it split by columns
when memory ran out; it failed when no table was left to place; it counted memory in 10^9 and 2^30 bytes at once; ties
fell as the sort did (here by table, part, column, bucket). What its model leaves out is left out here too: keys,
uniqueness, latency, overlap, buffers, and the time of replicated and unique tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comm.plan import Placement, Plan
from comm.wire import Wire
from kernels import TableSpec

ROUNDS = 20
WORK = 4.0
"""Bytes of memory traffic a look-up over bytes sent: 8 / 2."""
SEND = 80.0
"""Weight of a row's width against hotness * width in the choice of what to split."""
HOP = 1.5
"""Of a node's sends, for the hop inside."""
NARROW = 32
"""Columns that are not cut further."""


@dataclass(frozen=True)
class Limits:
    """What the planner is told of the cluster: `memory` bytes a rank for tables, `copies` numbers kept for each weight
    (2: a state of the weights' size), `ratio` of memory to network bandwidth, `batch` samples.
    """

    nodes: int
    ranks_per_node: int
    memory: float
    copies: float
    ratio: float
    batch: int

    @property
    def world(self) -> int:
        """Ranks."""
        return self.nodes * self.ranks_per_node


class OutOfMemory(ValueError):
    """The planner's own model found no plan that fits."""


def auto(
    tables: Sequence[TableSpec],
    hotness: Sequence[float],
    limits: Limits,
    replicated: int = 0,
    unique: int = 0,
    columns: bool = False,
    pooled: str = "gridwise",
    wire: Wire = "table",
) -> Plan:
    """Buckets are ranks. `replicated` and `unique` are the published thresholds, `columns` allows column splits."""
    return _planned(tables, hotness, limits, replicated, unique, columns, pooled, wire, 1)


def hier_auto(
    tables: Sequence[TableSpec],
    hotness: Sequence[float],
    limits: Limits,
    replicated: int = 0,
    unique: int = 0,
    columns: bool = False,
    pooled: str = "hierarchical",
    wire: Wire = "table",
) -> Plan:
    """Buckets are nodes, of which it needs two. Else as `auto`."""
    if limits.nodes < 2:
        raise ValueError(f"hier_auto: expected at least 2 nodes, given {limits.nodes}")
    return _planned(tables, hotness, limits, replicated, unique, columns, pooled, wire, limits.ranks_per_node)


def _planned(
    tables: Sequence[TableSpec],
    hotness: Sequence[float],
    limits: Limits,
    replicated: int,
    unique: int,
    columns: bool,
    pooled: str,
    wire: Wire,
    width: int,
) -> Plan:
    """`width` ranks a bucket."""
    size = [table.bytes * limits.copies for table in tables]
    everywhere = sorted(range(len(tables)), key=lambda t: (size[t], -hotness[t], t))[:replicated]
    rest = sorted((t for t in range(len(tables)) if t not in everywhere), key=lambda t: (hotness[t], size[t], t))
    distinct, placed = rest[:unique], sorted(rest[unique:])
    memory = limits.memory - sum(size[t] for t in everywhere) - sum(size[t] for t in distinct) / limits.world
    if memory < 0:
        raise OutOfMemory(f"replicated={replicated}, unique={unique}: {-memory:.4g} bytes a rank too many")
    found = _Search([tables[t] for t in placed], [hotness[t] for t in placed], limits, memory, width, columns).run()
    at = {t: found[i] for i, t in enumerate(placed)}

    def place(t: int, table: TableSpec) -> Placement:
        if t in everywhere:
            return Placement(table.name, "replicated_dense", wire=wire)
        if t in distinct:
            return Placement(table.name, "unique", tuple(range(limits.world)), wire=wire)
        buckets, blocks = at[t]
        ranks = tuple(bucket * width + place for bucket in buckets for place in range(width))
        return Placement(table.name, pooled, ranks, columns=blocks, wire=wire)

    return Plan(limits.world, tuple(tables), tuple(place(t, table) for t, table in enumerate(tables)))


Split = tuple[np.ndarray, np.ndarray]
"""Row parts and column blocks of each table, over buckets."""
Placed = list[tuple[list[int], int]]
"""Of each table its buckets, ascending, and its column blocks."""


class _Search:
    """The 20 rounds."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        hotness: Sequence[float],
        limits: Limits,
        memory: float,
        width: int,
        columns: bool,
    ) -> None:
        self.dims = np.array([float(table.dim) for table in tables])
        self.hotness = np.array(hotness, dtype=float)
        self.bytes = np.array([table.bytes * limits.copies for table in tables])
        self.buckets, self.memory, self.columns = limits.world // width, memory * width, columns
        self.read = WORK * limits.batch / width
        self.send = limits.ratio * limits.batch * (HOP / width if width > 1 else 1.0)
        self.each = self.hotness * self.dims  # numbers looked up a sample

    def run(self) -> Placed:
        """The cheapest round's."""
        if not len(self.dims):
            return []
        everywhere = (np.full(len(self.dims), self.buckets), np.ones(len(self.dims), dtype=int))
        if self.bytes.sum() / self.buckets > self.memory:
            raise OutOfMemory(
                f"even in rows over everything the tables take {self.bytes.sum() / self.buckets:.4g} bytes a bucket, "
                f"which has {self.memory:.4g}"
            )
        best, found = self._cost(everywhere).sum(), [(list(range(self.buckets)), 1)] * len(self.dims)
        split = (np.ones(len(self.dims), dtype=int), np.ones(len(self.dims), dtype=int))
        for _ in range(ROUNDS):
            placed, cost, stuck = self._greedy(split)
            if stuck is None and cost < best:
                best, found = cost, placed
            following = self._after(split, stuck)
            if following is None:
                break
            split = following
        return found

    def _cost(self, split: Split) -> np.ndarray:
        """Of one shard of each table."""
        rows, blocks = split
        return self.read * self.each / (rows * blocks) + self.send * self.dims / blocks

    def _greedy(self, split: Split) -> tuple[Placed, float, int | None]:
        """Buckets of every table, the largest bucket's cost, and the table for which there was no room, if any."""
        rows, blocks = split
        count, each = rows * blocks, self._cost(split)
        held, cost, used = [[] for _ in self.dims], np.zeros(self.buckets), np.zeros(self.buckets)
        for table in np.lexsort((np.arange(len(each)), -each)):
            bytes_ = self.bytes[table] / count[table]
            for _ in range(count[table]):
                taken = used + bytes_ > self.memory
                taken[held[table]] = True
                if taken.all():
                    return [], float(cost.max()), int(table)
                bucket = int(np.where(taken, np.inf, cost).argmin())
                held[table].append(bucket)
                cost[bucket] += each[table]
                used[bucket] += bytes_
        return [(sorted(h), int(c)) for h, c in zip(held, blocks, strict=True)], float(cost.max()), None

    def _after(self, split: Split, stuck: int | None) -> Split | None:
        """The split of the next round, None if nothing can be split."""
        rows, blocks = split
        can = rows * blocks * 2 <= self.buckets
        if stuck is None:
            order = -(self.each / (rows * blocks) + SEND * self.dims / blocks)
            candidates = [int(t) for t in np.lexsort((np.arange(len(order)), order)) if can[t]]
        else:
            candidates = [stuck] if can[stuck] else []
        if not candidates:
            return None
        table = candidates[0]
        by_rows = (_doubled(rows, table), blocks)
        width = self.dims[table] / blocks[table]
        if not self.columns or width % 2 or width <= NARROW:
            return by_rows
        by_columns = (rows, _doubled(blocks, table))
        (_, cost_rows, stuck_rows), (_, cost_columns, stuck_columns) = self._greedy(by_rows), self._greedy(by_columns)
        # what fits goes first, then what is cheaper, then rows
        keys = [(stuck_rows is not None, cost_rows), (stuck_columns is not None, cost_columns)]
        return by_columns if keys[1] < keys[0] else by_rows


def _doubled(counts: np.ndarray, table: int) -> np.ndarray:
    """`counts` with that of `table` twice as large."""
    doubled = counts.copy()
    doubled[table] *= 2
    return doubled
