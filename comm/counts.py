"""What a batch asks of a strategy: counts of keys and distinct rows, from which costs follow."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import Bags

from .shards import Shards


@dataclass(frozen=True)
class Counts:
    """Counts of one global batch over `world` ranks. [world, world] is from source to owner; all int64.

    `batch` [world] samples; `tables` [world] tables that a rank holds a part of; `keys` [world, world] ids; `unique`
    [world, world] distinct rows of the source's ids; `node_unique` [nodes, world] distinct rows of a node's ids;
    `touched` [world] distinct rows of a rank's ids; `union` distinct rows of all; `cell_rows` [cells] distinct rows of
    all in each cell. Tables everywhere have no owner: `tables`,
    `keys` and `unique` are zero. Hot ids are asked of nobody: they count in `touched` and `union` alone.
    """

    batch: Tensor
    tables: Tensor
    keys: Tensor
    unique: Tensor
    node_unique: Tensor
    touched: Tensor
    union: int
    cell_rows: Tensor
    table_count: int
    weighted: bool

    @staticmethod
    def of(shards: Shards, batches: Sequence[Bags], ranks_per_node: int | None = None) -> "Counts":
        """Count `batches`, one of each rank. Uses plain torch, not the kernels whose traffic it predicts."""
        world, tables = len(batches), len(shards.tables)
        keys = torch.zeros(world, world, dtype=torch.int64)
        local = ranks_per_node or world
        node_unique = torch.zeros(world // local, world, dtype=torch.int64)
        unique, owners = torch.zeros_like(keys), {(c.table, c.part): c.rank for c in shards.cells}
        touched, union = torch.zeros(world, dtype=torch.int64), 0
        cell_rows = {(c.table, c.part): 0 for c in shards.cells}
        for number in range(tables):
            cells = [cell for cell in shards.cells if cell.table == number]
            hot = torch.tensor(shards.placements[number].hot, dtype=torch.int64)
            distinct = []
            for source, bags in enumerate(batches):
                batch = len(bags) // tables
                ids = bags.ids[bags.offsets[number * batch] : bags.offsets[(number + 1) * batch]].long()
                distinct.append(ids.unique())
                touched[source] += len(distinct[-1])
                if cells:
                    for counted, seen in ((keys, _cold(ids, hot)), (unique, _cold(distinct[-1], hot))):
                        parts = seen // cells[0].span if cells[0].span else seen % cells[0].parts
                        for part, n in zip(*parts.unique(return_counts=True), strict=True):
                            counted[source, owners[number, int(part)]] += n
            for node in range(world // local) if cells else ():
                of_node = _cold(torch.cat(distinct[node * local : (node + 1) * local]).unique(), hot)
                parts = of_node // cells[0].span if cells[0].span else of_node % cells[0].parts
                for part, n in zip(*parts.unique(return_counts=True), strict=True):
                    node_unique[node, owners[number, int(part)]] += n
            everything = torch.cat(distinct).unique()
            union += len(everything)
            if cells:
                everything = _cold(everything, hot)
                parts = everything // cells[0].span if cells[0].span else everything % cells[0].parts
                for part, n in zip(*parts.unique(return_counts=True), strict=True):
                    cell_rows[number, int(part)] = int(n)
        return Counts(
            batch=torch.tensor([len(bags) // tables for bags in batches]),
            tables=torch.tensor([len(held) for held in shards.tables_of_rank]),
            keys=keys,
            unique=unique,
            node_unique=node_unique,
            touched=touched,
            union=union,
            cell_rows=torch.tensor(list(cell_rows.values()), dtype=torch.int64),
            table_count=tables,
            weighted=any(bags.weights is not None for bags in batches),
        )


def _cold(ids: Tensor, hot: Tensor) -> Tensor:
    return ids[~torch.isin(ids, hot)]
