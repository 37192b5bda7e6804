"""Share of a step in embedding communication by ranks, beside the published points."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import doubling
from paper_figs.table import Claim

SOURCE = "embark/comm_share"
ARMS = ("table_row_wise, flat", "table_row_wise, hierarchical", "search")


def draw(df: pd.DataFrame) -> Figure:
    """A column a model, a line an arm."""
    df = df.assign(ranks=df["point.nodes"] * df["point.ranks_per_node"])
    paper, here = df.loc[df["kind"].eq("paper")], df.loc[df["kind"].ne("paper")]
    models = list(dict.fromkeys(here["point.model"]))
    fig, axes = style.figure(1, len(models), height=2.4)
    for ax, model in zip(axes, models, strict=True):
        for i, arm in enumerate(ARMS):
            rows = here.loc[here["point.model"].eq(model) & here["point.arm"].eq(arm)].sort_values("ranks")
            label = arm if model == models[0] else None
            style.line(ax, rows["ranks"], rows["metrics.share"], "simulated", i, label, markersize=3)
        label = "published" if model == models[0] else None
        style.line(ax, paper["ranks"], paper["metrics.share"], "paper", 6, label)
        doubling(ax, here["ranks"])
        ax.set(title=model, xlabel="ranks", ylim=(0, 100), ylabel="% of the step" if model == models[0] else "")
    fig.legend(loc="outside upper center", ncols=4, fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Ends of every curve, mean over models."""
    df = df.assign(ranks=df["point.nodes"] * df["point.ranks_per_node"])
    here = df.loc[df["kind"].ne("paper")]
    mean = here.groupby(["point.arm", "ranks"])["metrics.share"].mean()
    parts = []
    for arm in ARMS:
        if arm in mean.index.get_level_values(0):
            of_arm = mean[arm]
            parts.append(f"{arm}: " + ", ".join(f"{share:.0f} % at {ranks}" for ranks, share in of_arm.items()))
    out = here.loc[here["metrics.fits"].eq(0)]
    parts += [f"{len(out)} of {len(here)} plans would not fit in memory"] if len(out) else []
    return [
        Claim("share of embedding communication grows with ranks (mean over models)", "25 % at 8, 51 % at 128 ranks",
              "; ".join(parts), "simulated vs paper", "; ".join(parts))
    ]  # fmt: skip
