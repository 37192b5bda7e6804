"""The size of the hot set swept, the model's choice marked: step time, exposed time, bytes, and the model's price."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import beside, kind_of, short
from paper_figs.table import Claim

SOURCE = "fec/boundary"
PERCENT = 5
METRICS = (
    ("step_ms", 1.0, "ms a step"),
    ("exposed_ms", 1.0, "exposed ms"),
    ("bytes_between", 1e6, "MB, node to nodes"),
)


def draw(df: pd.DataFrame) -> Figure:
    """Step time, exposed time and bytes over hot rows, by arm."""
    fig, axes = style.figure(1, 3, height=2.5)
    lines, df = df, df.loc[df["point.size"] != "baseline"]
    arms, kind = list(dict.fromkeys(df["point.arm"])), kind_of(df)
    for i, arm in enumerate(arms):
        swept, weighed = _parts(df, arm)
        for ax, (metric, scale, label) in zip(axes, METRICS, strict=True):
            style.line(ax, swept["metrics.hot_rows"], swept[f"metrics.{metric}"] / scale, kind, i, short(arm))
            at = swept.loc[swept["point.size"] == "chosen"]
            ax.plot(at["metrics.hot_rows"], at[f"metrics.{metric}"] / scale, "*", color=style.colour(i), markersize=10)
            ax.set(xlabel="rows with copies (star: chosen)", ylabel=label)
            ax.set_xscale("symlog", linthresh=100)
            ax.set_xlim(left=0)
        shown = weighed.loc[weighed["metrics.hot_rows"] <= 1.5 * swept["metrics.hot_rows"].max()]
        style.line(axes[1], shown["metrics.hot_rows"], shown["metrics.predicted_exposed_ms"], "predicted", i)
    first = lines.drop_duplicates("point.arm")  # of two sweeps in one run, either cell's
    for ax, (metric, scale, _) in zip(axes, METRICS, strict=True):
        top = df.loc[df["point.size"] != "weighed", f"metrics.{metric}"].max() / scale
        beside(ax, first, metric, scale)
        ax.set_ylim(0, 1.3 * top)  # raw steps are far above
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def _parts(df: pd.DataFrame, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What was stepped, and what was weighed, by size."""
    mine = df.loc[df["point.arm"] == arm].sort_values("metrics.hot_rows", kind="stable")
    weighed = mine["point.size"].eq("weighed")
    return mine.loc[~weighed], mine.loc[weighed]


def claims(df: pd.DataFrame) -> list[Claim]:
    """Regret of the choice, by arm."""
    got, df = [], df.loc[df["point.size"] != "baseline"]
    for arm in dict.fromkeys(df["point.arm"]):
        swept, _ = _parts(df, arm)
        chosen = swept.loc[swept["point.size"] == "chosen"].to_dict("records")[0]
        best = swept.loc[swept["metrics.throughput_vs_chosen"].idxmax()].to_dict()
        regret = 100 * (best["metrics.throughput_vs_chosen"] - 1)  # round by round, which a slow machine does not move
        got.append(
            f"{short(arm)}: {chosen['metrics.hot_rows']:.0f} rows, {regret:.1f} % over the best swept "
            f"({best['metrics.hot_rows']:.0f} rows)"
        )
    words = f"the boundary that the model chose at most {PERCENT} % slower than the best of the sweep"
    return [Claim(words, "none", "; ".join(got), kind_of(df), "; ".join(got))]
