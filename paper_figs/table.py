"""The claim table: what a paper says, what came out here, and what kind of number that is."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.record import KINDS


@dataclass(frozen=True)
class Claim:
    """One row: the claim in words, the paper's figure ("none" if it has none), what the records say, and their kind.

    `kind` is one of KINDS, or several joined by " vs " where the claim compares them. `brief` says what came out in a
    few words; a claim that has it is in the README's table.

    Raises:
        ValueError: unknown kind.
    """

    claim: str
    paper: str
    got: str
    kind: str
    brief: str = ""

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kind.split(" vs ") if kind not in KINDS]
        if unknown:
            raise ValueError(f"unknown kind {self.kind!r} of claim {self.claim!r}: {', '.join(KINDS)}, or 'a vs b'")


def show(rows: Iterable[tuple[Claim, Path]], console: Console) -> None:
    """Print the claims, each with the path of the figure that shows it, whole so that it can be copied."""
    table = Table("claim", "paper's figure", "what came out here", "kind", show_lines=True)
    table.add_column("figure", no_wrap=True)
    for claim, figure in rows:
        table.add_row(claim.claim, claim.paper, claim.got, claim.kind, str(figure))
    console.print(table)
