"""What a model asks of the cluster in a step, in expectation: how many ids each table gets, how many are distinct."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from kernels import Bags, Optimizer, TableSpec


@dataclass(frozen=True)
class TableLoad:
    """One table: `hotness` ids a bag (mean), `distinct(n)` of any n of its ids, share `hot_share` of them `hot_id`.

    `hot_id` is the most frequent id: with R row parts by modulo, part `hot_id % R` gets hot_share + (1 - hot_share) / R
    of the table's ids and every other part (1 - hot_share) / R. Nothing has a default: a planner that assumes one id a
    bag, or all of them distinct, plans for another model.
    """

    table: TableSpec
    hotness: float
    distinct: Callable[[float], float]
    hot_id: int
    hot_share: float

    def __post_init__(self) -> None:
        where = f"table {self.table.name!r}"
        for field in fields(self):
            if getattr(self, field.name) is None:
                raise ValueError(f"{where}: expected {field.name}, given None: measure it, or derive it from its law")
        if not 0 < self.hotness < float("inf"):
            raise ValueError(f"{where}: expected hotness > 0 ids a bag, given {self.hotness}")
        if not 0 <= self.hot_share <= 1:
            raise ValueError(f"{where}: expected 0 <= hot_share <= 1, given {self.hot_share}")
        if not 0 <= self.hot_id < self.table.rows:
            raise ValueError(f"{where}: expected hot_id from 0 to {self.table.rows - 1}, given {self.hot_id}")

    def unique(self, ids: float) -> float:
        """Expected distinct ids among `ids` of this table; ValueError if `distinct` says what cannot be."""
        found = self.distinct(ids)
        if not 0 < found <= min(ids, self.table.rows) * (1 + 1e-6):
            raise ValueError(
                f"table {self.table.name!r}: expected 0 < distinct <= {min(ids, self.table.rows):g} among {ids:g} ids "
                f"of {self.table.rows} rows, given {found}"
            )
        return found


@dataclass(frozen=True)
class DenseLoad:
    """Everything but the tables.

    `weights` entries of matrices: 6 flops a sample each, 2 forward and 4 backward; the share `bottom` of them is the
    bottom MLP's, which waits for no embedding. `activations` bytes of memory traffic a sample. The gradients of
    `parameters`, `gradient_bytes` each, are summed over ranks (0 parameters: dense gradients are off).
    """

    weights: int
    bottom: float
    activations: float
    parameters: int
    gradient_bytes: int = 4

    @staticmethod
    def none() -> "DenseLoad":
        """No dense part: the step is that of the tables."""
        return DenseLoad(0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Workload:
    """A model's tables under global batches of `batch` samples, spread evenly over ranks, and its dense part."""

    name: str
    tables: tuple[TableLoad, ...]
    batch: int
    optimizer: Optimizer
    dense: DenseLoad

    def __post_init__(self) -> None:
        if not self.tables or self.batch < 1:
            raise ValueError(
                f"workload {self.name!r}: expected tables and batch >= 1, "
                f"given {len(self.tables)} tables and {self.batch}"
            )

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """The tables, in order."""
        return tuple(load.table for load in self.tables)

    @property
    def hotness(self) -> tuple[float, ...]:
        """Ids a bag of each table."""
        return tuple(load.hotness for load in self.tables)

    def without_skew(self) -> "Workload":
        """The same, as seen by a planner that takes all row parts of a table for equally popular."""
        return replace(self, tables=tuple(replace(load, hot_share=0.0) for load in self.tables))


def measured(
    name: str, specs: tuple[TableSpec, ...], batches: list[Bags], optimizer: Optimizer, dense: DenseLoad
) -> Workload:
    """The workload of one global batch: `batches` are the table-major bags of every rank, of equal size.

    `distinct` is measured on the first rank, the first two, four, ... and all of them; counts between are interpolated
    in log-log, fewer than the first rank's in proportion, more than all as all. Raises ValueError for a table
    without ids.
    """
    samples = sum(len(bags) for bags in batches) // len(specs)
    loads = tuple(_measure(spec, list(_ids(batches, len(specs), t)), samples) for t, spec in enumerate(specs))
    return Workload(name, loads, samples, optimizer, dense)


def _ids(batches: list[Bags], tables: int, number: int) -> Iterator[torch.Tensor]:
    for bags in batches:
        batch = len(bags) // tables
        yield bags.ids[bags.offsets[number * batch] : bags.offsets[(number + 1) * batch]].long()


def _measure(spec: TableSpec, of_rank: list[torch.Tensor], samples: int) -> TableLoad:
    ids = torch.cat(of_rank)
    if not len(ids):
        raise ValueError(f"table {spec.name!r}: expected ids in the batch to measure, given none")
    values, counts = ids.unique(return_counts=True)
    ends = sorted({*(1 << k for k in range(len(of_rank).bit_length()) if 1 << k <= len(of_rank)), len(of_rank)})
    prefixes = [torch.cat(of_rank[:end]) for end in ends]
    points = [(float(len(prefix)), float(len(prefix.unique()))) for prefix in prefixes if len(prefix)]
    x, y = np.log(points).T
    ratio = points[0][1] / points[0][0]

    def distinct(n: float) -> float:
        return n * ratio if n <= points[0][0] else float(np.exp(np.interp(np.log(n), x, y)))

    most = int(counts.argmax())
    return TableLoad(spec, len(ids) / samples, distinct, int(values[most]), float(counts[most]) / len(ids))
