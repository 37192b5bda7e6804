"""Table-row-wise flat and hierarchical: time of values and bytes on the busiest NIC, by cluster and model."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import each, groups, with_cluster
from paper_figs.table import Claim

SOURCE = "embark/hierarchy"
FORMS = ("flat", "hierarchical")


def draw(df: pd.DataFrame) -> Figure:
    """A column a kind: milliseconds of values above, bytes below; a bar a form, in groups of model and cluster."""
    df = with_cluster(df)
    df = df.loc[df["point.nodes"].gt(1)]
    kinds = [kind for (kind,), _ in groups(df, "kind")]
    fig, axes = style.figure(2, len(kinds), height=2.5)
    for column, kind in enumerate(kinds):
        rows = df.loc[df["kind"].eq(kind)]
        names = [key for key, _ in groups(rows, "point.model", "cluster")]
        for row, (metric, label) in enumerate((("send_ms", "ms of values a step"), ("nic_mb", "MB on a NIC a step"))):
            ax = axes[row * len(kinds) + column]
            for i, form in enumerate(FORMS):
                of_form = rows.loc[rows["point.form"].eq(form)].set_index(["point.model", "cluster"])
                at = [x + 0.4 * i - 0.2 for x in range(len(names))]
                heights = of_form.loc[names, f"metrics.{metric}"]
                style.bars(ax, at, heights, kind, i, form if row == column == 0 else None, width=0.4)
            ax.set(yscale="log", ylabel=label if column == 0 else "", title=kind if row == 0 else "")
            ax.set_xticks(
                range(len(names)), [" ".join(name) for name in names] if row else [""] * len(names), rotation=90
            )
    fig.legend(loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """How many times fewer bytes and less time, by cluster."""
    df = with_cluster(df)
    found = []
    for (kind, cluster), rows in groups(df.loc[df["point.nodes"].gt(1)], "kind", "cluster"):
        metrics = ["metrics.send_ms", "metrics.nic_mb"]
        table = rows.pivot_table(index="point.model", columns="point.form", values=metrics)
        ratio = {m: table[m, FORMS[0]] / table[m, FORMS[1]] for m in metrics}
        got = f"{ratio[metrics[1]].mean():.2f}x fewer bytes, values faster: {each(ratio[metrics[0]])}"
        found.append(Claim(f"hierarchical over flat, table-row-wise, {cluster}", "none", got, kind))
    return found
