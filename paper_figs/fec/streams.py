"""The arms on other streams: exposed time, step time, bytes."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import FULL, KEY, MICRO, kind_of, row, three, times
from paper_figs.table import Claim

SOURCE = "fec/streams"


def draw(df: pd.DataFrame) -> Figure:
    """Three panels a stream."""
    streams = list(dict.fromkeys(df["point.stream"]))
    fig, axes = style.figure(len(streams), 3, height=1.9)
    for at, stream in enumerate(streams):
        mine = axes[3 * at : 3 * at + 3]
        three(mine, df.loc[df["point.stream"] == stream])
        mine[0].set_title(stream.rsplit("/", 1)[-1], fontsize=7)
    axes[1].set_title(KEY, fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Against raw and de-duplicated, stream by stream."""
    found = []
    for stream in dict.fromkeys(df["point.stream"]):
        rows = df.loc[df["point.stream"] == stream]
        arm = row(rows, FULL)
        got = "; ".join(
            f"against {base}: exposed {times(arm, 'exposed', base)}, throughput {times(arm, 'throughput', base)}"
            for base in ("raw", "unique", "unique_node")
            if f"metrics.exposed_vs_{base}" in arm and arm[f"metrics.exposed_vs_{base}"] > 0
        )
        if MICRO in set(rows["point.arm"]):
            parts = row(rows, MICRO)
            got += (
                f"; with micro-batches {times(parts, 'exposed', 'unique')} and {times(parts, 'throughput', 'unique')}"
            )
        name = stream.rsplit("/", 1)[-1]
        found.append(Claim(f"tier, pre-fetch and deferral on {name}", "none", got, kind_of(df)))
    return found
