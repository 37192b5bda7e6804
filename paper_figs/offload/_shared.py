"""What these figures share."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments.record import Kind
from paper_figs import style

PUBLISHED = 26.0
"""Per cent by which the paper's model, 37 times larger, is slower (abstract)."""
TARGET = 15.0
"""Per cent that this project asks of itself."""


def kind_of(df: pd.DataFrame) -> Kind:
    """The kind of the first record."""
    return df["kind"].iloc[0]


def colour_of(names: Iterable[Hashable]) -> dict[Hashable, int]:
    """A colour by name, in order of appearance; beyond the palette they come again."""
    return {name: place % len(style.PALETTE) for place, name in enumerate(dict.fromkeys(names))}


def groups(df: pd.DataFrame, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """(values of `columns`, the rows that have them), in order of appearance."""
    return cast(Any, iter(df.groupby(list(columns), sort=False)))


def mark(ax: Axes, *levels: float) -> None:
    """Thin horizontal lines at `levels`."""
    for level in levels:
        ax.axhline(level, color="#333333", linewidth=0.6)


def log_x(ax: Axes, values: Iterable[float]) -> None:
    """A logarithmic x axis with a tick at each of `values`, in plain numbers."""
    ticks = sorted(set(values))
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{value:.3g}" for value in ticks], fontsize=6)
    ax.xaxis.set_minor_locator(NullLocator())


def first_below(df: pd.DataFrame, x: str, y: str, level: float) -> str:
    """The smallest of the `x` from which on `y` is at most `level`, in words."""
    ordered = df.sort_values(x)
    good = ordered[y].le(level).to_numpy()
    if not good[-1]:
        return f"none up to {ordered[x].iloc[-1]:g}"
    start = len(good) - 1
    while start and good[start - 1]:
        start -= 1
    return f"{ordered[x].iloc[start]:g}"
