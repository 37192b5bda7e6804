"""`python -m paper_figs [NAME ...]`: draw figures from records and print the claim table; `--check` compares instead.

A figure is a file `paper_figs/<group>/<name>.py` with SOURCE (the experiment it shows), `draw(df) -> Figure` and
`claims(df) -> list[Claim]`; df holds the last run on each machine (experiments/record.py says which columns).
"""

import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from rich.console import Console

import paper_figs
from experiments.names import find, require
from experiments.record import last_runs, path_of, read
from paper_figs import report, style
from paper_figs.readme import problem, updated
from paper_figs.table import Claim, show

RECORDS = Path("experiments/results")
OUT = Path("paper_figs/out")
README = Path("README.md")


def load(name: str) -> Any:
    """The module of the figure `name`."""
    return import_module(f"{paper_figs.__name__}.{name.replace('/', '.')}")


def draw(name: str, records: Path, out: Path) -> tuple[list[Claim], Path, pd.DataFrame]:
    """Draw the figure `name` from the records below `records` to `out/<name>.svg`; returns its claims, that path and
    the records.
    """
    module = load(name)
    frame = last_runs(read(source := path_of(records, module.SOURCE)))
    if frame.empty:
        raise ValueError(f"{source} holds no records: run python -m experiments run {module.SOURCE}")
    path = out / f"{name}.svg"
    style.render(lambda: module.draw(frame), path)
    return module.claims(frame), path, frame


def draw_all(names: Iterable[str], records: Path, out: Path, console: Console, page: Path | None = None) -> bool:
    """Draw the figures and print their claims, also to `page` if given; one that fails costs the others nothing.

    True if none failed.
    """
    rows, good, paths, frames = [], True, {}, {}
    for name in names:
        try:
            claims, paths[name], frames[name] = draw(name, records, out)
        except Exception:
            console.print(traceback.format_exc(), style="red", markup=False, highlight=False)
            good = False
        else:
            rows += [(claim, paths[name]) for claim in claims]
            console.print(f"{name} -> {paths[name]}", highlight=False, soft_wrap=True)
    show(rows, console)
    if page is not None:
        report.write(page, report.page(rows, paths, frames))
        console.print(f"claims and figures on one page -> {page}", highlight=False, soft_wrap=True)
    return good


def problems_of(names: Iterable[str], records: Path, out: Path) -> list[str]:
    """What is wrong below `records` and `out`: lines that are no records, figures missing or unlike their records."""
    problems = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")  # a torn line is no record either
        for path in sorted(records.glob("**/*.jsonl")):
            try:
                read(path)
            except (ValueError, UserWarning) as error:
                problems.append(str(error))
        for name in names if not problems else ():
            source, committed = path_of(records, load(name).SOURCE), out / f"{name}.svg"
            if source.exists() != committed.exists():
                there, lacking = (source, committed) if source.exists() else (committed, source)
                problems.append(f"{name}: {there} exists, {lacking} does not")
            elif source.exists() and draw(name, records, Path(folder))[1].read_bytes() != committed.read_bytes():
                problems.append(f"{name}: {committed} is not what {source} draws: run python -m paper_figs {name}")
    drawn = {path.relative_to(out).with_suffix("").as_posix() for path in out.glob("**/*.svg")}
    return problems + [f"{name}: no module draws {out}/{name}.svg" for name in sorted(drawn - set(figures()))]


def readme_rows(records: Path) -> list[tuple[Claim, str, str]]:
    """Every claim that the committed records bear, with the names of its figure and its experiment."""
    rows = []
    for name in figures():
        module = load(name)
        if path_of(records, module.SOURCE).exists():
            frame = last_runs(read(path_of(records, module.SOURCE)))
            rows += [(claim, name, module.SOURCE) for claim in module.claims(frame)]
    return rows


def figures() -> list[str]:
    """Names of every figure."""
    return find(paper_figs, "draw")


def run(
    name: tyro.conf.Positional[tuple[str, ...]] = (),
    records: Path = RECORDS,
    out: Path = OUT,
    check: bool = False,
    page: Path | None = None,
    readme: bool = False,
) -> None:
    """Draw figures from records and print the claim table.

    Args:
        name: figures to draw; by default every figure whose experiment has records.
        records: the folder of the records.
        out: the folder of the figures.
        page: also write claims, figures and environments as one HTML file.
        check: draw nothing; fail unless each figure and the README's table are what the records say, and every record
            is readable.
        readme: write the README's claim table from the records, and draw nothing.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    names = [require(n, figures(), "figure") for n in name] or figures()
    if readme:
        README.write_text(updated(README.read_text(encoding="utf-8"), readme_rows(records)), encoding="utf-8")
        return
    if check:
        problems = problems_of(names, records, out)
        stale = None if problems or name else problem(README, readme_rows(records))
        problems += [stale] if stale else []
        for found in problems:
            console.print(found, markup=False, highlight=False, soft_wrap=True)
        if problems:
            raise SystemExit(1)
        print(f"{len(names)} figures are what the records in {records} draw")
        return
    if not name:
        for unmeasured in [n for n in names if not path_of(records, load(n).SOURCE).exists()]:
            names.remove(unmeasured)
            console.print(
                f"{unmeasured}: not drawn, {records} has no records of {load(unmeasured).SOURCE}", style="yellow"
            )
    if not draw_all(names, records, out, console, page):
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        tyro.cli(run, prog="python -m paper_figs", config=(tyro.conf.FlagCreatePairsOff,))
    except ValueError as error:
        sys.exit(f"error: {error}")
