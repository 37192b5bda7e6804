"""How much there is to gain by the share of communication in the baseline's step; lines simulated, points clocked."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import FULL, KEY, MICRO, THREE, curves, kind_of
from paper_figs.table import Claim

SOURCE = "fec/window"
RATIOS = tuple((f"{what}_vs_unique", 1.0, f"{what}, x against de-dup.") for what in ("exposed", "throughput"))


def draw(df: pd.DataFrame) -> Figure:
    """Ratios to de-duplicated and to raw; then exposed time, step time and bytes."""
    fig, axes = style.figure(2, 3, height=2.4)
    curves(axes[:3], df, "point.share", (*RATIOS, ("throughput_vs_raw", 1.0, "throughput, x against raw")))
    curves(axes[3:], df, "point.share", THREE)
    for ax in axes:
        ax.set(xlabel="communication's share of the de-dup. step")
    axes[1].set_title(KEY, fontsize=6)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The gain at every share that was clocked; of a run that clocked none, as simulated."""
    found = []
    for arm, words in ((FULL, "tier, pre-fetch, deferral"), (MICRO, "the same with micro-batches")):
        rows = df.loc[df["point.arm"] == arm]
        clocked = rows.loc[rows["kind"] != "simulated"]
        clocked = (clocked if len(clocked) else rows).sort_values("point.share")
        got = "; ".join(
            f"{100 * row['point.share']:.0f} %: {row['metrics.exposed_vs_unique']:.1f}x, "
            f"{row['metrics.throughput_vs_unique']:.2f}x"
            for row in clocked.to_dict("records")
        )
        name = f"{words} against de-duplicated by share of communication: exposed time, throughput"
        found.append(Claim(name, "none", got, kind_of(clocked)))
    return found
