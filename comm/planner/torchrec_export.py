"""A Plan as a sharding plan of TorchRec: what it can say of one, as JSON, and as its own objects.

TorchRec's row shards are ranges, in the order of ranks, over all ranks or over one node's; a table of ours in row parts
by modulo becomes the same number of ranges. Weights are then elsewhere, but trained the same.
"""

from typing import Any

from comm.plan import Placement, Plan
from kernels import TableSpec

WHOLE_BAGS = ("tablewise", "columnwise", "rowwise", "gridwise", "hierarchical")
REPLICATED = ("replicated", "replicated_dense")


def export(plan: Plan, ranks_per_node: int, kernel: str = "fused") -> dict[str, dict[str, Any]]:
    """By table: `sharding_type`, `compute_kernel`, `ranks` and `shards` (offsets and sizes [rows, columns], and rank).

    Raises ValueError that names a table under a strategy TorchRec has no sharding for (`unique`, `hot_cold` ...), or in
    row parts on ranks it cannot take.
    """
    tables = zip(plan.tables, plan.placements, strict=True)
    return {table.name: _export(table, placement, plan.world, ranks_per_node, kernel) for table, placement in tables}


def _export(table: TableSpec, placement: Placement, world: int, local: int, kernel: str) -> dict[str, Any]:
    if placement.strategy in REPLICATED:
        return {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": list(range(world)), "shards": []}
    if placement.strategy not in WHOLE_BAGS:
        known = ", ".join((*REPLICATED, *WHOLE_BAGS))
        raise ValueError(
            f"table {table.name!r}: expected a strategy that TorchRec has too ({known}), given {placement.strategy!r}"
        )
    sharding = _sharding_type(table, placement, world, local)
    span, width = -(-table.rows // placement.parts), table.dim // placement.columns
    shards = []
    for column in range(placement.columns):
        for part, rank in enumerate(placement.block(column).ranks):
            begin = min(part * span, table.rows)
            rows = min(span, table.rows - begin)
            shards.append({"offsets": [begin, column * width], "sizes": [rows, width], "rank": rank})
    return {"sharding_type": sharding, "compute_kernel": kernel, "ranks": list(placement.ranks), "shards": shards}


def _sharding_type(table: TableSpec, placement: Placement, world: int, local: int) -> str:
    parts, blocks = placement.parts, [placement.block(c).ranks for c in range(placement.columns)]
    if parts == 1:
        return "table_wise" if placement.columns == 1 else "column_wise"
    nodes = [tuple(range(node * local, (node + 1) * local)) for node in range(world // local)]
    if placement.columns == 1 and blocks[0] == tuple(range(world)):
        return "row_wise"
    if placement.columns == 1 and blocks[0] in nodes:
        return "table_row_wise"
    if all(block in nodes for block in blocks):
        return "grid_shard"
    raise ValueError(
        f"table {table.name!r}: expected its row parts on all ranks or on those of one node, in order, for TorchRec to "
        f"take them, given {[list(block) for block in blocks]}"
    )


def sharding_plan(exported: dict[str, dict[str, Any]], module: str, device: str = "cuda", local: int = 1) -> Any:
    """TorchRec's ShardingPlan for the EmbeddingBagCollection at `module` (its path in the model). Needs torchrec 1.8.

    `device` is "cpu" or "cuda"; on "cuda" a rank's device is its place among the `local` ranks of its node.
    """
    from torchrec.distributed.types import (  # pyright: ignore[reportMissingImports]
        EmbeddingModuleShardingPlan,
        EnumerableShardingSpec,
        ParameterSharding,
        ShardingPlan,
        ShardMetadata,
    )

    def of_table(entry: dict[str, Any]) -> Any:
        def place(rank: int) -> str:
            return f"rank:{rank}/cpu" if device == "cpu" else f"rank:{rank}/cuda:{rank % local}"

        shards = [ShardMetadata(s["offsets"], s["sizes"], place(s["rank"])) for s in entry["shards"]]
        spec = EnumerableShardingSpec(shards) if shards else None
        return ParameterSharding(entry["sharding_type"], entry["compute_kernel"], entry["ranks"], spec)

    tables = {name: of_table(entry) for name, entry in exported.items()}
    return ShardingPlan({module: EmbeddingModuleShardingPlan(tables)})
