"""Inputs of bucketize for tests and benchmarks, and what they cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import INDEX_BYTES, covering, draw_ids, generator, name_of
from ..cost import Cost
from . import RowShards


@dataclass(frozen=True)
class Case:
    """`n` ids for each of `tables` tables of `rows` rows, cut into `parts` by `cut`, on `world` ranks.

    With `columns` > 1 each table is cut into so many blocks of columns: the same ids, once for each block.
    """

    name: str
    n: int
    tables: int
    rows: int
    cut: str
    parts: int
    world: int
    index: torch.dtype = torch.int64
    columns: int = 1


_CHOICES = covering(
    {
        "n": (0, 9),
        "tables": (1, 3),
        "rows": (1, 50),
        "cut": ("modulo", "range", "mixed"),
        "parts": (1, 2, 5),
        "world": (1, 2, 4),
        "index": (torch.int32, torch.int64),
        "columns": (1, 2),
    }
)
CASES = tuple(Case(name_of(choice), **choice) for choice in _CHOICES)
BENCH = (Case("26_tables", n=8192, tables=26, rows=500_000, cut="mixed", parts=8, world=8),)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `bucketize`. With several tables the ids are uneven and the middle table has none."""
    random = generator(seed)
    lengths = torch.full((case.tables,), case.n)
    if case.tables > 2:
        lengths[case.tables // 2] = 0
    blocks = torch.arange(case.tables).repeat_interleave(case.columns)  # the table of each block of columns
    ids = [draw_ids(int(n), case.rows, "uniform", case.index, random) for n in lengths]
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[blocks].cumsum(0)])
    by_range = torch.tensor([case.cut == "range" or (case.cut == "mixed" and t % 2 == 1) for t in blocks.tolist()])
    rows_a_part = -(-case.rows // case.parts)
    cells = len(blocks) * case.parts
    owner = torch.randint(case.world, (cells,), generator=random)
    shards = RowShards(
        parts=torch.full((len(blocks),), case.parts),
        span=torch.where(by_range, rows_a_part, 0),
        first=torch.arange(len(blocks)) * case.parts,
        owner=owner,
        base=torch.arange(cells) * rows_a_part,
    )
    return {
        "ids": torch.cat([ids[table] for table in blocks.tolist()]).to(device),
        "table_starts": starts.to(device),
        "shards": RowShards(*(index.to(device) for index in shards)),
        "world": case.world,
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: ids read twice, positions and rows written."""
    ids = inputs["ids"]
    return Cost(bytes={"memory": len(ids) * (2 * ids.dtype.itemsize + 2 * INDEX_BYTES)})


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """Nothing: integers are exact."""
    return {}
