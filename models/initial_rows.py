"""The initial values of the rows of a rank's stacked array, by row number: any subset, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from comm.shards import Shards

from .initialise import init_rows, row_scale


@dataclass(frozen=True)
class InitialRows:
    """Rows of the array of `rank` under `shards`, as `init_rows` has them by (seed, table, row, column).

    `first_columns` [tables]: the column of the model's table at which each block of columns begins. Raises nothing that
    `init_rows` does not.
    """

    shards: Shards
    rank: int
    first_columns: Sequence[int]
    seed: int

    @cached_property
    def runs(self) -> list[tuple[int, int, int, Tensor | None]]:
        """(table, first id, step between ids, ids instead if they are irregular) of each run of rows, in order."""
        shards = self.shards
        if not shards.cells:
            return [(number, 0, 1, None) for number in range(len(shards.tables))]
        cells = [cell for cell in shards.cells if cell.rank == self.rank]
        runs = [(c.table, c.part * c.span, 1, None) if c.span else (c.table, c.part, c.parts, None) for c in cells]
        hot = [torch.tensor(placement.hot, dtype=torch.int64) for placement in shards.placements]
        return [*runs, *((number, 0, 1, ids) for number, ids in enumerate(hot))]

    @cached_property
    def starts(self) -> Tensor:
        """First row of each run, and the end, [runs + 1] int64."""
        shards = self.shards
        if not shards.cells:
            return shards.table_base
        sizes = [cell.rows for cell in shards.cells if cell.rank == self.rank]
        return torch.tensor([0, *sizes, *(len(placement.hot) for placement in shards.placements)]).cumsum(0)

    @property
    def count(self) -> int:
        """Rows of the array."""
        return int(self.starts[-1])

    def __call__(self, rows: Tensor) -> Tensor:
        """Initial values [n, dim] of `rows` [n] int64."""
        of_run = torch.searchsorted(self.starts, rows, right=True) - 1
        spec = self.shards.tables[0]
        if bool((of_run[1:] >= of_run[:-1]).all()):  # ascending rows, as a cache asks: no run's rows are scattered
            parts = torch.split(rows, torch.bincount(of_run, minlength=len(self.runs)).tolist())
            values = [self._of_run(run, part) for run, part in enumerate(parts) if len(part)]
            return torch.cat(values) if values else torch.empty(0, spec.dim, dtype=spec.dtype)
        out = torch.empty(len(rows), spec.dim, dtype=spec.dtype)
        for run in of_run.unique().tolist():
            chosen = of_run == run
            out[chosen] = self._of_run(run, rows[chosen])
        return out

    def table_of(self, row: int) -> str:
        """Name of the table that `row` belongs to."""
        run = int(torch.searchsorted(self.starts, row, right=True)) - 1
        return self.shards.tables[self.runs[run][0]].name

    def _of_run(self, run: int, rows: Tensor) -> Tensor:
        number, first, step, irregular = self.runs[run]
        local = rows - self.starts[run]
        ids = first + step * local if irregular is None else irregular[local]
        table = self.shards.tables[number]
        scale = row_scale(table.rows)
        return init_rows(table.name, ids, table.dim, self.seed, table.dtype, scale, self.first_columns[number])
