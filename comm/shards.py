"""The stacked arrays of one strategy: which rows of which tables lie where on each rank.

A block of columns is a table of its own here, with the same ids: `tables` then holds the table once for each block.
Tables of one width under one strategy are stacked. A *cell* is one (table, row part); a rank's array holds its cells
one after another, in table order then part order. `RowShards` is this in the form that the `bucketize` kernel reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels import Bags, RowShards, TableSpec

from .plan import Placement


@dataclass(frozen=True)
class Cell:
    """Rows `part` of `parts` of table number `table`, `rows` of them, on `rank` from row `base` of its array."""

    table: int
    part: int
    parts: int
    span: int
    rank: int
    base: int
    rows: int

    def ids(self) -> Tensor:
        """The table's ids in the order in which the cell holds them, [rows] int64."""
        local = torch.arange(self.rows)
        return self.part * self.span + local if self.span else self.part + self.parts * local


@dataclass(frozen=True)
class Shards:
    """Where the rows of `tables` (one width) live on `world` ranks; `placements` are theirs, in order, one block each.

    Tables of one name are the blocks of columns of one table, first columns first. A replicated table has no cell; each
    rank then holds the tables one after another, whole.
    """

    tables: tuple[TableSpec, ...]
    placements: tuple[Placement, ...]
    world: int

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, by table then part."""
        cells, filled = [], [0] * self.world
        for number, (table, placement) in enumerate(zip(self.tables, self.placements, strict=True)):
            parts = len(placement.ranks)
            span = -(-table.rows // parts) if parts and placement.split == "range" else 0
            for part, rank in enumerate(placement.ranks):
                if span:
                    rows = min(max(table.rows - part * span, 0), span)
                else:
                    rows = len(range(part, table.rows, parts))
                cells.append(Cell(number, part, parts, span, rank, filled[rank], rows))
                filled[rank] += rows
        return tuple(cells)

    @cached_property
    def rows_of_rank(self) -> tuple[int, ...]:
        """Rows of each rank's array."""
        return tuple(sum(cell.rows for cell in self.cells if cell.rank == rank) for rank in range(self.world))

    @cached_property
    def tables_of_rank(self) -> tuple[Tensor, ...]:
        """Numbers of the tables that each rank holds any part of, ascending, int64."""
        held = [sorted({cell.table for cell in self.cells if cell.rank == rank}) for rank in range(self.world)]
        return tuple(torch.tensor(numbers, dtype=torch.int64) for numbers in held)

    @cached_property
    def row_shards(self) -> RowShards:
        """The same, as the tensors that `bucketize` reads."""
        firsts = [cell for cell in self.cells if cell.part == 0]
        first = [i for i, cell in enumerate(self.cells) if cell.part == 0]

        def column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64)

        return RowShards(
            parts=column([cell.parts for cell in firsts]),
            span=column([cell.span for cell in firsts]),
            first=column(first),
            owner=column([cell.rank for cell in self.cells]),
            base=column([cell.base for cell in self.cells]),
        )

    @cached_property
    def table_base(self) -> Tensor:
        """First key of each table in one key space over all tables, and the end, [tables + 1] int64."""
        return torch.tensor([0] + [table.rows for table in self.tables]).cumsum(0)

    @cached_property
    def hot_keys(self) -> Tensor:
        """Keys of the hot ids of all tables, ascending: what every rank holds a copy of, behind its own rows."""
        keys = [
            torch.tensor(placement.hot, dtype=torch.int64) + base
            for placement, base in zip(self.placements, self.table_base, strict=False)
        ]
        return torch.cat(keys)

    @cached_property
    def wire_ids(self) -> torch.dtype:
        """The integer that row numbers travel in: 4 bytes if all rows together are below 2^31, else 8."""
        return torch.int32 if int(self.table_base[-1]) < 2**31 else torch.int64

    @cached_property
    def siblings(self) -> dict[str, tuple[int, ...]]:
        """Numbers of the blocks of columns of each table that has several, by name."""
        names = [table.name for table in self.tables]
        return {
            name: tuple(i for i, other in enumerate(names) if other == name) for name in names if names.count(name) > 1
        }

    def batch(self, bags: Bags) -> int:
        """Samples of table-major `bags`."""
        return len(bags) // len(self.tables)

    def table_starts(self, bags: Bags) -> Tensor:
        """Position of the first id of each table, and the end, [tables + 1] int64."""
        return bags.offsets[torch.arange(len(self.tables) + 1) * self.batch(bags)]
