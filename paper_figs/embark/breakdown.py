"""A step's time by part."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import groups
from paper_figs.table import Claim

SOURCE = "embark/breakdown"
PARTS = ("keys", "lookup", "send", "grad_send", "update", "dense", "dense_reduce")


def draw(df: pd.DataFrame) -> Figure:
    """Stacked bars, a panel a cluster and kind."""
    panels = list(dict.fromkeys(zip(df["kind"], df["point.nodes"], df["point.ranks_per_node"], strict=True)))
    fig, axes = style.figure(1, len(panels), height=3.0)
    for ax, (kind, nodes, local) in zip(axes, panels, strict=True):
        rows = df.loc[df["kind"].eq(kind) & df["point.nodes"].eq(nodes) & df["point.ranks_per_node"].eq(local)]
        bottom = pd.Series(0.0, index=rows.index)
        for i, part in enumerate(PARTS):
            height = rows[f"metrics.{part}_ms"].fillna(0.0)
            label = part if ax is axes[0] else None
            style.bars(ax, range(len(rows)), height, kind, i, label, bottom=bottom, width=0.7)
            bottom += height
        names = [f"{row['point.model']}, {row['point.arm']}" for row in rows.to_dict("records")]
        ax.set_xticks(range(len(rows)), names, rotation=90)
        ax.set(title=f"{kind}, {nodes} x {local}", ylabel="ms a step" if ax is axes[0] else "")
    fig.legend(loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The largest parts of a step, by arm."""
    found = []
    for (kind, nodes, local), rows in groups(df, "kind", "point.nodes", "point.ranks_per_node"):
        words = []
        for (arm,), of_arm in groups(rows, "point.arm"):
            share = {part: float((of_arm[f"metrics.{part}_ms"] / of_arm["metrics.step_ms"]).mean()) for part in PARTS}
            largest = sorted(share, key=lambda part: -share[part])[:4]
            words.append(f"{arm}: " + ", ".join(f"{part} {100 * share[part]:.0f} %" for part in largest))
        claim = f"where a step without overlap goes, mean over models, {nodes} x {local}"
        found.append(Claim(claim, "none", "; ".join(words), kind))
    return found
