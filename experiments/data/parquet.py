"""A click log in Parquet: columns label, I1..I13 (integers) and C1..C26 (hexadecimal text, or integers), null =
missing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.data.batch import DENSE, TABLES
from experiments.data.rows import MISSING_INTEGER, MISSING_VALUE, BadLine, Rows
from experiments.data.tsv import NAMES

_HEXADECIMAL = re.compile("[0-9a-fA-F]{1,15}")


def _integers(column: pa.Array, missing: int) -> NDArray[np.int64]:
    return pc.fill_null(pc.cast(column, pa.int64()), missing).to_numpy(zero_copy_only=False)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _hexadecimal(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(values, malformed) of a text column; empty is missing. Each distinct text is parsed once."""
    encoded = pc.fill_null(column, "").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    malformed = np.array([bool(t) and not _HEXADECIMAL.fullmatch(t) for t in texts], np.bool_)
    values = [MISSING_VALUE if bad or not t else int(t, 16) for t, bad in zip(texts, malformed, strict=True)]
    index = encoded.indices.to_numpy()
    return np.array(values, np.int64)[index], malformed[index]


@dataclass(frozen=True)
class _Table:
    """A block: rows of an arrow table; `row` is the number of the first, from 1."""

    table: pa.Table
    row: int

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self, low: int, high: int) -> Rows:
        part = self.table.slice(low, max(high - low, 0))
        n = part.num_rows
        values, wrong = np.empty((n, len(TABLES)), np.int64), np.zeros(n, np.int64)

        def mark(field: int, bad: NDArray[np.bool_]) -> None:
            wrong[bad & (wrong == 0)] = field + 1

        def column(field: int) -> pa.Array:
            chunked = part.column(NAMES[field])
            return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)

        label = _integers(column(0), MISSING_INTEGER)
        mark(0, (label != 0) & (label != 1))
        integers = np.stack([_integers(column(1 + i), MISSING_INTEGER) for i in range(DENSE)], 1)
        for t in range(len(TABLES)):
            source, field = column(1 + DENSE + t), 1 + DENSE + t
            if _is_text(source.type):
                values[:, t], bad = _hexadecimal(source)
            else:
                values[:, t] = _integers(source, MISSING_VALUE)
                # A negative number is a 32-bit value read as signed; null is missing.
                negative = (values[:, t] < 0) & source.is_valid().to_numpy(zero_copy_only=False)
                bad = negative & (values[:, t] < -(2**31))
                values[negative, t] += 2**32
            mark(field, bad)
        lines = tuple(
            BadLine(self.row + low + int(i), _why(part, int(i), int(wrong[i]))) for i in np.flatnonzero(wrong)
        )
        good = wrong == 0
        return Rows(label[good].astype(np.float32), integers[good], values[good], lines)


def _why(part: pa.Table, i: int, wrong: int) -> str:
    name = NAMES[wrong - 1]
    expected = "0 or 1" if wrong == 1 else "a hexadecimal number of at most 15 digits (text), a 32-bit integer, or null"
    return f"{name}: expected {expected}, given {part.column(name)[i].as_py()!r}"


class ParquetFile:
    """A RowSource over a Parquet file. Raises ValueError when columns are missing or of the wrong kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            schema = pq.read_schema(path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: expected a Parquet file, given something else ({error})") from error
        absent = [name for name in NAMES if name not in schema.names]
        if absent:
            raise ValueError(
                f"{path}: expected the columns label, I1..I13, C1..C26, given {', '.join(schema.names)}: "
                f"missing {', '.join(absent)}"
            )
        for f, name in enumerate(NAMES):
            kind = schema.field(name).type
            number = pa.types.is_integer(kind) or pa.types.is_null(kind)  # null: a column that is all missing
            if not number and not (f > DENSE and _is_text(kind)):
                expected = "integers or hexadecimal text" if f > DENSE else "integers"
                raise ValueError(f"{path}, column {name}: expected {expected}, given {kind}")

    def count(self) -> int:
        """See RowSource."""
        return pq.read_metadata(self.path).num_rows

    def blocks(self, size: int, first: int, stop: int | None) -> Iterator[_Table]:
        """See RowSource."""
        with pq.ParquetFile(self.path) as file:
            group, at = 0, 0  # whole row groups before `first` are not read
            while group < file.num_row_groups and at + file.metadata.row_group(group).num_rows <= first:
                at += file.metadata.row_group(group).num_rows
                group += 1
            row, held = first, []
            last = file.metadata.num_rows if stop is None else min(stop, file.metadata.num_rows)
            for batch in file.iter_batches(65_536, row_groups=range(group, file.num_row_groups), columns=list(NAMES)):
                low, high = max(first - at, 0), min(last - at, batch.num_rows)
                at += batch.num_rows
                while low < high:
                    take = min(high, low + size - sum(b.num_rows for b in held))
                    held.append(batch.slice(low, take - low))
                    low = take
                    if sum(b.num_rows for b in held) == size:
                        yield _Table(pa.Table.from_batches(held), row + 1)
                        row, held = row + size, []
                if at >= last:
                    break
            if held:
                yield _Table(pa.Table.from_batches(held), row + 1)
