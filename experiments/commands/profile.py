"""`python -m experiments profile LOG`: what a click log asks of each of its tables."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.commands._logs import counting
from experiments.data.batch import TABLES
from experiments.data.criteo import OnBadLine, count_lines, value_blocks
from experiments.data.usage import BATCHES, CACHES, TableUsage
from experiments.environment import environment
from experiments.record import Measurement, Writer

BLOCK = 65_536


@dataclass(frozen=True)
class Config:
    """What was profiled."""

    data: str
    on_bad_line: OnBadLine


def main(log: tyro.conf.Positional[Path], out: Path = Path("runs"), on_bad_line: OnBadLine = "raise") -> None:
    """Per table of a Criteo-format log (.tsv, .tsv.gz, .parquet): rows, skew, uniqueness by batch, overlap, miss rates.

    Args:
        log: the click log; one pass, memory bounded.
        out: records go to OUT/data/profile.jsonl.
        on_bad_line: `skip` leaves malformed lines out.
    """
    tables, began, samples = [TableUsage(name) for name in TABLES], time.perf_counter(), 0
    with counting(f"reading {log.name}", count_lines(log), "lines") as progress, ThreadPoolExecutor(2) as pool:
        for values in value_blocks(log, BLOCK, on_bad_line):
            columns = np.ascontiguousarray(values.T)
            list(pool.map(TableUsage.add, tables, columns))
            samples += len(values)
            progress.update(progress.task_ids[0], completed=samples)
    seconds = time.perf_counter() - began
    results = {table.name: table.result() for table in tables}
    with Writer(out, "data/profile", environment()) as writer:
        for name, result in results.items():
            measured = Measurement({"log": log.name, "table": name}, result, dict.fromkeys(result, "1"), samples)
            writer.write(Config(str(log), on_bad_line), measured)
    show(results, Console(width=None if sys.stdout.isatty() else 150))
    print(f"{samples} samples in {seconds:.1f} s, {60 * samples / seconds:,.0f} a minute -> {writer.path}")


def show(results: dict[str, dict[str, float]], console: Console) -> None:
    """One line a table."""
    table = Table("table", title="shares and ratios of each table; `unique B`: distinct values / lookups in B samples")
    columns = {"rows": "rows", "missing": "missing", "top_share": "top 1 %"}
    columns |= {f"unique_{size}": f"unique {size}" for size in BATCHES} | {"overlap": f"overlap of {BATCHES[1]}"}
    columns |= {f"miss_{share}": f"miss at {share} %" for share in CACHES} | {"first": "new"}
    for title in columns.values():
        table.add_column(title, justify="right")
    for name, result in results.items():
        cells = (
            ("-" if c not in result else f"{result[c]:,.0f}" if c == "rows" else f"{result[c]:.3f}") for c in columns
        )
        table.add_row(name, *cells)
    console.print(table)
