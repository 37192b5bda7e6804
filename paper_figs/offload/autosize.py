"""Ratings of plans by proposer, over the dense grid's."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from paper_figs import style
from paper_figs.offload._shared import colour_of, log_x, mark
from paper_figs.table import Claim

SOURCE = "offload/autosize"
OURS, ORACLE, ALONE = "water-filling", "dense grid", "sizes alone"


def draw(df: pd.DataFrame) -> Figure:
    """Rating over the dense grid's by share of memory; sizes alone over the knapsack's."""
    fig, (plans, alone) = style.figure(1, 2, height=3.0)
    ratio = _ratios(df)
    colours = colour_of(ratio["point.proposer"])
    for place, (name, rows) in enumerate(ratio.groupby("point.proposer", sort=False)):
        marker = "os^vDP*X"[place // len(style.PALETTE) * 2 % 8]
        style.line(plans, 100 * rows["point.share"], rows["over"], "predicted", colours[name], str(name), marker=marker,
                   linestyle="-" if name == OURS else ":")  # fmt: skip
    mark(plans, 1.0)
    plans.set(xlabel="device memory, % of the tables", ylabel="rating / dense grid's", yscale="log")
    plans.yaxis.set_minor_formatter(NullFormatter())
    log_x(plans, 100 * ratio["point.share"])
    plans.legend(fontsize=5, ncols=2)
    sizes = df.loc[df["point.proposer"] == ALONE]
    over = sizes["metrics.moved_bytes"] / sizes["metrics.oracle_bytes"]
    style.line(alone, 100 * sizes["point.share"], over, "predicted", 0, marker="o", linestyle="")
    mark(alone, 1.0, 1.02)
    alone.set(xlabel="device memory, % of the tables", ylabel="bytes moved / knapsack's",
              title="water-filling, all devices as one")  # fmt: skip
    log_x(alone, 100 * sizes["point.share"])
    style.kind_legend(fig, ["predicted"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Against both oracles and every load factor; times of planning."""
    ratio = _ratios(df)
    ours = ratio.loc[ratio["point.proposer"] == OURS, "over"]
    search = ratio.loc[ratio["point.proposer"] == "search", "over"]
    fixed = (
        ratio.loc[ratio["point.proposer"].str.contains("fixed")].groupby(["point.tables", "point.share"])["over"].min()
    )
    own = ratio.loc[ratio["point.proposer"] == OURS].set_index(["point.tables", "point.share"])["over"]
    sizes = df.loc[df["point.proposer"] == ALONE]
    alone = sizes["metrics.moved_bytes"] / sizes["metrics.oracle_bytes"]
    found = [
        Claim("the auto-sizer within 2 % of the dense grid", "none",
              f"rating {ours.min():.3f} to {ours.max():.3f} of the grid's best of its budgets; bytes "
              f"{alone.min():.3f} to {alone.max():.3f} of the knapsack's", "predicted",
              brief=f"{ours.min():.2f} to {ours.max():.2f} of the grid's best"),
        Claim("the auto-sizer never worse than any fixed load factor", "none",
              f"{int((own <= fixed.reindex(own.index).fillna(float('inf'))).sum())} of {len(own)} memories; "
              f"the best fixed one is {(fixed / own).min():.2f} to {(fixed / own).max():.2f} times ours", "predicted"),
        Claim("the published 16-step search against the dense grid", "none",
              f"rating {search.min():.3f} to {search.max():.3f} of the grid's best", "predicted"),
    ]  # fmt: skip
    for row in df.loc[df["point.proposer"] == "time"].to_dict("records"):
        got = f"{row['metrics.seconds']:.1f} s, {row['metrics.process_bytes'] / 1e9:.2f} GB of the process"
        got += f" ({row['metrics.model_bytes'] / 1e12:.3g} TB, {row['metrics.device_bytes'] / 1e9:.3g} GB a device; "
        got += (
            f"a map and a row-wise state of 8 B a row would alone take {row['metrics.floor_bytes'] / 1e9:.3g} GB of it)"
        )
        claim = f"planned on {row['point.ranks']} devices: {row['point.plan']}"
        found.append(Claim(claim, "none", got, row["kind"], brief=f"{row['metrics.seconds']:.1f} s"))
    return found


def _ratios(df: pd.DataFrame) -> pd.DataFrame:
    """Plans that could be placed, with their rating over the dense grid's."""
    placed = df.loc[(df["metrics.placed"] == 1) & df["metrics.rating_us"].notna()]
    key = ["point.tables", "point.share"]
    oracle = placed.loc[placed["point.proposer"] == ORACLE, [*key, "metrics.rating_us"]]
    beside = placed[key].merge(oracle, on=key, how="left")["metrics.rating_us"].to_numpy()
    return placed.assign(over=placed["metrics.rating_us"].to_numpy() / beside)
