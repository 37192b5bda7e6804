"""What a cache costs when every row is in it."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, kind_of, log_x, mark
from paper_figs.table import Claim

SOURCE = "offload/overhead"
LIMIT = 20.0
"""Per cent of a step."""


def draw(df: pd.DataFrame) -> Figure:
    """Slow-down by bags a table, with its interval."""
    fig, (ax,) = style.figure(1, 1, style.COLUMN)
    df = df.loc[df["point.arm"] != "device"]
    colours = colour_of(df["point.arm"])
    for arm, rows in df.groupby("point.arm", sort=False):
        style.line(ax, rows["point.samples"], rows["metrics.slow_down"], kind_of(df), colours[arm], str(arm))
        ax.fill_between(rows["point.samples"], rows["metrics.slow_down_low"], rows["metrics.slow_down_high"],
                        color=style.colour(colours[arm]), alpha=0.15)  # fmt: skip
    mark(ax, LIMIT)
    log_x(ax, df["point.samples"])
    ax.set(xlabel="bags a table", ylabel="slower than the device, %")
    ax.legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """By arm, over sizes; and that all rows were hits."""
    df = df.loc[(df["point.arm"] != "device") & (df["point.samples"] >= 1024)]
    got = "; ".join(
        f"{arm} "
        + ", ".join(
            f"{row['point.samples']}: {row['metrics.slow_down']:+.0f} % ({row['metrics.slow_down_low']:+.0f} to "
            f"{row['metrics.slow_down_high']:+.0f})"
            for row in rows.to_dict("records")
        )
        for arm, rows in df.groupby("point.arm", sort=False)
    )
    hits = 100 * (1 - df["metrics.misses"].sum() / df["metrics.rows"].sum())
    return [Claim(f"a cache with {hits:.2f} % hits costs at most {LIMIT:.0f} % of a step, by bags a table", "none", got,
                  kind_of(df), got)]  # fmt: skip
