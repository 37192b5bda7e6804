"""Criteo's text format: label, 13 integers, 26 hexadecimal values; tabs, no header, empty = missing; plain or gzip.

The file is read in chunks, so memory is bounded by a chunk and a block; only the lines asked for are parsed.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from experiments.data.batch import DENSE, TABLES
from experiments.data.rows import MISSING_INTEGER, MISSING_VALUE, BadLine, Rows

FIELDS = 1 + DENSE + len(TABLES)
NAMES = ("label", *(f"I{i}" for i in range(1, DENSE + 1)), *TABLES)
CHUNK = 4 << 20
LONGEST = 1 << 16  # bytes of a line: a real one has about 250
_BOM = b"\xef\xbb\xbf"
_DIGITS = 15  # of a number, decimal or hexadecimal: the most that an int64 always holds

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


@njit(cache=True)
def _number(text: Bytes, first: int, stop: int, base: int) -> tuple[bool, np.int64]:
    """(well formed, value) of a decimal (sign allowed) or hexadecimal number."""
    negative = base == 10 and text[first] == 45
    if negative:
        first += 1
    if stop == first or stop - first > _DIGITS:
        return False, np.int64(0)
    value = np.int64(0)
    for i in range(first, stop):
        c = text[i]
        if 48 <= c <= 57:
            digit = np.int64(c) - 48
        elif base == 16 and 97 <= c <= 102:
            digit = np.int64(c) - 87
        elif base == 16 and 65 <= c <= 70:
            digit = np.int64(c) - 55
        else:
            return False, np.int64(0)
        value = value * base + digit
    return True, -value if negative else value


@njit(cache=True)
def _parse(
    text: Bytes,
    starts: Places,
    stops: Places,
    label: NDArray[np.float32],
    integers: NDArray[np.int64],
    values: NDArray[np.int64],
    wrong: NDArray[np.int64],
) -> None:
    """Fill one row per line. `wrong`: 0 = good, f > 0 = field f (from 1) is malformed, -n = n fields, not FIELDS."""
    for line in range(len(starts)):
        first, stop = starts[line], stops[line]
        tabs = 0
        for i in range(first, stop):
            tabs += text[i] == 9
        if tabs != FIELDS - 1:
            wrong[line] = -(tabs + 1)
            continue
        wrong[line] = 0
        for field in range(FIELDS):
            end = first
            while end < stop and text[end] != 9:
                end += 1
            missing = end == first
            good, value = True, np.int64(0)
            if not missing:
                good, value = _number(text, first, end, 10 if field <= DENSE else 16)
            if field == 0:
                good = good and not missing and 0 <= value <= 1
                label[line] = value
            elif field <= DENSE:
                integers[line, field - 1] = MISSING_INTEGER if missing else value
            else:
                values[line, field - 1 - DENSE] = MISSING_VALUE if missing else value
            if not good:
                wrong[line] = field + 1
                break
            first = end + 1


@dataclass(frozen=True)
class _Span:
    """Whole lines inside one chunk of text."""

    text: Bytes
    starts: Places
    stops: Places  # before the line's end, \n or \r\n
    line: int  # number of the first line, from 1

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, low: int, high: int) -> "_Span":
        return _Span(self.text, self.starts[low:high], self.stops[low:high], self.line + low)

    def rows(self) -> Rows:
        n = len(self)
        label, wrong = np.empty(n, np.float32), np.empty(n, np.int64)
        integers, values = np.empty((n, DENSE), np.int64), np.empty((n, len(TABLES)), np.int64)
        _parse(self.text, self.starts, self.stops, label, integers, values, wrong)
        bad = tuple(BadLine(self.line + int(i), self._why(int(i), int(wrong[i]))) for i in np.flatnonzero(wrong))
        good = wrong == 0
        return Rows(label[good], integers[good], values[good], bad) if bad else Rows(label, integers, values, bad)

    def _why(self, i: int, wrong: int) -> str:
        if wrong < 0:
            return f"expected {FIELDS} fields separated by tabs (label, I1..I13, C1..C26), given {-wrong}"
        text = self.text[self.starts[i] : self.stops[i]].tobytes().decode("utf-8", "backslashreplace")
        given = text.split("\t")[wrong - 1][:40]
        if wrong == 1:
            expected = "0 or 1"
        elif wrong <= 1 + DENSE:
            expected = f"an integer of at most {_DIGITS} digits or nothing"
        else:
            expected = f"a hexadecimal number of at most {_DIGITS} digits or nothing"
        return f"{NAMES[wrong - 1]}: expected {expected}, given {given!r}"


@dataclass(frozen=True)
class _Lines:
    """A block: spans of consecutive lines."""

    spans: tuple[_Span, ...]

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def rows(self, low: int, high: int) -> Rows:
        parts, at = [], 0
        for span in self.spans:
            part = span.part(max(low - at, 0), max(high - at, 0))
            at += len(span)
            if len(part):
                parts.append(part.rows())
        if not parts:
            parts = [self.spans[0].part(0, 0).rows()]
        return Rows(
            np.concatenate([p.label for p in parts]),
            np.concatenate([p.integers for p in parts]),
            np.concatenate([p.values for p in parts]),
            tuple(b for p in parts for b in p.bad),
        )


class TsvFile:
    """A RowSource over a text log; `.gz` files are decompressed on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """See RowSource."""
        return sum(len(span) for span in self._spans())

    def blocks(self, size: int, first: int, stop: int | None) -> Iterator[_Lines]:
        """See RowSource."""
        held: list[_Span] = []
        for span in self._spans():
            low = max(first - (span.line - 1), 0)
            high = len(span) if stop is None else max(min(stop - (span.line - 1), len(span)), 0)
            while low < high:
                take = min(high, low + size - sum(map(len, held)))
                held.append(span.part(low, take))
                low = take
                if sum(map(len, held)) == size:
                    yield _Lines(tuple(held))
                    held = []
            if stop is not None and span.line - 1 + len(span) >= stop:
                break
        if held:
            yield _Lines(tuple(held))

    def _spans(self) -> Iterator[_Span]:
        line = 1
        for text in self._whole_lines():
            ends = np.flatnonzero(text == 10)
            if text[-1] != 10:  # the last line of a file without a final line end
                ends = np.append(ends, len(text))
            starts = np.concatenate([[0], ends[:-1] + 1])
            returns = (ends > starts) & (text[np.maximum(ends - 1, 0)] == 13)
            yield _Span(text, starts, ends - returns, line)
            line += len(starts)

    def _whole_lines(self) -> Iterator[Bytes]:
        """Chunks that end at a line end (or at the end of the file)."""
        carry, line = b"", 1
        try:
            with self._open() as file:
                while data := file.read(CHUNK):
                    if line == 1 and not carry:
                        data = data.removeprefix(_BOM)
                    cut = data.rfind(b"\n") + 1
                    if cut:
                        whole = carry + data[:cut]
                        yield np.frombuffer(whole, np.uint8)
                        line += whole.count(b"\n")
                        carry = data[cut:]
                    else:
                        carry += data
                    if len(carry) > LONGEST:
                        raise ValueError(
                            f"{self.path}, line {line}: expected at most {LONGEST} bytes a line, given more: "
                            f"is this a tab-separated click log?"
                        )
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{self.path}, line {line} or later: expected a whole gzip file, given a broken one ({error}): "
                f"fetch it again"
            ) from error
        if carry:
            yield np.frombuffer(carry, np.uint8)
        elif line == 1:
            raise ValueError(f"{self.path}: expected at least one line, given an empty file")

    def _open(self) -> BinaryIO | gzip.GzipFile:
        return gzip.open(self.path, "rb") if self.path.suffix == ".gz" else self.path.open("rb")
