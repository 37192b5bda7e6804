"""Bit for bit behind every cache: conflict misses by size, and whether the weights are those of the device."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, kind_of, log_x
from paper_figs.table import Claim

SOURCE = "offload/equality"


def draw(df: pd.DataFrame) -> Figure:
    """Conflict misses, and equal bits, by arm and size."""
    fig, (conflicts, bits) = style.figure(1, 2)
    colours = colour_of(df["point.arm"])
    for place, (arm, rows) in enumerate(df.groupby("point.arm", sort=False)):
        mean = rows.groupby("point.multiple")[["metrics.conflicts", "metrics.rows", "metrics.same_bits"]].mean()
        share = 100 * mean["metrics.conflicts"] / mean["metrics.rows"]
        style.line(conflicts, mean.index, share, kind_of(df), colours[arm], str(arm))
        for marker, good in (("o", True), ("x", False)):
            sizes = rows.loc[(rows["metrics.same_bits"] == 1) == good, "point.multiple"]
            bits.plot(sizes, [place] * len(sizes), marker, color=style.colour(2 if good else 1))
    conflicts.set(xlabel="lines / distinct rows of two batches", ylabel="conflict misses, % of rows")
    log_x(conflicts, df["point.multiple"])
    conflicts.legend()
    bits.set(xlabel="lines / distinct rows of two batches", title="o: bits of all rows on the device; x: not")
    log_x(bits, df["point.multiple"])
    bits.set_yticks(range(len(colours)), list(map(str, colours)))
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """How many runs are equal, and that they had conflicts."""
    small = df.loc[df["point.multiple"] < 1]
    share = 100 * (small["metrics.conflicts"] / small["metrics.rows"]).min()
    got = (
        f"{int(df['metrics.same_bits'].sum())} of {len(df)} runs; below 1x at least {share:.0f} % of rows conflict; "
        f"{int(df['metrics.leases'].sum())} leases left out"
    )
    return [Claim("cached and pipelined training ends with the bits of all rows on the device, every arm and size from "
                  "0.25x to 4x two batches' rows", "none", got, kind_of(df), got.split(";")[0])]  # fmt: skip
