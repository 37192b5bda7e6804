"""Opening a click log by its path, whatever its form, and reading it with progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from experiments.data.criteo import CriteoLog, OnBadLine, count_ids
from experiments.data.ids import Hashed, IdMap
from experiments.data.prepared import PreparedLog, is_prepared

Log = CriteoLog | PreparedLog


def open_log(path: Path, max_rows: int, dim: int, on_bad_line: OnBadLine = "raise", min_count: int = 0) -> Log:
    """The log at `path`: a prepared folder as it is; text or Parquet with values hashed into `max_rows` rows a table,
    or, with a `min_count`, with one row for each value seen that often (a counting pass).

    Raises FileNotFoundError or ValueError that say what was expected.
    """
    if is_prepared(path):
        return PreparedLog(path, dim)
    ids: IdMap = count_ids(path, min_count, on_bad_line) if min_count else Hashed.uniform(max_rows)
    return CriteoLog(path, ids, dim, on_bad_line)


class _Speed(ProgressColumn):
    """Of the task, a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@contextmanager
def counting(what: str, total: int, unit: str = "samples") -> Iterator[Progress]:
    """A progress bar over `total`, with the rate and the time left; `progress.advance(task_ids[0], n)` moves it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        _Speed(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        progress.add_task(what, total=total)
        yield progress
