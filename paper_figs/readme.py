"""The README's claim table: written from the committed records, and held against them by `--check`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from paper_figs.table import Claim

BEGIN, END = "<!-- claims, by python -m paper_figs --readme -->", "<!-- end of claims -->"


def table(rows: Iterable[tuple[Claim, str, str]]) -> str:
    """Markdown of the claims that have a brief form; a row is a claim, its figure's name and its experiment's."""
    lines = ["| claim | paper's figure | came out | kind | experiment |", "|---|---|---|---|---|"]
    for claim, figure, experiment in rows:
        if claim.brief:
            cells = (claim.claim, claim.paper, claim.brief, claim.kind)
            link = f"[`{experiment}`](paper_figs/out/{figure}.svg)"
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, link)) + " |")
    return "\n".join(lines)


def updated(text: str, rows: Sequence[tuple[Claim, str, str]]) -> str:
    """The README's `text` with its table made anew. Raises ValueError if the marks around the table are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README: expected a table between {BEGIN!r} and {END!r}, given none")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


def problem(path: Path, rows: Sequence[tuple[Claim, str, str]]) -> str | None:
    """What is wrong with the README at `path`, in words."""
    text = path.read_text(encoding="utf-8")
    if updated(text, rows) == text:
        return None
    return f"{path}: its claim table is not what the records say: run python -m paper_figs --readme"
