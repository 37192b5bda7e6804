"""Every row on every rank, at scales that fit, beside the other arms: exposed time, step time, bytes."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import KEY, kind_of, row, three
from paper_figs.table import Claim

SOURCE = "fec/replicated"


def draw(df: pd.DataFrame) -> Figure:
    """Three panels a scale."""
    scales = list(dict.fromkeys(df["point.max_rows"]))
    fig, axes = style.figure(len(scales), 3, height=2.4)
    for at, scale in enumerate(scales):
        mine = axes[3 * at : 3 * at + 3]
        three(mine, df.loc[df["point.max_rows"] == scale])
        mine[0].set_title(f"tables cut at {scale:,} rows", fontsize=7)
    axes[1].set_title(KEY, fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Bytes and step time against de-duplicated."""
    found = []
    for scale, rows in df.groupby("point.max_rows", sort=False):
        unique = row(rows, "unique")
        got = []
        for arm in ("allgather", "dense"):
            if arm in set(rows["point.arm"]):
                other = row(rows, arm)
                more = other["metrics.bytes_between"] / unique["metrics.bytes_between"]
                slower = other["metrics.step_ms"] / unique["metrics.step_ms"]
                got.append(f"{arm} {more:.2f}x the bytes, {slower:.2f}x the step time")
        share = 100 * unique["point.scale"]
        words = f"replicated rows against de-duplicated, tables cut at {scale:,} rows ({share:.2g} % of all)"
        found.append(Claim(words, "none", "; ".join(got), kind_of(df)))
    return found
