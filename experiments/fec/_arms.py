"""The arms of this group: where rows live and how they travel (the plan's strategy), and when (`When`)."""

from dataclasses import dataclass

from comm.plan import Placement, Plan
from comm.planner.boundary import Timing
from comm.when import When
from kernels import TableSpec


@dataclass(frozen=True)
class Arm:
    """A strategy for every table and, if its steps reach into each other, `when`; `tier` asks for a hot set."""

    name: str
    strategy: str
    when: When | None = None

    @property
    def tier(self) -> bool:
        """Whether popular rows have copies."""
        return self.strategy.startswith("hot_cold")

    def timing(self, window_s: float) -> Timing:
        """The same for the boundary's model."""
        when = self.when or When(prefetch=False, deferral=False)
        return Timing(when.prefetch, when.deferral, when.parts, window_s)

    def plan(self, tables: tuple[TableSpec, ...], world: int, hot: list[tuple[int, ...]]) -> Plan:
        """Every table over all ranks by modulo, or on each of them; `hot` ids by table, for a tier."""
        if self.strategy in ("allgather", "replicated", "replicated_dense"):
            return Plan.uniform(tables, self.strategy, world)
        ids = hot if self.tier else [()] * len(tables)
        ranks = tuple(range(world))
        placed = (Placement(t.name, self.strategy, ranks, hot=h) for t, h in zip(tables, ids, strict=True))
        return Plan(world, tables, tuple(placed))


_AHEAD = When(deferral=False)
_BOTH_WAYS = When()
PARTS = 4
"""Micro-batches of a local batch."""

ARMS = {
    arm.name: arm
    for arm in (
        Arm("raw", "alltoall"),
        Arm("unique", "unique"),
        Arm("unique_node", "unique_node"),
        Arm("tier", "hot_cold"),
        Arm("tier ring", "hot_cold_ring"),
        Arm("tier node", "hot_cold_node"),
        Arm("prefetch", "unique", _AHEAD),
        Arm("tier+prefetch", "hot_cold", _AHEAD),
        Arm("prefetch+deferral", "unique", _BOTH_WAYS),
        Arm("tier+prefetch+deferral", "hot_cold", _BOTH_WAYS),
        Arm("parts", "unique", When(prefetch=False, deferral=False, parts=PARTS)),
        Arm("prefetch+deferral+parts", "unique", When(parts=PARTS)),
        Arm("tier+prefetch+deferral+parts", "hot_cold", When(parts=PARTS)),
        Arm("allgather", "allgather"),
        Arm("dense", "replicated_dense"),
    )
}
"""By name. `raw`: every id's row travels; `unique`: each distinct row once a rank; `unique_node`: once a node. `tier`
with `prefetch` is FEC as in its abstract; `deferral` is its dual; `parts` go beyond it. `allgather` and `dense` hold
every row on every rank."""

BASELINES = ("raw", "unique", "unique_node")
FEC = "tier+prefetch"
FULL = "tier+prefetch+deferral"
MICRO = "tier+prefetch+deferral+parts"
