"""Which strategy carries each table, and which rank holds which of its rows: a value, saved as JSON and edited by
hand.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch

from kernels import TableSpec

Split = Literal["modulo", "range"]
STRATEGIES = ("replicated", "tablewise", "rowwise", "unique")
"""The only list of strategies: `comm/<name>.py` each."""


@dataclass(frozen=True)
class Placement:
    """One table: its `strategy`, and the rank that holds each of its row parts (`ranks[part]`; none when replicated).

    `split` says which rows are part p of P: `modulo` rows with id % P == p, `range` the p-th run of ceil(rows / P)
    rows.
    """

    table: str
    strategy: str
    ranks: tuple[int, ...] = ()
    split: Split = "modulo"


@dataclass(frozen=True)
class Plan:
    """A placement for every table on `world` ranks, checked on construction. Errors name the table."""

    world: int
    tables: tuple[TableSpec, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        placed = [placement.table for placement in self.placements]
        if self.world < 1:
            raise ValueError(f"world: expected at least 1 rank, given {self.world}")
        if _repeated(names):
            raise ValueError(f"tables: expected distinct names, given {_repeated(names)} more than once")
        if placed != names:
            raise ValueError(f"placements: expected one for each table, in order: {_difference(names, placed)}")
        for placement in self.placements:
            self._check(placement)

    def _check(self, placement: Placement) -> None:
        where = f"table {placement.table!r}"
        if placement.strategy not in STRATEGIES:
            raise ValueError(f"{where}: unknown strategy {placement.strategy!r}: choose one of {', '.join(STRATEGIES)}")
        if placement.split not in get_args(Split):
            raise ValueError(f"{where}: unknown split {placement.split!r}: choose one of {', '.join(get_args(Split))}")
        bad = [rank for rank in placement.ranks if not 0 <= rank < self.world]
        if bad:
            raise ValueError(f"{where}: expected ranks 0 to {self.world - 1}, given {bad}")
        parts = len(placement.ranks)
        wanted = {"replicated": parts == 0, "tablewise": parts == 1}.get(placement.strategy, parts >= 1)
        if not wanted:
            expected = {"replicated": "no ranks (every rank holds it)", "tablewise": "one rank"}
            what = expected.get(placement.strategy, "at least one rank")
            raise ValueError(f"{where}: {placement.strategy} expects {what}, given ranks {list(placement.ranks)}")

    @staticmethod
    def uniform(tables: Sequence[TableSpec], strategy: str, world: int, split: Split = "modulo") -> "Plan":
        """Every table under one strategy: table i whole on rank i % world (`tablewise`), or its rows over all ranks."""
        ranks = {"replicated": lambda _: (), "tablewise": lambda i: (i % world,)}.get(
            strategy, lambda _: tuple(range(world))
        )
        placements = (Placement(table.name, strategy, ranks(i), split) for i, table in enumerate(tables))
        return Plan(world, tuple(tables), tuple(placements))

    def to_json(self) -> str:
        """As JSON, one line a table."""
        fields = asdict(self)
        for table in fields["tables"]:
            table["dtype"] = str(table["dtype"]).removeprefix("torch.")
        lines = {key: ",\n  ".join(json.dumps(value) for value in fields[key]) for key in ("tables", "placements")}
        return (
            f'{{"world": {self.world},\n "tables": [\n  {lines["tables"]}],\n'
            f' "placements": [\n  {lines["placements"]}]}}\n'
        )

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read what `to_json` wrote, or a hand-edited one: checked as any Plan."""
        fields = json.loads(text)
        tables = (TableSpec(**{**table, "dtype": _dtype(table)}) for table in fields["tables"])
        placements = (Placement(**{**p, "ranks": tuple(p["ranks"])}) for p in fields["placements"])
        return Plan(fields["world"], tuple(tables), tuple(placements))

    @property
    def hash(self) -> str:
        """Content hash, 12 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]


def _repeated(names: Sequence[str]) -> str:
    """Those of `names` that come more than once, in words."""
    return ", ".join(repr(name) for name in dict.fromkeys(names) if names.count(name) > 1)


def _difference(names: Sequence[str], placed: Sequence[str]) -> str:
    """Why the tables of the placements are not `names`, in words."""
    reasons = [f"no placement for {name!r}" for name in names if name not in placed]
    reasons += [f"no table for {name!r}" for name in placed if name not in names]
    reasons += [f"{_repeated(placed)} placed more than once"] if _repeated(placed) else []
    return ", ".join(reasons) or f"the tables are {list(names)}, the placements {list(placed)}"


def _dtype(table: dict[str, str]) -> torch.dtype:
    dtype = getattr(torch, table["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"table {table['name']!r}: unknown dtype {table['dtype']!r}: for example 'float32'")
    return dtype
