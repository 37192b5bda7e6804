"""What the dense part hides of the prefetch, and the stall that is left before the sparse backward."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, first_below, kind_of
from paper_figs.table import Claim

SOURCE = "offload/pipeline"


def draw(df: pd.DataFrame) -> Figure:
    """A row a stream: what a step takes more than on the device; the stall. Both over the link's time."""
    orders = list(dict.fromkeys(df["point.order"]))
    fig, axes = style.figure(len(orders), 2)
    df, colours = _over_link(df), colour_of(df["point.arm"])
    for order, (more, stall) in zip(orders, zip(axes[::2], axes[1::2], strict=True), strict=True):
        for arm, rows in df.loc[df["point.order"] == order].groupby("point.arm", sort=False):
            style.line(more, rows["point.dense_over_link"], rows["more"], kind_of(df), colours[arm], str(arm))
            style.line(stall, rows["point.dense_over_link"], rows["stall"], kind_of(df), colours[arm])
        more.set(xlabel="dense part / link time of a step", ylabel="more than device / link time", title=order)
        stall.set(xlabel="dense part / link time of a step", ylabel="stall / link time", title=order)
    axes[0].legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Where the stall ends."""
    df, found = _over_link(df), []
    for order, rows in df.groupby("point.order", sort=False):
        strict = rows.loc[rows["point.arm"] == "strict"]
        got = (
            f"{100 * strict['stall'].iloc[0]:.0f} % of the link's time with no dense part; below 5 % from "
            f"{first_below(strict, 'point.dense_over_link', 'stall', 0.05)} times the link's time"
        )
        found.append(Claim(f"the stall before the sparse backward ends with the dense part's growth: {order}", "none",
                           got, kind_of(df)))  # fmt: skip
    return found


def _over_link(df: pd.DataFrame) -> pd.DataFrame:
    """With what a step takes more than the device's beside it, and the stall, over the link's time."""
    device = df.loc[df["point.arm"] == "device"].set_index(["point.order", "point.dense_over_link"])["metrics.step_ms"]
    beside = [device[key] for key in zip(df["point.order"], df["point.dense_over_link"], strict=True)]
    link = df["point.link_ms"]
    return df.assign(more=(df["metrics.step_ms"] - beside) / link, stall=df["metrics.stall_ms"] / link)
