"""Bit for bit: which arms end with the weights of plain synchronous steps, and their losses."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.table import Claim

SOURCE = "fec/equality"
APART = "tier ring"
"""The arm that is not meant to be equal."""


def draw(df: pd.DataFrame) -> Figure:
    """Loss curves of the first optimizer and world (all on one line where bits agree); a table of equal bits."""
    fig, (losses, table) = style.figure(1, 2, height=3.0)
    curves, ends = _parts(df)
    first = curves[["point.optimizer", "point.ranks"]].iloc[0]
    shown = curves.loc[(curves[["point.optimizer", "point.ranks"]] == first).all(axis=1)]
    for i, (arm, rows) in enumerate(shown.groupby("point.arm", sort=False)):
        width = 1 + 0.6 * (shown["point.arm"].nunique() - i)
        style.line(losses, rows["point.step"], rows["metrics.loss"], rows["kind"].iloc[0], i % len(style.PALETTE),
                   str(arm), marker="", linewidth=width)  # fmt: skip
    losses.set(xlabel="step", ylabel=f"loss, {first.iloc[0]}, {first.iloc[1]} ranks")
    fig.legend(*losses.get_legend_handles_labels(), loc="outside upper center", fontsize=6, ncols=5)
    arms = list(dict.fromkeys(ends["point.arm"]))
    cases = list(dict.fromkeys(zip(ends["point.optimizer"], ends["point.ranks"], strict=True)))
    for row in ends.to_dict("records"):
        at = cases.index((row["point.optimizer"], row["point.ranks"])), arms.index(row["point.arm"])
        equal = row["metrics.same_bits"] == 1
        table.plot(*at, marker="o" if equal else "x", color=style.colour(2 if equal else 1), linestyle="")
    table.set_xticks(range(len(cases)), [f"{name}, {ranks}" for name, ranks in cases], rotation=60, ha="right")
    table.set_yticks(range(len(arms)), arms, fontsize=6)
    table.set_title("o: bits of the plain step; x: not", fontsize=7)
    style.kind_legend(fig, df["kind"])
    return fig


def _parts(df: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Points of curves, and ends of runs."""
    curve = df["point.step"].notna()
    return df.loc[curve], df.loc[~curve]


def claims(df: pd.DataFrame) -> list[Claim]:
    """How many runs are equal."""
    _, ends = _parts(df)
    exact = ends.loc[ends["point.arm"] != APART]
    equal = int(exact["metrics.same_bits"].sum())
    cases = ", ".join(dict.fromkeys(exact["point.optimizer"]))
    worlds = " and ".join(str(n) for n in dict.fromkeys(exact["point.ranks"]))
    steps = exact["samples"].min()
    got = f"{equal} of {len(exact)} runs of {steps} steps ({cases}; {worlds} ranks); ranks agree in "
    got += f"{int(ends['metrics.ranks_agree'].sum())} of {len(ends)}"
    found = [
        Claim("weights, states and losses equal to plain synchronous steps, bit for bit", "none", got, "measured", got)
    ]
    ring = ends.loc[ends["point.arm"] == APART]
    if len(ring):
        got = f"{int(ring['metrics.same_bits'].sum())} of {len(ring)} equal; losses differ by at most "
        got += f"{ring['metrics.largest_loss_difference'].max():.1e}"
        found.append(Claim("a ring's order instead of the canonical one", "none", got, "measured"))
    return found
