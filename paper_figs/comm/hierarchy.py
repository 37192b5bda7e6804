"""The pooled exchange flat and through the node: bytes of values between nodes, and time, by rate and ranks a node."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "comm/hierarchy"
TARGET = ("200mbit", 4)
FORMS = ("flat", "hierarchical")


def draw(df: pd.DataFrame) -> Figure:
    """Bytes of values between nodes; communication time; how many times faster."""
    fig, (bytes_, ms, speedup) = style.figure(1, 3, height=2.8)
    kind = _kind(df)
    once = df.loc[df["point.rate"] == df["point.rate"].iloc[0]]
    for i, form in enumerate(FORMS):
        shift = 0.4 * i - 0.2
        style.bars(bytes_, [x + shift for x in range(len(once))], once[f"metrics.{form}_values_between"] / 1e6, kind, i,
                   form, width=0.4)  # fmt: skip
        style.bars(ms, [x + shift for x in range(len(df))], df[f"metrics.{form}_ms"], kind, i, form, width=0.4)
    style.bars(speedup, range(len(df)), df["metrics.speedup"], kind, 1, width=0.6)
    ends = [df["metrics.speedup"] - df["metrics.speedup_low"], df["metrics.speedup_high"] - df["metrics.speedup"]]
    speedup.errorbar(range(len(df)), df["metrics.speedup"], yerr=ends, fmt="none", ecolor="#333333", elinewidth=0.8)
    speedup.axhline(1, color="#333333", linewidth=0.8)
    bytes_.set(ylabel="MB a step", title="values between nodes; L, layout")
    bytes_.set_xticks(range(len(once)), _names(once), rotation=90)
    ms.legend(loc="upper right")
    ms.set(ylabel="ms a step", title="communication")
    ms.set_xticks(range(len(df)), _names(df, rate=True), rotation=90)
    speedup.set(ylabel="flat / hierarchical time", title="median, 90 % interval")
    speedup.set_xticks(range(len(df)), _names(df, rate=True), rotation=90)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """L times fewer bytes, and the gain in time at the target's rate and L."""
    fewer = df["metrics.flat_values_between"] / df["metrics.hierarchical_values_between"]
    exact = int(fewer.eq(df["config.ranks_per_node"]).sum())
    found = [
        Claim("value bytes between nodes exactly L times fewer than flat, L ranks a node", "none",
              f"{exact} of {len(df)} points exactly L times", _kind(df), brief=f"{exact} of {len(df)} points"),
    ]  # fmt: skip
    rate, local = TARGET
    target = df["config.ranks_per_node"].eq(local) & df["point.rate"].eq(rate)
    rows, others = df.loc[target], df.loc[~target]
    if len(rows):
        got = "; ".join(_gain(row) for row in rows.to_dict("records"))
        brief = ", ".join(f"{row['point.layout']} {row['metrics.speedup']:.1f}x" for row in rows.to_dict("records"))
        claim = f"`hierarchical` at least 2x faster than flat at {rate} with L = {local} ranks a node"
        found.append(Claim(claim, "none", got, _kind(df), brief))
    if len(others):
        got = "; ".join(
            f"L = {row['config.ranks_per_node']}, {row['point.rate']}, {_gain(row)}"
            for row in others.to_dict("records")
        )
        found.append(Claim("how much faster elsewhere", "none", got, _kind(df)))
    return found


def _gain(row: dict) -> str:
    """One record in words."""
    return (
        f"{row['point.layout']}: {row['metrics.speedup']:.2f}x ({row['metrics.speedup_low']:.2f} to "
        f"{row['metrics.speedup_high']:.2f}), values alone {row['metrics.values_speedup']:.2f}x"
    )


def _names(df: pd.DataFrame, rate: bool = False) -> list[str]:
    """Of each record."""
    return [
        f"{row['config.ranks_per_node']} {row['point.layout']}" + (f" {row['point.rate']}" if rate else "")
        for row in df.to_dict("records")
    ]


def _kind(df: pd.DataFrame) -> Kind:
    return df["kind"].iloc[0]
