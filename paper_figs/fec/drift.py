"""A hot set that ages over a changing log, with and without re-tiering: the model's price, and steps at the end."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import beside, kind_of
from paper_figs.table import Claim

SOURCE = "fec/drift"


def draw(df: pd.DataFrame) -> Figure:
    """Exposed time by epoch; at the last one, steps and bytes on the cluster."""
    fig, axes = style.figure(1, 3, height=2.5)
    lines, df = df, df.loc[df["point.hot_set"] != "baseline"]
    clocked, priced = df.loc[df["kind"] != "predicted"], df.loc[df["kind"] == "predicted"]
    sets = list(dict.fromkeys(df["point.hot_set"]))
    for i, name in enumerate(sets):
        rows = priced.loc[priced["point.hot_set"] == name].sort_values("point.epoch")
        style.line(axes[0], rows["point.epoch"], rows["metrics.exposed_ms"], "predicted", i, name)
        seen = clocked.loc[clocked["point.hot_set"] == name]
        style.line(axes[0], seen["point.epoch"], seen["metrics.exposed_ms"], kind_of(clocked), i, linestyle="")
        for ax, metric, scale in ((axes[1], "step_ms", 1.0), (axes[2], "bytes_between", 1e6)):
            style.bars(ax, [i], seen[f"metrics.{metric}"] / scale, kind_of(clocked), i)
            ax.set_xticks(range(len(sets)), sets)
    for ax, metric, scale in zip(axes, ("exposed_ms", "step_ms", "bytes_between"), (1.0, 1.0, 1e6), strict=True):
        beside(ax, lines, metric, scale)
    axes[0].set(xlabel="epoch", ylabel="exposed ms a step", ylim=(0, None))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    axes[1].set(ylabel="ms a step, last epoch")
    axes[2].set(ylabel="MB a step, node to nodes, last epoch")
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """What age costs at the end."""
    df = df.loc[df["point.hot_set"] != "baseline"]
    clocked = df.loc[df["kind"] != "predicted"].set_index("point.hot_set")
    step, exposed = clocked["metrics.step_ms"], clocked["metrics.exposed_ms"]
    aged, fresh = step["aged"] / step["none"], step["fresh"] / step["none"]
    moved = df.loc[(df["point.hot_set"] == "fresh") & (df["kind"] == "predicted"), "metrics.rows_moved"].max()
    got = (
        f"exposed {exposed['aged'] / exposed['fresh']:.2f}x, step {step['aged'] / step['fresh']:.2f}x of the fresh "
        f"set's; against no tier {aged:.2f}x and {fresh:.2f}x; {moved:.0f} rows change tiers"
    )
    share = 100 * df["config.cell.moved"].iloc[0]
    epochs = int(df["point.epoch"].max())
    words = f"a hot set after {epochs} epochs in each of which {share:.0f} % of rows trade places"
    return [Claim(words, "none", got, kind_of(clocked))]
