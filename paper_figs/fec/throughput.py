"""Samples a second of every arm under four models; exposed time, step time and bytes beside it."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import BASELINES, COLOURS, FULL, arms_of, kind_of, row, short
from paper_figs.table import Claim

SOURCE = "fec/throughput"
PANELS = (
    ("samples_per_s", 1e3, "thousand samples/s"),
    ("exposed_ms", 1.0, "exposed ms a step"),
    ("step_ms", 1.0, "ms a step"),
    ("bytes_between", 1e6, "MB a step, node to nodes"),
)


def draw(df: pd.DataFrame) -> Figure:
    """Bars by model and arm."""
    fig, axes = style.figure(2, 2, height=2.4)
    models, arms = list(dict.fromkeys(df["point.model"])), arms_of(df)
    width = 0.8 / len(arms)
    for ax, (metric, scale, label) in zip(axes, PANELS, strict=True):
        for i, arm in enumerate(arms):
            rows = df.loc[df["point.arm"] == arm]
            at = [models.index(model) + (i - (len(arms) - 1) / 2) * width for model in rows["point.model"]]
            name = short(arm)
            style.bars(ax, at, rows[f"metrics.{metric}"] / scale, kind_of(df), COLOURS[arm], name, width=width)
        ax.set(ylabel=label)
        ax.set_xticks(range(len(models)), models)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The gain model by model."""
    got = []
    for model, rows in df.groupby("point.model", sort=False):
        full = row(rows, FULL)
        ratios = (
            f"{full[f'metrics.throughput_vs_{base}']:.2f}x" for base in BASELINES if base in set(rows["point.arm"])
        )
        got.append(f"{model} {', '.join(ratios)}")
    words = "throughput against raw, de-duplicated, node-de-duplicated, by model (published: 2.42x)"
    return [Claim(words, "abstract", "; ".join(got), kind_of(df), "; ".join(got))]
