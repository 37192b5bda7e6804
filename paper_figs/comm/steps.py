"""A step's exchange predicted against emulated: seconds by strategy and rate, and the bytes on the link."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "comm/steps"
SHAPES = {"o": "round", "s": "square", "^": "triangle"}
VETH_PERCENT = 5
MARKERS = tuple(SHAPES)
"""By cluster."""


def draw(df: pd.DataFrame) -> Figure:
    """Emulated against simulated time; the error by strategy; the link's counter over the counted bytes."""
    fig, (time, error, link) = style.figure(1, 3, height=2.8)
    names, kind = list(dict.fromkeys(df["point.strategy"])), _kind(df)
    clusters = list(dict.fromkeys(_cluster(df)))
    for i, name in enumerate(names):
        for marker, cluster in zip(MARKERS, clusters, strict=False):
            rows = df.loc[(df["point.strategy"] == name) & (_cluster(df) == cluster)]
            look = {"linestyle": "", "marker": marker, "markersize": 3}
            label = name if cluster == clusters[0] else None
            style.line(time, rows["metrics.simulated_ms"], rows["metrics.seen_ms"], kind, i, label, **look)
            style.line(error, [i] * len(rows), 100 * _errors(rows), kind, i, **look)
            if "metrics.between_veth" in rows:
                over = 100 * (rows["metrics.between_veth"] / rows["metrics.between_counted"] - 1)
                style.line(link, rows["metrics.between_counted"], over, kind, i, **look)
    ends = [df["metrics.simulated_ms"].min(), df["metrics.simulated_ms"].max()]
    time.plot(ends, ends, color="#333333", linewidth=0.8)
    shapes = ", ".join(f"{cluster} {SHAPES[marker]}" for marker, cluster in zip(MARKERS, clusters, strict=False))
    time.set(xscale="log", yscale="log", xlabel="simulated ms", ylabel=f"{kind} ms", title=shapes)
    fig.legend(loc="outside right upper", fontsize=7, frameon=False)
    error.axhline(0, color="#333333", linewidth=0.8)
    error.set(ylabel=f"simulated / {kind} - 1, %")
    error.set_xticks(range(len(names)), names, rotation=60, ha="right")
    link.axhline(VETH_PERCENT, color="#333333", linewidth=0.8)
    link.set(xscale="log", xlabel="counted bytes between nodes", ylabel="link's counter above it, %", title="")
    for axis in (time.xaxis, time.yaxis, link.xaxis):
        axis.set_minor_formatter(NullFormatter())
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Bytes, the median error of the time, and the rank correlation within each rate."""
    kind, points = _kind(df), len(df)
    exact = int((df["metrics.bytes_predicted"] == df["metrics.bytes_counted"]).sum())
    errors = _errors(df).abs()
    plain = df["point.wire"].eq("table")
    groups = (_cluster(df), _cluster(df).where(plain) + ", rows as they are")
    by_cluster = "; ".join(f"{name} {100 * part.median():.0f} %" for g in groups for name, part in errors.groupby(g))
    ranks = {
        name: (_spearman(part), _spearman(part.loc[plain[part.index]]))
        for name, part in df.groupby(_cluster(df) + " " + df["point.rate"], sort=False)
    }
    by_rate = ", ".join(f"{name}: {every:.3f} ({own:.3f} rows as they are)" for name, (every, own) in ranks.items())
    found = [
        Claim("bytes predicted by every strategy and wire are the bytes sent", "none",
              f"{exact} of {points} points equal to the byte", f"predicted vs {kind}",
              brief=f"{exact} of {points} points"),
        Claim("median error of a step's simulated communication time at most 15 %, 40 points or more", "none",
              f"{100 * errors.median():.0f} % over {points} points ({by_cluster})", f"simulated vs {kind}",
              brief=f"{100 * errors.median():.0f} %"),
        Claim("Spearman's rank correlation of simulated and seen time at least 0.95 within each rate", "none",
              by_rate, f"simulated vs {kind}"),
    ]  # fmt: skip
    if "metrics.between_veth" in df:
        over = 100 * (df["metrics.between_veth"] / df["metrics.between_counted"] - 1)
        worst = df["metrics.between_counted"].to_numpy()[over.to_numpy().argmax()]
        got = (
            f"{int(over.le(VETH_PERCENT).sum())} of {points} points, median {over.median():.1f} % above; the worst "
            f"{over.max():.1f} % at {worst / 1e3:.0f} kB (each call adds a few kB, however small)"
        )
        found.append(Claim(f"the links' counters at most {VETH_PERCENT} % above the counted bytes", "none", got, kind))
    return found


def _errors(df: pd.DataFrame) -> pd.Series:
    return df["metrics.simulated_ms"] / df["metrics.seen_ms"] - 1


def _spearman(df: pd.DataFrame) -> float:
    """Rank correlation of both times."""
    ranks = df[["metrics.simulated_ms", "metrics.seen_ms"]].rank().to_numpy()
    return float(np.corrcoef(ranks.T)[0, 1])


def _cluster(df: pd.DataFrame) -> pd.Series:
    return df["config.nodes"].astype(str) + "x" + df["config.ranks_per_node"].astype(str)


def _kind(df: pd.DataFrame) -> Kind:
    return df["kind"].iloc[0]
