"""One step of an embedding table by backend: how many times faster than eager torch, phase by phase."""

import math

import pandas as pd
from matplotlib.figure import Figure

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "kernels/step"
BASE = "eager"
PHASES = ("lookup", "update", "step")
OURS = ("cpu", "triton", "numba")
CLAIMED = (("lookup", "forward", 0.95), ("update", "fused backward + row-wise Adagrad", 8))


def draw(df: pd.DataFrame) -> Figure:
    """Speed over eager torch with 90 % intervals, by phase and arm; a panel for each kind of ids, width, optimizer."""
    panels = _panels(df)
    fig, axes = style.figure(math.ceil(len(panels) / 2), min(len(panels), 2))
    arms = [name for name in df["point.backend"].unique() if name != BASE]
    for ax, (title, part) in zip(axes, panels.items(), strict=False):
        for i, name in enumerate(arms):
            rows = part[part["point.backend"] == name].set_index("point.phase").reindex(PHASES).dropna(how="all")
            at = [PHASES.index(phase) + 0.8 * ((i + 0.5) / len(arms) - 0.5) for phase in rows.index]
            ratio = rows["metrics.ratio"]
            ends = [ratio - rows["metrics.ratio_low"], rows["metrics.ratio_high"] - ratio]
            style.bars(ax, at, ratio, _kind(df), i, name, width=0.8 / len(arms))
            ax.errorbar(at, ratio, yerr=ends, fmt="none", ecolor="#333333", elinewidth=0.8)
        ax.axhline(1, color="#333333", linewidth=0.8)
        ax.set(title=title, yscale="log", ylabel=f"speed over {BASE} torch")
        ax.set_xticks(range(len(PHASES)), PHASES)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    axes[0].legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Each fast backend's geometric means over the kinds of ids, with every median and its 90 % interval."""
    found = []
    shapes = ["point.backend", "config.rows", "config.dim"]
    ours = df[df["point.backend"].isin(OURS) & (df["config.optimizer"] == "rowwise_adagrad")]
    for _, part in ours.groupby(shapes, sort=False):
        for phase, what, target in CLAIMED:
            rows = part.loc[part["point.phase"] == phase].to_dict("records")
            mean = math.exp(sum(math.log(row["metrics.ratio"]) for row in rows) / len(rows))
            each = "; ".join(
                f"{_ids(row['config.alpha'])} {row['metrics.ratio']:.2f} "
                f"({row['metrics.ratio_low']:.2f} to {row['metrics.ratio_high']:.2f})"
                for row in rows
            )
            backend, table_rows, dim = (rows[0][name] for name in shapes)
            claim = f"{backend}: {what} at least {target}x as fast as eager torch, table {table_rows:,} x {dim}"
            got = f"{mean:.2f}x, geometric mean of {each}"
            found.append(Claim(claim, "none", got, _kind(df), brief=f"{mean:.2f}x"))
    return found


def _panels(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The records of each configuration of table and ids, by title."""
    titles = [
        f"{_ids(row['config.alpha'])}, dim {row['config.dim']}, {row['config.optimizer']}"
        for row in df.to_dict("records")
    ]
    return {str(title): part for title, part in df.groupby(titles, sort=False)}


def _ids(alpha: float) -> str:
    return f"Zipf {alpha:g}" if alpha else "uniform ids"


def _kind(df: pd.DataFrame) -> Kind:
    return df["kind"].iloc[0]
