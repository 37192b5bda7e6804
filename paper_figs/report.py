"""One static page with the claim table, every figure and where the numbers come from: nothing is fetched to show it."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from paper_figs.table import Claim

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left }
th { background: #f3f3f3 } figure { margin: 2rem 0 } img { max-width: 100% } code { font-size: .9em }
.measured { background: #e8f4ec } .emulated { background: #fdf3e1 } .simulated, .predicted { background: #eaf1fb }
"""
_KINDS = {
    "measured": "a clock or a counter on this machine",
    "emulated": "a clock, but links were shaped or compute was a timer: the record says which",
    "simulated": "a simulator priced the schedule",
    "predicted": "a cost model did",
    "paper": "somebody published it",
}
ENVIRONMENT = (
    "cpu",
    "cores",
    "gpu",
    "python",
    "torch",
    "triton",
    "numba",
    "backend",
    "omp_wait_policy",
    "commit",
    "dirty",
)
"""Fields of a record's environment that the page shows, one row for each combination."""


def page(rows: Sequence[tuple[Claim, Path]], figures: Mapping[str, Path], frames: Mapping[str, pd.DataFrame]) -> str:
    """The page: `rows` are the claims with their figures' paths, `figures` the SVG of each figure by name, `frames` the
    records behind each.
    """
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>What came out</title>",
        f"<style>{_STYLE}</style><h1>What came out</h1>",
        "<p>Every number is of a kind, and figures draw kinds differently:</p><ul>",
        *(f"<li><b class='{kind}'>{kind}</b>: {meaning}.</li>" for kind, meaning in _KINDS.items()),
        "</ul><h2>Claims</h2>",
        _claims(rows),
        "<h2>Where</h2>",
        _environments(frames),
        "<h2>Figures</h2>",
        *(_figure(name, path, frames[name]) for name, path in figures.items()),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def write(path: Path, html: str) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _claims(rows: Sequence[tuple[Claim, Path]]) -> str:
    body = []
    for claim, path in rows:
        name = "/".join(path.with_suffix("").parts[-2:])
        kind = f"<span class='{escape(claim.kind.split()[0])}'>{escape(claim.kind)}</span>"
        link = f"<a href='#{escape(name)}'>{escape(name)}</a>"
        body.append((escape(claim.claim), escape(claim.paper), escape(claim.got), kind, link))
    return _table(("claim", "paper's figure", "what came out here", "kind", "figure"), body)


def _environments(frames: Mapping[str, pd.DataFrame]) -> str:
    seen: dict[tuple[str, ...], list[str]] = {}
    for name, frame in frames.items():
        fields = [field for field in (f"env.{key}" for key in ENVIRONMENT) if field in frame]
        for values in frame[fields].astype(str).drop_duplicates().itertuples(index=False):
            given = dict(zip(fields, values, strict=True))
            seen.setdefault(tuple(given.get(f"env.{key}", "") for key in ENVIRONMENT), []).append(name)
    return _table((*ENVIRONMENT, "figures"), [(*map(escape, row), escape(", ".join(of))) for row, of in seen.items()])


def _figure(name: str, path: Path, frame: pd.DataFrame) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    experiment = escape(str(frame["experiment"].iloc[0]))
    links = sorted(set(frame["env.link"].astype(str))) if "env.link" in frame else []
    note = f"; links: {escape(', '.join(links))}" if links else ""
    return (
        f"<figure id='{escape(name)}'><h3>{escape(name)}</h3>"
        f"<img alt='{escape(name)}' src='data:image/svg+xml;base64,{image}'>"
        f"<figcaption>{len(frame)} records of <code>{experiment}</code>{note}. "
        f"Again: <code>python -m experiments run {experiment} --laptop</code></figcaption></figure>"
    )
