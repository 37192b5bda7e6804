"""Ragged ids: `Bags`, what is looked up, and `TableSpec`, where."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Pooling = Literal["sum", "mean", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
OnBadId = Literal["raise", "drop"]


def accumulator(table: torch.dtype) -> torch.dtype:
    """What sums over rows of a table are kept in: float64 for float64 rows, float32 for all others."""
    return torch.float64 if table == torch.float64 else torch.float32


@dataclass(frozen=True)
class TableSpec:
    """One embedding table: `rows` x `dim` numbers of `dtype`, its bags reduced by `pooling`."""

    name: str
    rows: int
    dim: int
    pooling: Pooling = "sum"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.rows < 1 or self.dim < 1:
            raise ValueError(
                f"table {self.name!r}: expected rows >= 1 and dim >= 1, given rows={self.rows}, dim={self.dim}"
            )
        if self.pooling not in POOLINGS:
            raise ValueError(
                f"table {self.name!r}: unknown pooling {self.pooling!r}: choose one of {', '.join(POOLINGS)}"
            )

    @property
    def bytes(self) -> int:
        """Bytes of the table's weights."""
        return self.rows * self.dim * self.dtype.itemsize


@dataclass(frozen=True)
class Bags:
    """Ragged ids, checked once on construction.

    `ids` [N] int32 or int64; bag b holds `ids[offsets[b]:offsets[b + 1]]`; `offsets` [bags + 1] int64, first 0, last N;
    `weights` [N] floating or None (then every id counts once). For T tables and a batch of B the bags are
    table-major: bag t * B + b is sample b of table t.

    Raises ValueError naming the first position that is wrong.
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        ids, offsets, weights = self.ids, self.offsets, self.weights
        if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"ids: expected a 1-D int32 or int64 tensor, given {ids.ndim}-D {ids.dtype}")
        if offsets.ndim != 1 or offsets.dtype != torch.int64 or len(offsets) < 1:
            raise ValueError(
                f"offsets: expected a 1-D int64 tensor of bags + 1 numbers, given {offsets.ndim}-D {offsets.dtype}"
            )
        if offsets[0] != 0 or offsets[-1] != len(ids):
            raise ValueError(
                f"offsets: expected first 0 and last {len(ids)} (the number of ids), "
                f"given {int(offsets[0])} and {int(offsets[-1])}"
            )
        falls = torch.nonzero(offsets[1:] < offsets[:-1])
        if len(falls):
            at = int(falls[0])
            raise ValueError(
                f"offsets: expected non-decreasing, given {int(offsets[at])} then {int(offsets[at + 1])} at bag {at}"
            )
        if weights is not None:
            if weights.shape != ids.shape or not weights.is_floating_point():
                raise ValueError(
                    f"weights: expected floating {tuple(ids.shape)}, given {weights.dtype} {tuple(weights.shape)}"
                )
            bad = torch.nonzero(~torch.isfinite(weights))
            if len(bad):
                at = int(bad[0])
                raise ValueError(f"weights: expected finite numbers, given {float(weights[at])} at position {at}")

    def __len__(self) -> int:
        """Number of bags."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Ids per bag, [bags] int64."""
        return self.offsets.diff()


def check_ids(bags: Bags, tables: Sequence[TableSpec], on_bad_id: OnBadId = "raise") -> tuple[Bags, int]:
    """Hold every id of table-major `bags` to `0 <= id < rows` of its table.

    Returns (bags, number of ids dropped). With `raise` an id out of range is a ValueError that names table, position,
    id and bound; with `drop` it is taken out of its bag and counted.
    """
    if on_bad_id not in get_args(OnBadId):
        raise ValueError(f"unknown on_bad_id {on_bad_id!r}: choose one of {', '.join(get_args(OnBadId))}")
    if len(bags) % len(tables):
        raise ValueError(f"bags: expected a multiple of {len(tables)} tables, given {len(bags)} bags")
    batch = len(bags) // len(tables)
    rows = torch.tensor([t.rows for t in tables], device=bags.ids.device)
    per_table = bags.offsets[:: batch or 1].diff() if batch else torch.zeros(len(tables), dtype=torch.int64)
    table_of = torch.repeat_interleave(torch.arange(len(tables), device=bags.ids.device), per_table)
    bad = (bags.ids < 0) | (bags.ids >= rows[table_of])
    count = int(bad.sum())
    if count == 0:
        return bags, 0
    if on_bad_id == "raise":
        at = int(torch.nonzero(bad)[0])
        table = tables[int(table_of[at])]
        raise ValueError(
            f"table {table.name!r}: id {int(bags.ids[at])} at position {at} is out of range: "
            f"expected 0 <= id < {table.rows} ({count} such ids in the batch; on_bad_id='drop' drops and counts them)"
        )
    kept = torch.cat([bad.new_zeros(1, dtype=torch.int64), (~bad).cumsum(0)])
    weights = None if bags.weights is None else bags.weights[~bad]
    return Bags(bags.ids[~bad], kept[bags.offsets], weights), count
