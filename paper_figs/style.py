"""One look for every figure: sizes, colours, and how each kind of number is drawn.

    measured    solid line, filled marker        emulated   solid line, open marker
    simulated   dash-dot line, open square       predicted  dashed line, no marker
    paper       dotted line, cross

Figures are built with `matplotlib.figure.Figure`, never pyplot: no global state, and the same bytes every time.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.record import KINDS, Kind

COLUMN = 3.35
PAGE = 7.0
"""Widths in inches of one column and of the page of a two-column paper."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Colour-blind safe: Okabe and Ito, Color Universal Design, 2008; the faint ones last."""

LINES: dict[Kind, dict[str, Any]] = {
    "measured": {"linestyle": "-", "marker": "o"},
    "emulated": {"linestyle": "-", "marker": "o", "markerfacecolor": "white"},
    "simulated": {"linestyle": "-.", "marker": "s", "markerfacecolor": "white"},
    "predicted": {"linestyle": "--", "marker": ""},
    "paper": {"linestyle": ":", "marker": "x"},
}
HATCHES: dict[Kind, str] = {
    "measured": "",
    "emulated": "\\\\\\",
    "simulated": "///",
    "predicted": "xxx",
    "paper": "ooo",
}

RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "svg.hashsalt": "records",  # ids inside the SVG follow from its content, not from chance
}


def figure(rows: int = 1, columns: int = 1, width: float = PAGE, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """A figure `width` inches wide and its rows x columns axes, row by row; `height` is that of one row of axes."""
    fig = Figure(figsize=(width, height * rows), layout="constrained")
    return fig, list(fig.subplots(rows, columns, squeeze=False).flat)


def colour(index: int) -> str:
    """Colour of the index-th series; raises IndexError beyond the palette: split the figure instead."""
    return PALETTE[index]


def line(ax: Axes, x: Any, y: Any, kind: Kind, index: int, label: str | None = None, **more: Any) -> Line2D:
    """Draw one series the way its kind is drawn, in the index-th colour."""
    return ax.plot(x, y, color=colour(index), label=label, **(LINES[kind] | more))[0]


def bars(ax: Axes, x: Any, height: Any, kind: Kind, index: int, label: str | None = None, **more: Any) -> BarContainer:
    """Draw bars hatched the way their kind is, in the index-th colour."""
    return ax.bar(x, height, color=colour(index), hatch=HATCHES[kind], edgecolor="white", label=label, **more)


def kind_legend(fig: Figure, kinds: Iterable[str]) -> None:
    """Add the legend, below the axes, that names the kinds a figure shows and how each is drawn."""
    shown = set(kinds)
    lines = [Line2D([], [], color="#555555", label=kind, **LINES[kind]) for kind in KINDS if kind in shown]
    fig.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=7, frameon=False)


def render(draw: Callable[[], Figure], path: Path) -> None:
    """Draw in this style and write an SVG whose bytes depend on the figure (and matplotlib's version) alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(RC):
        draw().savefig(path, format="svg", metadata={"Date": None})
