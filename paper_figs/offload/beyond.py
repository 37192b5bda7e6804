"""Four arms beyond the paper: slow-down at 37 times the device's memory, by length of the dense part."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import PUBLISHED, TARGET, colour_of, first_below, groups, kind_of, mark
from paper_figs.table import Claim

SOURCE = "offload/beyond"


def draw(df: pd.DataFrame) -> Figure:
    """A panel a stream."""
    df = df.loc[df["point.arm"] != "device"]
    panels = list(groups(df, ["point.order", "point.link"]))
    fig, axes = style.figure(-(-len(panels) // 2), min(2, len(panels)), height=2.8)
    colours = colour_of(df["point.arm"])
    for ax, ((order, link), rows) in zip(axes, panels, strict=False):
        for arm, part in rows.groupby("point.arm", sort=False):
            style.line(ax, part["point.dense"], part["metrics.slow_down"], kind_of(df), colours[arm], str(arm))
        mark(ax, TARGET, PUBLISHED)
        ax.set(xlabel="dense part / embedding step", ylabel="slower than the device, %",
               title=f"{order}, link 1/{link:g}")  # fmt: skip
    axes[0].legend(fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """By stream: slow-downs at the ends of the range, and where each arm meets 15 and 26 %."""
    found = []
    df = df.loc[df["point.arm"] != "device"]
    for (order, link), rows in groups(df, ["point.order", "point.link"]):
        ends = rows["point.dense"].min(), rows["point.dense"].max()
        at = {
            d: {r["point.arm"]: r["metrics.slow_down"] for r in rows.loc[rows["point.dense"] == d].to_dict("records")}
            for d in ends
        }
        got = "; ".join(
            f"{arm} {at[ends[0]][arm]:+.0f} / {at[ends[1]][arm]:+.0f} % (15 % from "
            f"{first_below(part, 'point.dense', 'metrics.slow_down', TARGET)}x, 26 % from "
            f"{first_below(part, 'point.dense', 'metrics.slow_down', PUBLISHED)}x)"
            for arm, part in rows.groupby("point.arm", sort=False)
        )
        moved = (
            rows.groupby("point.arm", sort=False)[["metrics.bytes_in", "metrics.bytes_out"]].mean().sum(axis=1) / 1e6
        )
        found += [
            Claim(f"slow-down by arm at dense {ends[0]:g}x / {ends[1]:g}x, and the least dense part tried for 15 and "
                  f"26 %: {order}, {rows['point.scale'].iloc[0]:g}x, link 1/{link:g}", "abstract: 26 %", got,
                  f"{kind_of(df)} vs paper"),
            Claim(f"bytes over the link a step, both ways, by arm: {order}", "none",
                  ", ".join(f"{arm} {value:.1f} MB" for arm, value in moved.items()), kind_of(df)),
        ]  # fmt: skip
    return found
