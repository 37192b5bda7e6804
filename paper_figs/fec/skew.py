"""Skew and batch size: exposed time, step time and bytes by arm; lines simulated, points on the cluster."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import BASELINES, FULL, KEY, THREE, curves
from paper_figs.table import Claim

SOURCE = "fec/skew"
SWEEPS = {"alpha": "Zipf exponent", "batch": "samples a rank"}


def draw(df: pd.DataFrame) -> Figure:
    """A row of panels a sweep."""
    fig, axes = style.figure(2, 3, height=2.4)
    for at, (sweep, label) in enumerate(SWEEPS.items()):
        mine = axes[3 * at : 3 * at + 3]
        curves(mine, df.loc[df["point.sweep"].isin(("middle", sweep))], f"point.{sweep}", THREE)
        for ax in mine:
            ax.set(xlabel=label, yscale="log")
    axes[1].set_title(KEY, fontsize=6)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Ratios at the ends of the sweep."""
    full = df.loc[(df["point.arm"] == FULL) & (df["kind"] == "simulated")]
    found = []
    for sweep, label in SWEEPS.items():
        rows = full.loc[full["point.sweep"] == sweep].sort_values(f"point.{sweep}")
        got = "; ".join(
            f"{row[f'point.{sweep}']:g}: "
            + ", ".join(f"{row[f'metrics.exposed_vs_{base}']:.1f}x" for base in BASELINES)
            for row in rows.to_dict("records")
        )
        words = f"exposed time against raw, de-duplicated, node-de-duplicated by {label}"
        found.append(Claim(words, "none", got, "simulated"))
    return found
