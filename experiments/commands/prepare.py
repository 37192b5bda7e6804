"""`python -m experiments prepare LOG`: a click log as arrays on disk, to be trained on at memory speed."""

import time
from pathlib import Path

import tyro

from experiments.commands._logs import counting, open_log
from experiments.data.criteo import OnBadLine
from experiments.data.prepared import is_prepared, prepare


def main(
    log: tyro.conf.Positional[Path],
    out: Path | None = None,
    max_rows: int = 1_000_000,
    min_count: int = 0,
    on_bad_line: OnBadLine = "raise",
) -> None:
    """Write a Criteo-format log (.tsv, .tsv.gz, .parquet) as a folder of arrays that `--data` takes.

    Args:
        log: the click log.
        out: the folder to write; by default beside the log, with the suffix .clicks.
        max_rows: rows of each table; values are hashed into them.
        min_count: if above 0, a row for each value seen at least this often instead (one more pass over the log).
        on_bad_line: `skip` leaves malformed lines out and counts them.
    """
    if is_prepared(log):
        raise ValueError(f"{log}: expected a click log, given one that is prepared already")
    out = out or log.with_name(log.name.split(".")[0] + ".clicks")
    stream, began = open_log(log, max_rows, 1, on_bad_line, min_count), time.perf_counter()
    with counting(f"preparing {log.name}", stream.samples, "lines") as progress:
        made = prepare(stream, out, lambda n: progress.advance(progress.task_ids[0], n))
    seconds = time.perf_counter() - began
    print(f"{made.samples} samples, {made.bad_lines} bad lines skipped, in {seconds:.1f} s -> {out}")
