"""Throughput of every planner's plan by model, without overlap and with all of it."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import each, groups, with_cluster
from paper_figs.table import Claim

SOURCE = "embark/end_to_end"
BASE, OURS, NODE, STRONGEST = "table_row_wise", "search", "search_node", "swept"
PLANNERS = (BASE, "round_robin", "auto", "hier_auto", "torchrec", STRONGEST, OURS, NODE)
"""`uniform` is too slow to be seen beside them; the claims count it."""
OVERLAPS = ("none", "steps")


def draw(df: pd.DataFrame) -> Figure:
    """A row for each overlap, a column for each cluster and kind: million samples a second."""
    df = best_modes(df)
    panels = list(dict.fromkeys(zip(df["kind"], df["cluster"], strict=True)))
    fig, axes = style.figure(len(OVERLAPS), len(panels), height=2.2)
    for row, overlap in enumerate(OVERLAPS):
        for column, (kind, cluster) in enumerate(panels):
            ax = axes[row * len(panels) + column]
            shown = df.loc[df["kind"].eq(kind) & df["cluster"].eq(cluster) & df["point.overlap"].eq(overlap)]
            models = list(dict.fromkeys(shown["point.model"]))
            for i, planner in enumerate(PLANNERS):
                rows = shown.loc[shown["point.planner"].eq(planner)].set_index("point.model")
                there = [model for model in models if model in rows.index]
                if not there:
                    continue
                at = [models.index(model) + 0.1 * (i - 3.5) for model in there]
                label = planner if row == 0 and column == 0 else None
                style.bars(ax, at, rows.loc[there, "metrics.samples_per_s"] / 1e6, kind, i, label, width=0.1)
            ax.set(title=f"{kind}, {cluster}, overlap: {overlap}", ylabel="M samples/s" if column == 0 else "")
            ax.set_xticks(range(len(models)), models)
    fig.legend(loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The published ratio, the same with equal overlap, and the strongest baseline."""
    found = []
    for (kind, cluster), rows in groups(best_modes(df, BASE), "kind", "cluster"):
        keys = ["point.overlap", "point.planner"]
        step = rows.pivot_table(index="point.model", columns=keys, values="metrics.step_ms")
        sides = {
            "table-row-wise without overlap": ("none", BASE),
            "table-row-wise with the same overlap": ("steps", BASE),
            "HugeCTR's planner swept by hand, same overlap": ("steps", STRONGEST),
        }
        for words, side in sides.items():
            if side not in step or ("steps", OURS) not in step:
                continue
            ratio = step[side] / step["steps", OURS]
            got = f"mean {ratio.mean():.2f}x, best {ratio.max():.2f}x ({each(ratio)})"
            if ("steps", NODE) in step:
                got += f"; with node-level de-duplication mean {(step[side] / step['steps', NODE]).mean():.2f}x"
            published = side[1] == BASE
            paper = "mean 1.5x, best 1.77x (abstract)" if published else "none"
            kinds = f"{kind} vs paper" if published else kind
            found.append(Claim(f"end to end over {words}, {cluster}", paper, got, kinds))
    return found


def best_modes(df: pd.DataFrame, hierarchical: str | None = None) -> pd.DataFrame:
    """Of every planner the faster of flat and hierarchical; of planner `hierarchical` that one where there is one."""
    df = with_cluster(df)
    keys = ["kind", "cluster", "point.model", "point.overlap", "point.planner"]
    rank = df["metrics.step_ms"].where(
        ~(df["point.planner"].eq(hierarchical) & df["point.pooled"].eq("hierarchical")), 0.0
    )
    return df.loc[rank.groupby([df[key] for key in keys], sort=False).idxmin()].reset_index(drop=True)
