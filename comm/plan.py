"""Which strategy carries each table, and which rank holds which of its rows: a value, saved as JSON and edited by
hand.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import torch

from kernels import TableSpec

from .wire import WIRES, Wire

Split = Literal["modulo", "range"]
Made = TypeVar("Made")
STRATEGIES = (
    "replicated",
    "replicated_dense",
    "allgather",
    "tablewise",
    "columnwise",
    "rowwise",
    "gridwise",
    "hierarchical",
    "alltoall",
    "unique",
    "unique_node",
    "hot_cold",
    "hot_cold_ring",
    "hot_cold_node",
    "hot_cold_rowwise",
    "hot_cold_hierarchical",
)
"""The only list of strategies: `comm/<name>.py` each."""

_ANY = (lambda columns: columns >= 1, lambda parts: parts >= 1, "at least one rank")
_ROWS = (lambda columns: columns == 1, lambda parts: parts >= 1, "at least one rank and no blocks of columns")
_NOWHERE = (lambda columns: columns == 1, lambda parts: parts == 0, "no ranks (every rank holds it)")
SHAPES: dict[str, tuple[Callable[[int], bool], Callable[[int], bool], str]] = {
    "replicated": _NOWHERE,
    "replicated_dense": _NOWHERE,
    "allgather": _NOWHERE,
    "tablewise": (lambda columns: columns == 1, lambda parts: parts == 1, "one rank"),
    "columnwise": (lambda columns: columns >= 1, lambda parts: parts == 1, "one rank for every block of columns"),
    "rowwise": _ROWS,
    "gridwise": _ANY,
    "hierarchical": _ANY,
    "alltoall": _ANY,
    "unique": _ANY,
    "unique_node": _ANY,
    "hot_cold": _ROWS,
    "hot_cold_ring": _ROWS,
    "hot_cold_node": _ROWS,
    "hot_cold_rowwise": _ROWS,
    "hot_cold_hierarchical": _ROWS,
}
"""What each strategy allows: blocks of columns, row parts a block, and that in words."""


@dataclass(frozen=True)
class Placement:
    """One table: its `strategy`, and the rank that holds each of its shards (none when replicated).

    A table is cut into `columns` blocks of equal width, each into row parts: part p of block c is on
    `ranks[c * parts + p]`, any rank. `split` says which rows are part p of P: `modulo` rows with id % P == p, `range`
    the p-th run of ceil(rows / P) rows. `wire` is the format in which its values travel (comm/wire.py).
    `hot` are the ids, ascending, that `hot_cold` copies to every rank.
    """

    table: str
    strategy: str
    ranks: tuple[int, ...] = ()
    split: Split = "modulo"
    columns: int = 1
    wire: Wire = "table"
    hot: tuple[int, ...] = ()

    @property
    def parts(self) -> int:
        """Row parts of each block of columns."""
        return len(self.ranks) // self.columns

    def block(self, column: int) -> "Placement":
        """One block of columns, as a placement of its own."""
        ranks = self.ranks[column * self.parts : (column + 1) * self.parts]
        return replace(self, ranks=ranks, columns=1)


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
        for table, placement in zip(self.tables, self.placements, strict=True):
            self._check(table, placement)

    def _check(self, table: TableSpec, placement: Placement) -> None:
        where = f"table {placement.table!r}"
        if placement.strategy not in STRATEGIES:
            raise ValueError(f"{where}: unknown strategy {placement.strategy!r}: choose one of {', '.join(STRATEGIES)}")
        if placement.split not in get_args(Split):
            raise ValueError(f"{where}: unknown split {placement.split!r}: choose one of {', '.join(get_args(Split))}")
        bad = [rank for rank in placement.ranks if not 0 <= rank < self.world]
        if bad:
            raise ValueError(f"{where}: expected ranks 0 to {self.world - 1}, given {bad}")
        if placement.hot and not placement.strategy.startswith("hot_cold"):
            raise ValueError(f"{where}: expected hot ids with strategy hot_cold only, given {placement.strategy}")
        if list(placement.hot) != sorted(set(placement.hot)) or not all(0 <= i < table.rows for i in placement.hot):
            raise ValueError(
                f"{where}: expected hot ids that ascend, within 0 to {table.rows - 1}, given {placement.hot}"
            )
        if placement.wire not in WIRES:
            raise ValueError(f"{where}: unknown wire {placement.wire!r}: choose one of {', '.join(WIRES)}")
        columns, ranks = placement.columns, len(placement.ranks)
        if columns < 1 or table.dim % columns or ranks % columns:
            raise ValueError(
                f"{where}: expected columns that divide dim {table.dim} and the number of ranks, "
                f"given columns={columns} and {ranks} ranks"
            )
        blocks_allowed, parts_allowed, expected = SHAPES[placement.strategy]
        if not (blocks_allowed(columns) and parts_allowed(placement.parts)):
            raise ValueError(
                f"{where}: {placement.strategy} expects {expected}, given ranks {list(placement.ranks)} "
                f"for {columns} block(s) of columns"
            )

    @staticmethod
    def uniform(
        tables: Sequence[TableSpec], strategy: str, world: int, split: Split = "modulo", wire: Wire = "table"
    ) -> "Plan":
        """Every table under one strategy, spread evenly.

        Table i whole on rank i % world (`tablewise`); its columns over as many ranks as divide them, from rank i
        (`columnwise`); two blocks of columns, the rows of each over every second rank, where dim and world are even
        (`gridwise`); its rows over all ranks (the others; every second one hot in `hot_cold`, for want of counts);
        everywhere (`replicated`).
        """

        def place(i: int, table: TableSpec) -> Placement:
            columns, ranks = 1, tuple(range(world))
            if strategy in ("replicated", "replicated_dense", "allgather"):
                ranks = ()
            elif strategy == "tablewise":
                ranks = (i % world,)
            elif strategy == "columnwise":
                columns = max(c for c in range(1, world + 1) if table.dim % c == 0)
                ranks = tuple((i + c) % world for c in range(columns))
            elif strategy == "gridwise" and world % 2 == 0 and table.dim % 2 == 0:
                columns, ranks = 2, (*range(0, world, 2), *range(1, world, 2))
            hot = tuple(range(0, table.rows, 2)) if strategy.startswith("hot_cold") else ()
            return Placement(table.name, strategy, ranks, split, columns, wire, hot)

        return Plan(world, tuple(tables), tuple(place(i, table) for i, table in enumerate(tables)))

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
        """Read what `to_json` wrote, or a hand-edited one: checked as any Plan, errors name the line."""
        fields = json.loads(text)
        tables = tuple(_made(text, "name", table, _table) for table in fields["tables"])
        placements = tuple(_made(text, "table", placement, _placement) for placement in fields["placements"])
        try:
            return Plan(fields["world"], tables, placements)
        except ValueError as error:
            named = re.search(r"table '([^']*)'", str(error))
            raise ValueError(f"{_line(text, 'table', named[1]) if named else ''}{error}") from error

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


def _line(text: str, key: str, name: str) -> str:
    """`line N: ` of the last line of JSON in which `key` has the value `name`; empty if none has."""
    found = re.compile(f'"{key}"\\s*:\\s*{re.escape(json.dumps(name))}')
    numbers = [number for number, line in enumerate(text.splitlines(), 1) if found.search(line)]
    return f"line {numbers[-1]}: " if numbers else ""


def _made(text: str, key: str, fields: dict[str, Any], make: Callable[[dict[str, Any]], Made]) -> Made:
    """`make(fields)`; an error names table and line."""
    try:
        return make(fields)
    except (KeyError, TypeError, ValueError) as error:
        name = str(fields.get(key, ""))
        reason = f"expected {error}, given none" if isinstance(error, KeyError) else str(error)
        known = "" if repr(name) in reason else f"table {name!r}: "
        raise ValueError(f"{_line(text, key, name)}{known}{reason}") from error


def _table(fields: dict[str, Any]) -> TableSpec:
    return TableSpec(**{**fields, "dtype": _dtype(fields)})


def _placement(fields: dict[str, Any]) -> Placement:
    return Placement(**{**fields, "ranks": tuple(fields["ranks"]), "hot": tuple(fields["hot"])})


def _dtype(table: dict[str, str]) -> torch.dtype:
    dtype = getattr(torch, table["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"table {table['name']!r}: unknown dtype {table['dtype']!r}: for example 'float32'")
    return dtype
