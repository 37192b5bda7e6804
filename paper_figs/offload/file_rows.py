"""Rows/s of the file tier beside a bare reader, by transfers in flight."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import groups, kind_of
from paper_figs.table import Claim

SOURCE = "offload/file_rows"


def draw(df: pd.DataFrame) -> Figure:
    """Thousand rows/s over transfers in flight, by size of the record."""
    fig, (rate,) = style.figure(width=style.COLUMN)
    colour = 0
    for (record,), rows in groups(df, ["point.record"]):
        ordered = rows.sort_values(by="point.depth")
        reads, writes = (ordered.loc[ordered["point.what"] == what] for what in ("read", "write"))
        series = {
            f"bare reader, {record} B": (reads, "bare_rows_per_s"),
            "the tier's reads": (reads, "rows_per_s"),
            "the tier's writes": (writes, "rows_per_s"),
        }
        for label, (of, metric) in series.items():
            style.line(rate, of["point.depth"], of[f"metrics.{metric}"] / 1e3, kind_of(df), colour, label)
            colour += 1
    rate.set(xlabel="transfers in flight", ylabel="thousand rows/s", xscale="log")
    rate.set_xticks(sorted(df["point.depth"].unique()), [f"{d:g}" for d in sorted(df["point.depth"].unique())])
    rate.legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The tier's share of the bare reader's rows/s at the greatest depth."""
    deepest = df.loc[(df["point.what"] == "read") & (df["point.depth"] == df["point.depth"].max())]
    shares = [
        f"{row['point.record']} B a record: {row['metrics.share']:.2f} (interval {row['metrics.share_low']:.2f} to "
        f"{row['metrics.share_high']:.2f}; {row['metrics.bare_rows_per_s'] / 1e3:.0f} thousand bare rows/s)"
        for _, row in deepest.iterrows()
    ]
    depth = int(df["point.depth"].max())
    return [Claim(f"the file tier's rows/s over those of a bare reader, {depth} in flight", "at least 0.60",
                  "; ".join(shares), kind_of(df))]  # fmt: skip
