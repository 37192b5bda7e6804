"""What each part of EMBark adds to a step, from table-row-wise without overlap to everything."""

from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import each, groups, with_cluster
from paper_figs.table import Claim

SOURCE = "embark/ladder"
BASE = "table_row_wise"
EMBARK = "+unique"


def draw(df: pd.DataFrame) -> Figure:
    """A column a model: times faster than table-row-wise without overlap, hierarchical on both sides, by rung."""
    df = with_speedup(df)
    models = list(dict.fromkeys(df["point.model"]))
    fig, axes = style.figure(1, len(models), height=3.0)
    arms = df.sort_values("point.number").drop_duplicates("point.arm")["point.arm"].tolist()
    clusters = list(dict.fromkeys(zip(df["kind"], df["cluster"], strict=True)))
    for ax, model in zip(axes, models, strict=True):
        for i, (kind, cluster) in enumerate(clusters):
            rows = df.loc[df["point.model"].eq(model) & df["cluster"].eq(cluster) & df["kind"].eq(kind)]
            rows = rows.sort_values("point.number")
            label = f"{kind}, {cluster}" if model == models[0] else None
            style.line(ax, [arms.index(arm) for arm in rows["point.arm"]], rows["speedup"], kind, i, label)
        ax.axhline(1, color="#333333", linewidth=0.8)
        ax.set(title=model, ylabel="times faster" if model == models[0] else "")
        ax.set_xticks(range(len(arms)), arms, rotation=90)
    axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="lower right", fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """EMBark over the base, with overlap on one side and on both, and what each rung adds."""
    found = []
    for (kind, cluster), rows in groups(with_speedup(df), "kind", "cluster"):
        table = rows.pivot_table(index="point.model", columns="point.arm", values="speedup")
        order = rows.sort_values("point.number").drop_duplicates("point.arm")["point.arm"].tolist()
        adds = [
            f"{arm} {(table[arm] / table[before]).mean():.2f}x" for before, arm in pairwise(order) if before != "flat"
        ]
        first = f"flat {(table['flat']).mean():.2f}x of hierarchical; " if "flat" in table else ""
        got = f"{first}{', '.join(adds)} (means over {len(table)} models)"
        found.append(Claim(f"what each rung adds to the one before, {cluster}", "none", got, kind))
        if EMBARK in table and "+steps" in table:
            whole, alone = table[EMBARK], table[EMBARK] / table["+steps"]
            got = (
                f"mean {whole.mean():.2f}x, best {whole.max():.2f}x ({each(whole)}); with the same overlap on both "
                f"sides mean {alone.mean():.2f}x, best {alone.max():.2f}x"
            )
            claim = f"EMBark over table-row-wise without overlap, hierarchical on both sides, {cluster}"
            found.append(Claim(claim, "mean 1.5x, best 1.77x (abstract)", got, f"{kind} vs paper", got))
    return found


def with_speedup(df: pd.DataFrame) -> pd.DataFrame:
    """The records with `cluster` and `speedup` over the base on the same cluster."""
    df, keys = with_cluster(df), ["kind", "point.model", "cluster"]
    base = df.loc[df["point.arm"].eq(BASE), [*keys, "metrics.step_ms"]].rename(columns={"metrics.step_ms": "base_ms"})
    df = df.merge(base, on=keys, how="left", validate="many_to_one")
    return df.assign(speedup=df["base_ms"] / df["metrics.step_ms"])
