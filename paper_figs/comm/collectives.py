"""Collective time against size by link and kind, AllReduce over AlltoAll, and our exchange over the bare calls."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "comm/collectives"
LIMIT = 1.15
LARGE = 500_000
"""Bytes of an exchange above which start-up is not what it takes."""


def draw(df: pd.DataFrame) -> Figure:
    """Both links of the first cluster and rate; the ratio of AllReduce in all of them; exchanges over bare calls."""
    fig, axes = style.figure(2, 2, height=2.4)
    kind, calls, exchanges = _kind(df), _part(df, "collective"), _part(df, "exchange")
    sweeps = {str(title): part for title, part in calls.groupby(_where(calls), sort=False)}
    first, rows = next(iter(sweeps.items()))
    for ax, link in zip(axes, ("nic", "intra"), strict=False):
        of_link = rows.loc[rows["point.link"] == link]
        for i, (name, part) in enumerate(of_link.groupby("point.collective", sort=False)):
            style.line(ax, part["point.size"], part["metrics.ms"], kind, i, str(name))
        ax.set(xscale="log", yscale="log", xlabel="bytes a rank has", ylabel="ms", title=f"{link}, {first}")
    axes[0].legend(loc="lower right", fontsize=6)
    for i, (title, part) in enumerate(sweeps.items()):
        for link, look in (("nic", "-"), ("intra", ":")):
            ratio = _reduce_over_exchange(part.loc[part["point.link"] == link])
            if len(ratio):
                style.line(axes[2], ratio.index, ratio, kind, i, f"{link}, {title}", linestyle=look)
    axes[2].set(xscale="log", xlabel="bytes a rank has", ylabel="AllReduce / AlltoAll", title="what a hot tier trades")
    axes[2].set_ylim(0, 1.5 * axes[2].get_ylim()[1])  # room for the legend
    axes[2].legend(ncols=2, fontsize=6, loc="upper right")
    for i, (strategy, part) in enumerate(exchanges.groupby("point.strategy", sort=False)):
        for link, marker in (("nic", "o"), ("intra", "s")):
            of_link = part.loc[part["point.link"] == link]
            label = f"{strategy}, {link}" if len(of_link) else None
            style.line(axes[3], of_link["metrics.load"], of_link["metrics.ratio"], kind, i, label, linestyle="",
                       marker=marker)  # fmt: skip
    axes[3].axhline(LIMIT, color="#333333", linewidth=0.8)
    axes[3].set(xscale="log", xlabel="bytes of the busiest end", ylabel="exchange / bare calls", title="ours over bare")
    axes[3].legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The ratio at the largest size, and the exchange's overhead by link."""
    kind, found = _kind(df), []
    got = []
    calls = _part(df, "collective")
    for title, part in calls.groupby(calls["point.link"] + " " + _where(calls), sort=False):
        ratio = _reduce_over_exchange(part)
        got.append(f"{title}: {ratio.iloc[-1]:.2f} at {part['point.size'].max():,.0f} bytes")
    found.append(Claim("AllReduce over AlltoAll of one buffer", "FEC: hot tier", "; ".join(got), kind))
    exchanges, got = _part(df, "exchange"), []
    for title, part in exchanges.groupby(exchanges["point.link"] + " " + _where(exchanges), sort=False):
        large = part["metrics.load"].ge(LARGE)
        for what, rows in (("more", part.loc[large]), ("less", part.loc[~large])):
            if len(rows):
                good = int(rows["metrics.ratio"].le(LIMIT).sum())
                got.append(
                    f"{title}, {what}: {rows['metrics.ratio'].median():.2f} in the median "
                    f"(values alone {rows['metrics.values_ratio'].median():.2f}), {good} of {len(rows)} in the limit"
                )
    claim = f"keys and values at most {LIMIT}x the bare all_to_all_single calls of as many bytes, by {LARGE / 1e6:g} MB"
    found.append(Claim(claim, "none", "; ".join(got), kind))
    return found


def _part(df: pd.DataFrame, name: str) -> pd.DataFrame:
    return df.loc[df["point.part"] == name]


def _reduce_over_exchange(part: pd.DataFrame) -> pd.Series:
    """By size."""
    ms = part.pivot_table(index="point.size", columns="point.collective", values="metrics.ms")
    return ms["all_reduce"] / ms["all_to_all"] if len(ms) else pd.Series(dtype=float)


def _where(df: pd.DataFrame) -> pd.Series:
    """Cluster and rate in words, of each record."""
    return df["config.nodes"].astype(str) + "x" + df["config.ranks_per_node"].astype(str) + " " + df["point.rate"]


def _kind(df: pd.DataFrame) -> Kind:
    return df["kind"].iloc[0]
