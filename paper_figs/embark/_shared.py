"""What the figures of this group share."""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator


def groups(df: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The values of `columns` and the records that have them, in the order of the records."""
    for values, rows in df.groupby(list(columns), sort=False):
        yield tuple(values if isinstance(values, tuple) else (values,)), rows


def doubling(ax: Axes, at: Iterable[int]) -> None:
    """A logarithmic x axis with a tick at each of `at` and no others, and no labels between the ticks of y."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sorted(set(at))))
    ax.xaxis.set_major_formatter("{x:.0f}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())


def each(ratios: Any) -> str:
    """`ratios`, a Series by the name of a model, in words."""
    return ", ".join(f"{model} {ratio:.2f}x" for model, ratio in ratios.items())


def with_cluster(df: pd.DataFrame) -> pd.DataFrame:
    """The records with `cluster`, as in 16 x 8."""
    return df.assign(cluster=df["point.nodes"].astype(str) + " x " + df["point.ranks_per_node"].astype(str))
