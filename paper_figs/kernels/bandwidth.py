"""Bandwidth by op, arm and bag size on the CPU, with the rate at which random rows can be read drawn in."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "kernels/peers"
ARMS = ("cpu", "torch", "fbgemm")
OPS = ("float32", "int8", "sgd", "rowwise_adagrad", "adagrad", "adam")
TITLES = {"float32": "forward, float32", "int8": "forward, bytes"}


def draw(df: pd.DataFrame) -> Figure:
    """A column of panels for uniform and for Zipf ids: effective GB/s by ids a bag, of the widest table."""
    df = df.loc[df["point.part"].isin(("forward", "step")) & (df["point.dim"] == df["point.dim"].max())]
    ops = [op for op in OPS if (df["point.what"] == op).any()]
    alphas = sorted(df["point.alpha"].unique())
    fig, axes = style.figure(len(ops), len(alphas), height=1.5)
    for row, op in enumerate(ops):
        for column, alpha in enumerate(alphas):
            ax = axes[row * len(alphas) + column]
            part = df.loc[(df["point.what"] == op) & (df["point.alpha"] == alpha)]
            ids = f"Zipf {alpha:g}" if alpha else "uniform ids"
            _panel(ax, part, f"{TITLES.get(op, f'step, {op}')}, {ids}")
            if column == 0:
                ax.set_ylabel("GB/s")
            if row == len(ops) - 1:
                ax.set_xlabel("ids a bag")
    arms = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend([*arms.values()], [*arms], loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """What share of the rate of random rows each op of ours reaches where ids are uniform."""
    ours = df.loc[(df["point.arm"] == "cpu") & (df["point.alpha"] == 0) & df["point.part"].isin(("forward", "step"))]
    shares = [
        f"{TITLES.get(str(op), f'step, {op}')} {part['metrics.of_random_rows'].min():.2f} to "
        f"{part['metrics.of_random_rows'].max():.2f}"
        for op, part in ours.groupby("point.what", sort=False)
    ]
    if not shares:
        return []
    limit = df["metrics.random_gbytes_per_s"]
    got = (
        f"{'; '.join(shares)}; the rate itself {limit.min():.0f} to {limit.max():.0f} GB/s, by row size and neighbours"
    )
    return [Claim("share of the rate of random rows, uniform ids", "none", got, ours["kind"].iloc[0])]


def _panel(ax: Axes, df: pd.DataFrame, title: str) -> None:
    """A line an arm, and the limit, whose reads were timed between them."""
    for i, arm in enumerate(ARMS):
        rows = df.loc[df["point.arm"] == arm].sort_values("point.hotness")
        if len(rows):
            kind: Kind = rows["kind"].iloc[0]
            style.line(ax, rows["point.hotness"], rows["metrics.gbytes_per_s"], kind, i, arm)
    limit = df.loc[df["point.arm"] == "cpu"].sort_values("point.hotness")
    ax.plot(limit["point.hotness"], limit["metrics.random_gbytes_per_s"], color="#333333", linewidth=0.8,
            linestyle=(0, (4, 2)), label="random rows")  # fmt: skip
    ax.set(title=title, xscale="log")
    ax.set_xticks(ticks := sorted(df["point.hotness"].unique()), [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
