"""Reduction against unique by ids a bag that are distinct, and against replicated by rows, beside the formulas."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.embark._shared import groups
from paper_figs.table import Claim

SOURCE = "embark/crossover"
ALL = "all work"
WHERES = {ALL: "_ms", "communication": "_communication_ms"}
"""What is compared, and how its metrics end."""
KEYS = ["config.nodes", "point.ranks_per_node", "config.dim", "kind"]


def draw(df: pd.DataFrame) -> Figure:
    """Time of reduction over that of the other cluster; above 1 the other one is faster. Dashed: bytes, by formula."""
    df = _first(df)
    columns = [(kind, where) for (kind,), _ in groups(df, "kind") for where in WHERES]
    fig, axes = style.figure(2, len(columns), height=2.5)
    for row, part in enumerate(("unique", "replicated")):
        for column, (kind, where) in enumerate(columns):
            ax = axes[row * len(columns) + column]
            shown = with_ratios(df.loc[df["point.part"].eq(part) & df["kind"].eq(kind)])
            for i, ((form,), rows) in enumerate(groups(shown, "point.form")):
                look = {"linestyle": ""} if part == "unique" else {}
                style.line(ax, rows["x"], rows[where], kind, i, form if where == ALL else None, markersize=3, **look)
                curve = rows.groupby("x")["metrics.formula"].median()
                style.line(ax, curve.index, curve, "predicted", i, linewidth=0.8)
            ax.axhline(1, color="#333333", linewidth=0.8)
            xlabel = "distinct ids a bag, u h" if part == "unique" else "rows of a table"
            ax.set(xscale="log", yscale="log", title=f"{kind},\n{where}", xlabel=xlabel,
                   ylabel=f"reduction / {part}" if column == 0 else "")  # fmt: skip
            if where == ALL:
                ax.legend()
    style.kind_legend(fig, [*df["kind"], "predicted"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """How often the formula names the faster cluster, and where the crossing lies."""
    found = []
    for (nodes, local, dim, kind), group in groups(df, *KEYS):
        rows = with_ratios(group)
        right = {where: 100 * (rows[where].gt(1) == rows["metrics.formula"].gt(1)).mean() for where in WHERES}
        crossings = [
            f"{form} to {part} at {'u h' if part == 'unique' else 'rows'} {crossing(of, ALL)} (communication "
            f"{crossing(of, 'communication')}, bytes {crossing(of, 'metrics.formula')})"
            for (part, form), of in groups(rows, "point.part", "point.form")
        ]
        got = (
            f"names the faster one at {right['communication']:.0f} % of {len(rows)} points for communication, "
            f"{right[ALL]:.0f} % for all work; crossings: {'; '.join(crossings)}"
        )
        claim = f"the formula of bytes decides between clusters, {nodes} x {local}, {dim} columns"
        found.append(Claim(claim, "none", got, f"predicted vs {kind}"))
    return found


def with_ratios(df: pd.DataFrame) -> pd.DataFrame:
    """The records by `x`, with the ratio of time under each of WHERES."""
    unique, ratios = df["point.part"].eq("unique"), {}
    for where, suffix in WHERES.items():
        parts = [df[f"metrics.{part}{suffix}"] for part in ("unique", "replicated") if f"metrics.{part}{suffix}" in df]
        ratios[where] = df[f"metrics.reduction{suffix}"] / parts[0].where(unique, parts[-1])
    x = (df["point.unique"] * df["point.hotness"]).where(unique, df["point.rows"])
    return df.assign(x=x, **ratios).sort_values("x", kind="stable")


def crossing(df: pd.DataFrame, column: str) -> str:
    """The x at which the ratio falls to 1, between medians of points, in words."""
    curve = df.groupby("x")[column].median()
    x, y = np.log(curve.index.to_numpy(float)), np.log(curve.to_numpy(float))
    below = np.flatnonzero(y < 0)
    if not len(below) or below[0] == 0:
        return f"above {np.exp(x[-1]):.3g}" if not len(below) else f"below {np.exp(x[0]):.3g}"
    i = below[0]
    return f"{np.exp(np.interp(0, [y[i], y[i - 1]], [x[i], x[i - 1]])):.3g}"


def _first(df: pd.DataFrame) -> pd.DataFrame:
    """The first configuration of each kind: what is drawn."""
    return df.merge(df.drop_duplicates("kind")[KEYS], on=KEYS)
