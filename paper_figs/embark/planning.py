"""Quality of a plan by seconds of planning, and seconds by size."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from paper_figs import style
from paper_figs.embark._shared import groups
from paper_figs.table import Claim

SOURCE = "embark/planning"
KEYS = ["point.model", "point.tables", "point.nodes", "point.ranks_per_node", "point.moves"]


def draw(df: pd.DataFrame) -> Figure:
    """Step over that of the longest search by seconds of planning; seconds by tables."""
    plans, (fig, (quality, size)) = joined(df), style.figure(1, 2)
    for i, ((tables, nodes), rows) in enumerate(groups(plans, "point.tables", "point.nodes")):
        ranks = int(nodes * rows["point.ranks_per_node"].iloc[0])
        label = f"{tables} tables, {ranks} ranks"
        if len(rows) > 1:
            worse = 100 * (rows["step_ms"] / rows["step_ms"].min() - 1)
            style.line(quality, rows["plan_s"], worse, "simulated", i, label)
        own = rows.loc[rows["point.moves"].eq(0), "plan_s"]
        style.line(size, [tables] * len(own), own, "measured", i, label, linestyle="")
    quality.set(xlabel="s of planning, one core", ylabel="% above the best plan", xscale="log")
    size.set(xlabel="tables", ylabel="s of planning, one core", xscale="log", yscale="log")
    for axis in (quality.xaxis, size.xaxis, size.yaxis):
        axis.set_minor_formatter(NullFormatter())
    quality.legend()
    size.legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Seconds of the search's own number of moves, by size; and how good a plan half a second gives."""
    plans = joined(df)
    own = plans.loc[plans["point.moves"].eq(0)]
    own = own.assign(ranks=own["point.nodes"] * own["point.ranks_per_node"])
    got = ", ".join(
        f"{row['point.tables']} tables on {row['ranks']} ranks {row['plan_s']:.2f} s" for row in own.to_dict("records")
    )
    found = [Claim("T510 on 128 ranks planned within 2 s; seconds as it grows", "none", got, "measured", got)]
    for (model, tables, nodes), rows in groups(plans, *KEYS[:3]):
        if len(rows) > 1:
            first = rows.iloc[0]
            worse = 100 * (first["step_ms"] / rows["step_ms"].min() - 1)
            got = f"{first['plan_s']:.2f} s: {worse:.2f} % above the best ({model}, {tables} tables, {nodes} nodes)"
            found.append(
                Claim("a plan within 2 % of that of the longest search in 0.5 s", "none", got, "measured", got)
            )
    return found


def joined(df: pd.DataFrame) -> pd.DataFrame:
    """A row a plan: its step and the seconds it took."""
    step = df.loc[df["kind"].eq("simulated"), [*KEYS, "metrics.step_ms"]].rename(columns={"metrics.step_ms": "step_ms"})
    took = df.loc[df["kind"].eq("measured"), [*KEYS, "metrics.plan_s"]].rename(columns={"metrics.plan_s": "plan_s"})
    return step.merge(took, on=KEYS, validate="one_to_one").sort_values("plan_s")
