"""Throughput by nodes, strong and weak scaling."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import doubling, groups
from paper_figs.table import Claim

SOURCE = "embark/scaling"
ARMS = (("table_row_wise", "none"), ("table_row_wise", "steps"), ("search", "steps"))


def draw(df: pd.DataFrame) -> Figure:
    """A row a form of scaling, a column a model, a line an arm; grey: linear scaling of the last arm."""
    models, forms = list(dict.fromkeys(df["point.model"])), list(dict.fromkeys(df["point.form"]))
    fig, axes = style.figure(len(forms), len(models), height=2.1)
    for row, form in enumerate(forms):
        for column, model in enumerate(models):
            ax = axes[row * len(models) + column]
            shown = df.loc[df["point.form"].eq(form) & df["point.model"].eq(model)]
            for i, (arm, overlap) in enumerate(ARMS):
                rows = _of(shown, arm, overlap)
                label = f"{arm}, overlap: {overlap}" if row == column == 0 else None
                style.line(
                    ax, rows["point.nodes"], rows["metrics.samples_per_s"] / 1e6, "simulated", i, label, markersize=3
                )
            best = _of(shown, *ARMS[-1])
            one = best["metrics.samples_per_s"].iloc[0] / best["point.nodes"].iloc[0] / 1e6
            ax.plot(best["point.nodes"], one * best["point.nodes"], color="#888888", linewidth=0.8)
            ax.set(title=f"{model}, {form}", yscale="log", ylabel="M samples/s" if column == 0 else "",
                   xlabel="nodes of 8" if row == len(forms) - 1 else "")  # fmt: skip
            doubling(ax, df["point.nodes"])
    fig.legend(loc="outside upper center", ncols=3, fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Efficiency at the most nodes, by form and arm, mean over models."""
    found = []
    for (form,), rows in groups(df, "point.form"):
        parts = []
        for arm, overlap in ARMS:
            of_arm = _of(rows, arm, overlap)
            of_arm = of_arm.assign(rate=of_arm["metrics.samples_per_s"] / of_arm["point.nodes"])
            ends = {model: of["rate"].iloc[-1] / of["rate"].iloc[0] for (model,), of in groups(of_arm, "point.model")}
            each = ", ".join(f"{model} {100 * x:.0f} %" for model, x in ends.items())
            mean = sum(ends.values()) / len(ends)
            parts.append(f"{arm}, overlap {overlap}: mean {100 * mean:.0f} % ({each})")
        nodes = (int(rows["point.nodes"].min()), int(rows["point.nodes"].max()))
        claim = f"{form} scaling: throughput a node at {nodes[1]} nodes over that at {nodes[0]}"
        out = rows.loc[rows["metrics.fits"].eq(0)]
        parts += [f"{len(out)} of {len(rows)} plans would not fit in memory"] if len(out) else []
        found.append(Claim(claim, "none", "; ".join(parts), "simulated"))
    return found


def _of(df: pd.DataFrame, arm: str, overlap: str) -> pd.DataFrame:
    return df.loc[df["point.arm"].eq(arm) & df["point.overlap"].eq(overlap)].sort_values(["point.nodes"])
