"""Throughput of every planner's plan by model, without overlap and with all of it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments.record import Kind
from paper_figs import style
from paper_figs.embark._shared import each, groups, with_cluster
from paper_figs.table import Claim

SOURCE = "embark/end_to_end"
BASE, OURS, NODE, STRONGEST = "table_row_wise", "search", "search_node", "swept"
PLANNERS = (BASE, "round_robin", "auto", "hier_auto", "torchrec", STRONGEST, OURS, NODE)
"""`uniform` is too slow to be seen beside them; the claims count it."""
SAID = {"simulated_ms": "simulator", "score_ms": "planner's score"}
"""What foretold a step that ran: with its links and compute measured, and before anything ran."""
OVERLAPS = ("none", "steps")


def draw(df: pd.DataFrame) -> Figure:
    """A row for each overlap, a column for each kind and cluster, the largest of the simulated ones: samples a second.
    Where plans ran, a row more: what the simulator and the planner's score said of each, over what the clock saw.
    """
    best = best_modes(largest(df))
    panels = [key for key, _ in groups(best, "kind", "cluster")]
    ran = "metrics.simulated_ms" in df
    fig, axes = style.figure(len(OVERLAPS) + ran, len(panels), height=2.2)
    for row, overlap in enumerate(OVERLAPS):
        for column, (kind, cluster) in enumerate(panels):
            ax = axes[row * len(panels) + column]
            shown = best.loc[best["kind"].eq(kind) & best["cluster"].eq(cluster) & best["point.overlap"].eq(overlap)]
            models = list(dict.fromkeys(shown["point.model"]))
            for i, planner in enumerate(PLANNERS):
                rows = shown.loc[shown["point.planner"].eq(planner)].set_index("point.model")
                there = [model for model in models if model in rows.index]
                at = [models.index(model) + 0.1 * (i - 3.5) for model in there]
                label = planner if row == 0 and column == 0 else None
                rate = rows.loc[there, "metrics.samples_per_s"]
                style.bars(ax, at, rate / rate_unit(kind), kind, i, label, width=0.1)
            unit = "M samples/s" if rate_unit(kind) > 1 else "samples/s"
            ax.set(title=f"{kind}, {cluster}, overlap: {overlap}", ylabel=unit)
            ax.set_xticks(range(len(models)), models)
    for column, (kind, cluster) in enumerate(panels) if ran else ():
        ax = axes[len(OVERLAPS) * len(panels) + column]
        rows = with_cluster(df)
        rows = rows.loc[rows["kind"].eq(kind) & rows["cluster"].eq(cluster)].dropna(subset=["metrics.simulated_ms"])
        ax.set_axis_off() if rows.empty else _against_the_clock(ax, rows, kind)
    fig.legend(loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def largest(df: pd.DataFrame) -> pd.DataFrame:
    """The records that ran, and of those that are simulated the ones with the most nodes."""
    return df.loc[df["kind"].ne("simulated") | df["point.nodes"].eq(df["point.nodes"].max())]


def rate_unit(kind: str) -> float:
    """Samples a second that an axis counts in: a cluster on slow links does thousands, one on paper millions."""
    return 1e6 if kind == "simulated" else 1.0


def _against_the_clock(ax: Axes, rows: pd.DataFrame, kind: Kind) -> None:
    for i, said in enumerate(SAID):
        look = {"linestyle": "", "markersize": 3}
        style.line(ax, rows["metrics.step_ms"], rows[f"metrics.{said}"], kind, i, SAID[said], **look)
    ends = [rows["metrics.step_ms"].min(), rows["metrics.step_ms"].max()]
    ax.plot(ends, ends, color="#333333", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel=f"{kind} ms", ylabel="foretold ms")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    ax.legend()


def claims(df: pd.DataFrame) -> list[Claim]:
    """The published ratio, the same with equal overlap, and the strongest baseline."""
    found = []
    for (kind, cluster), rows in groups(best_modes(largest(df), BASE), "kind", "cluster"):
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
            found.append(Claim(f"end to end over {words}, {cluster}", paper, got, kinds, got))
    if "metrics.simulated_ms" in df:
        ran = with_cluster(df).dropna(subset=["metrics.simulated_ms"])
        for (kind, cluster), rows in groups(ran, "kind", "cluster"):
            words = []
            for said, name in SAID.items():
                ranks = [rank_correlation(of_model, said) for _, of_model in groups(rows, "point.model")]
                error = (rows[f"metrics.{said}"] / rows["metrics.step_ms"] - 1).abs().median()
                words.append(f"{name} {min(ranks):.2f} to {max(ranks):.2f}, median error {100 * error:.0f} %")
            got = f"{'; '.join(words)} ({len(rows)} plans and overlaps of {rows['point.model'].nunique()} models)"
            claim = f"plans rank as foretold: Spearman's correlation within a model, {cluster}"
            found.append(Claim(claim, "none", got, f"simulated vs {kind}", got))
    return found


def rank_correlation(df: pd.DataFrame, said: str) -> float:
    """Spearman's, of what was said and what the clock saw."""
    ranks = df[[f"metrics.{said}", "metrics.step_ms"]].rank().to_numpy()
    return float(np.corrcoef(ranks.T)[0, 1])


def best_modes(df: pd.DataFrame, hierarchical: str | None = None) -> pd.DataFrame:
    """Of every planner the faster of flat and hierarchical; of planner `hierarchical` that one where there is one."""
    df = with_cluster(df)
    keys = ["kind", "cluster", "point.model", "point.overlap", "point.planner"]
    rank = df["metrics.step_ms"].where(
        ~(df["point.planner"].eq(hierarchical) & df["point.pooled"].eq("hierarchical")), 0.0
    )
    return df.loc[rank.groupby([df[key] for key in keys], sort=False).idxmin()].reset_index(drop=True)
