"""Miss rates predicted from stack distances, against caches that ran."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, kind_of, log_x, mark
from paper_figs.table import Claim

SOURCE = "offload/miss_curve"
LIMIT = 1.5
"""Points of the miss rate."""


def draw(df: pd.DataFrame) -> Figure:
    """Left: predicted and seen by size, 32 ways. Right: the error in points by ways, all streams."""
    fig, (rates, errors) = style.figure(1, 2, height=2.8)
    streams = df["point.order"] + " " + df["point.alpha"].astype(str)
    colours = colour_of(streams)
    for name, rows in df.loc[df["point.ways"] == 32].groupby(streams, sort=False):
        style.line(rates, rows["point.multiple"], rows["metrics.rate_seen"], kind_of(df), colours[name], str(name))
        style.line(rates, rows["point.multiple"], rows["metrics.rate_same"], "predicted", colours[name])
    rates.set(xlabel="lines / distinct rows of two batches", ylabel="misses / distinct rows")
    log_x(rates, df["point.multiple"])
    rates.legend(fontsize=6)
    for place, (ways, rows) in enumerate(df.groupby("point.ways", sort=False)):
        error = 100 * (rows["metrics.rate_same"] - rows["metrics.rate_seen"])
        label = f"{ways}-way" if ways else "full"
        style.line(errors, rows["point.multiple"] * (1 + 0.02 * place), error, kind_of(df), place, label, linestyle="")
    mark(errors, LIMIT, -LIMIT)
    errors.set(xlabel="lines / distinct rows of two batches", ylabel="predicted - seen, points")
    log_x(errors, df["point.multiple"])
    errors.legend(fontsize=6)
    style.kind_legend(fig, [*df["kind"], "predicted"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The largest errors above three multiples, by ways, from the same batches and from past ones."""
    large, found = df.loc[df["point.multiple"] >= 3], []
    samples = [name for name in df if name.startswith("metrics.rate_sample")]
    for column, what in (("rate_same", "of the same batches"), ("rate_past", "of earlier batches"), *(
        (name.removeprefix("metrics."), "of a sample of rows") for name in samples
    ), ("rate_no_first", "of the same batches, first touches left out")):  # fmt: skip
        error = 100 * (large[f"metrics.{column}"] - large["metrics.rate_seen"]).abs()
        by_ways = error.groupby(large["point.ways"]).max()
        got = ", ".join(f"{f'{ways}-way' if ways else 'full'} {worst:.1f}" for ways, worst in by_ways.items())
        found.append(Claim(f"miss rate within {LIMIT} points from 3x two batches' rows on: curve {what}", "none",
                           f"largest error, points: {got}", f"predicted vs {kind_of(df)}",
                           brief=f"largest error, points: {got}" if what == "of the same batches" else ""))  # fmt: skip
    return found
