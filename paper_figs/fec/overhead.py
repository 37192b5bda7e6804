"""What the bookkeeping costs: stamps and judging, the remap to tiers, the counting pass; in the fixed cell."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import COLOURS, FULL, KEY, arms_of, kind_of, row, short, three
from paper_figs.table import Claim

SOURCE = "fec/comm_time"
PERCENT = 3


def draw(df: pd.DataFrame) -> Figure:
    """Stamping and remapping as a share of the step; beside them the step's three usual panels."""
    fig, axes = style.figure(2, 2, height=2.6)
    arms = arms_of(df)
    for at, arm in enumerate(arms):
        share = 100 * sum(overhead_ms(df, arm)) / row(df, arm)["metrics.step_ms"]
        style.bars(axes[0], [at], share, kind_of(df), COLOURS[arm])
    axes[0].axhline(PERCENT, color="#333333", linewidth=0.8)
    axes[0].set(ylabel="stamps + remap, % of the step", title=KEY)
    axes[0].set_xticks(range(len(arms)), [short(arm) for arm in arms], rotation=60, ha="right", fontsize=6)
    three(axes[1:], df)
    style.kind_legend(fig, df["kind"])
    return fig


def overhead_ms(df: pd.DataFrame, arm: str) -> tuple[float, float]:
    """Milliseconds of stamping; of the remap: what de-duplication takes longer than without tiers, if it does."""
    found = row(df, arm)
    cold = {False: "unique", True: "prefetch+deferral"}[found["metrics.stamping_ms"] > 0]
    base = row(df, cold if cold in set(df["point.arm"]) else "unique")
    remap = max(0.0, found["metrics.dedup_ms"] - base["metrics.dedup_ms"]) if found["metrics.hot_rows"] else 0.0
    return found["metrics.stamping_ms"], remap


def claims(df: pd.DataFrame) -> list[Claim]:
    """The bound on stamps and remap, and the counting pass."""
    found = row(df, FULL)
    stamping, remap = overhead_ms(df, FULL)
    percent = 100 * (stamping + remap) / found["metrics.step_ms"]
    got = f"{percent:.2f} % ({stamping:.2f} ms + {remap:.2f} ms of {found['metrics.step_ms']:.0f} ms), beside the step"
    counting = f"{found['metrics.counting_s_per_batch'] * 1e3:.0f} ms a global batch, once, on one core"
    return [
        Claim(f"stamping and remapping at most {PERCENT} % of a step", "none", got, kind_of(df), got),
        Claim("the counting pass", "none", counting, "measured"),
    ]
