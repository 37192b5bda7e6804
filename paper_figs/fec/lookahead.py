"""Look-ahead: the share of rows that may come early by depth, and the step at each depth."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import beside
from paper_figs.table import Claim

SOURCE = "fec/lookahead"


def draw(df: pd.DataFrame) -> Figure:
    """Safe shares by stream; step, exposed time and bytes by depth."""
    fig, axes = style.figure(1, 3, height=2.5)
    counted, stepped = _parts(df)
    beside(axes[1], df, "exposed_ms")
    beside(axes[2], df, "bytes_between", 1e6)
    for i, (stream, rows) in enumerate(counted.groupby("point.stream", sort=False)):
        style.line(axes[0], rows["point.depth"], 100 * rows["metrics.safe_share"], rows["kind"].iloc[0], i, str(stream))
    axes[0].set(ylabel="rows that may come early, %", ylim=(0, 100))
    axes[0].legend()
    kind = stepped["kind"].iloc[0]
    for i, (metric, label) in enumerate((("step_ms", "step"), ("exposed_ms", "exposed"))):
        style.line(axes[1], stepped["point.depth"], stepped[f"metrics.{metric}"], kind, i, label)
    axes[1].set(ylabel="ms a step", ylim=(0, None), title="across: exposed")
    axes[1].legend(fontsize=6)
    style.line(axes[2], stepped["point.depth"], stepped["metrics.bytes_between"] / 1e6, kind, 0)
    axes[2].set(ylabel="MB a step, node to nodes", ylim=(0, None))
    for ax in axes:
        ax.set(xlabel="batches ahead")
    style.kind_legend(fig, df["kind"])
    return fig


def _parts(df: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    counted, plain = df["point.arm"].eq("counted"), df["point.depth"].eq(0)
    return df.loc[counted].sort_values("point.depth"), df.loc[~counted & ~plain].sort_values("point.depth")


def claims(df: pd.DataFrame) -> list[Claim]:
    """Shares at the least and greatest depth, and what depth costs."""
    counted, stepped = _parts(df)
    got = []
    for stream, rows in counted.groupby("point.stream", sort=False):
        first, last = rows.iloc[0], rows.iloc[-1]
        got.append(
            f"{stream} {100 * first['metrics.safe_share']:.0f} % at depth {first['point.depth']}, "
            f"{100 * last['metrics.safe_share']:.0f} % at {last['point.depth']}"
        )
    first, last = stepped.iloc[0], stepped.iloc[-1]
    slower = last["metrics.step_ms"] / first["metrics.step_ms"]
    return [
        Claim("rows that may come early", "none", "; ".join(got), counted["kind"].iloc[0]),
        Claim(f"step time at depth {last['point.depth']} over depth {first['point.depth']}", "none", f"{slower:.2f}x",
              stepped["kind"].iloc[0]),
    ]  # fmt: skip
