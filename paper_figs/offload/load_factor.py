"""Step time by size of the cache, with and without prefetch, between its two bounds."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, groups, kind_of, log_x
from paper_figs.table import Claim

SOURCE = "offload/load_factor"
FREE = 0.001
"""Share of rows without a line that counts as none."""


def draw(df: pd.DataFrame) -> Figure:
    """A panel a stream and dense time: slow-down by size; dashed the conflict misses."""
    df = _sized(df)
    panels = list(groups(df, ["point.order", "point.dense"]))
    fig, axes = style.figure(-(-len(panels) // 2), min(2, len(panels)))
    colours = colour_of(df.loc[df["point.lines"] > 0, "point.arm"])
    for ax, ((order, dense), rows) in zip(axes, panels, strict=False):
        caches = rows.loc[rows["point.lines"] > 0]
        for arm, part in caches.groupby("point.arm", sort=False):
            style.line(ax, part["multiple"], part["metrics.slow_down"], kind_of(df), colours[arm], str(arm))
        bounds = rows.loc[rows["point.arm"].isin(["host", "device"])].groupby("point.arm")["metrics.slow_down"].mean()
        for name, level in bounds.items():
            ax.axhline(level, color="#333333", linewidth=0.8)
            ax.annotate(f"all on the {name}", (caches["multiple"].min(), level), fontsize=6, va="bottom")
        knee = _knee(caches)
        if knee:
            ax.axvline(knee, color="#999999", linestyle=":")
        log_x(ax, caches["multiple"].round(2))
        ax.set(xlabel="lines / distinct rows of two batches", ylabel="slower than the device, %",
               title=f"{order}, dense part {dense:g}x embedding")  # fmt: skip
    axes[0].legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The knee, and what prefetch hides."""
    df, found = _sized(df), []
    for (order, dense), rows in groups(df, ["point.order", "point.dense"]):
        caches = rows.loc[rows["point.lines"] > 0]
        at = caches.loc[(caches["multiple"] - 2).abs() < 0.2].set_index("point.arm")["metrics.slow_down"]
        host = rows.loc[rows["point.arm"] == "host", "metrics.slow_down"].mean()
        values = ", ".join(f"{arm} {value:+.0f} %" for arm, value in at.items())
        got = f"no conflicts from {_knee(caches):.2g}x; at 2x: {values}; no cache {host:+.0f} %"
        found.append(
            Claim(
                f"the knee, and step time there against the device: {order}, dense {dense:g}x", "none", got, kind_of(df)
            )
        )
    return found


def _sized(df: pd.DataFrame) -> pd.DataFrame:
    return df.assign(multiple=df["point.lines"] / df["point.two"])


def _knee(caches: pd.DataFrame) -> float:
    """The smallest measured size from which on hardly any row finds no line."""
    by_size = caches.groupby("multiple")[["metrics.conflicts", "metrics.rows"]].max()
    sizes = by_size.index.to_numpy(dtype=float)
    conflicts, rows = by_size.to_numpy(dtype=float).T
    free = sizes[conflicts <= FREE * rows]
    return float(free.min()) if len(free) else 0.0
