"""Plans that look at a table's number alone: table-row-wise, round robin, uniform.

EMBark's baselines. Source: NVIDIA-Merlin/HugeCTR, benchmarks/embedding_collection/hugectr/sharding/generate_plan.py.
`pooled` is the strategy of the reduction-based cluster: `gridwise` (every rank to every rank) or `hierarchical`.
"""

from collections.abc import Iterable, Sequence

from comm.plan import Placement, Plan
from comm.wire import Wire
from kernels import TableSpec


def table_row_wise(
    tables: Sequence[TableSpec],
    nodes: int,
    ranks_per_node: int,
    pooled: str = "hierarchical",
    wire: Wire = "table",
    copies: float = 1.0,
    memory: float = float("inf"),
) -> Plan:
    """Table i in rows over the ranks of node i % nodes; over all ranks if it is larger than that node.

    `memory` bytes a rank may hold, `copies` numbers kept for each weight (2: a state of the weights' size).
    """
    world = nodes * ranks_per_node

    def ranks(i: int, table: TableSpec) -> Iterable[int]:
        first = i % nodes * ranks_per_node
        fits = table.bytes * copies <= memory * ranks_per_node
        return range(first, first + ranks_per_node) if fits else range(world)

    return _plan(tables, [ranks(i, table) for i, table in enumerate(tables)], world, pooled, wire)


def round_robin(tables: Sequence[TableSpec], world: int, pooled: str = "gridwise", wire: Wire = "table") -> Plan:
    """Table i whole on rank i % world."""
    return _plan(tables, [(i % world,) for i in range(len(tables))], world, pooled, wire)


def uniform(tables: Sequence[TableSpec], world: int, pooled: str = "gridwise", wire: Wire = "table") -> Plan:
    """Every table in rows over all ranks."""
    return _plan(tables, [range(world)] * len(tables), world, pooled, wire)


def _plan(tables: Sequence[TableSpec], ranks: Sequence[Iterable[int]], world: int, pooled: str, wire: Wire) -> Plan:
    placements = (Placement(t.name, pooled, tuple(r), wire=wire) for t, r in zip(tables, ranks, strict=True))
    return Plan(world, tuple(tables), tuple(placements))
