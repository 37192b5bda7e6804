"""What each strategy learns (the same), sends and costs: loss curves, bytes predicted and counted, step time."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.record import Kind
from paper_figs import style
from paper_figs.table import Claim

SOURCE = "train/strategies"
REFERENCE = "unique"
SAME_BITS = ("tablewise", "replicated")


def draw(df: pd.DataFrame) -> Figure:
    """Loss by step at the largest world size; bytes a step and step time by world size and strategy."""
    df = _one_order(df)
    fig, (loss, bytes_, ratio) = style.figure(1, 3, height=2.6)
    names = list(dict.fromkeys(df["point.strategy"]))
    world = df["config.ranks"].max()
    for i, name in enumerate(names):
        curve = df[(df["config.ranks"] == world) & (df["point.strategy"] == name) & df["metrics.loss"].notna()]
        width = len(names) - i  # arms with equal bits lie on each other: draw the first ones wider
        style.line(loss, curve["point.step"], curve["metrics.loss"], _kind(df), i, name, marker="", linewidth=width)
    loss.set(title=f"{world} ranks", xlabel="step", ylabel="training loss, nats")
    loss.legend()
    ends = df.loc[df["metrics.loss"].isna()]
    _bars(bytes_, ends, names, "metrics.bytes_counted", 1e6)
    predicted = ends.pivot_table(index="config.ranks", columns="point.strategy", values="metrics.bytes_predicted")
    for i, name in enumerate(names):
        at = [x + _shift(i, len(names)) for x in range(len(predicted))]
        style.line(bytes_, at, predicted[name] / 1e6, "predicted", 6, linestyle="", marker="_", markersize=7)
    bytes_.set(title="bars counted, marks predicted", xlabel="ranks", ylabel="embedding MB a step, all ranks")
    _bars(ratio, ends, names, "metrics.step_ratio", 1.0)
    for i, name in enumerate(names):
        rows = ends.loc[ends["point.strategy"] == name].sort_values("config.ranks")
        middle, low, high = (rows[f"metrics.step_ratio{end}"].to_numpy() for end in ("", "_low", "_high"))
        at = [x + _shift(i, len(names)) for x in range(len(rows))]
        ratio.errorbar(at, middle, yerr=[middle - low, high - middle], fmt="none", ecolor="#333333", elinewidth=0.8)
    ratio.set(title="median of one run, 90 % interval", xlabel="ranks", ylabel=f"step time / {REFERENCE}'s")
    style.kind_legend(fig, [*df["kind"], "predicted"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Same weights, same bytes as predicted, and how much of the possible AUC was learned."""
    df = _one_order(df)
    ends = df.loc[df["metrics.loss"].isna()]
    is_same = ends["point.strategy"].isin(SAME_BITS)
    same, worst = ends.loc[is_same], ends["metrics.largest_difference"].max()
    worlds = ", ".join(str(n) for n in sorted(ends["config.ranks"].unique()))
    equal = int(same["metrics.same_bits"].sum())
    exact = int((ends["metrics.bytes_counted"] == ends["metrics.bytes_predicted"]).sum())
    found = [
        Claim(
            f"unique, tablewise and replicated learn the same bits (weights, optimizer state, losses; {worlds} ranks)",
            "none",
            f"{equal} of {len(same)} runs equal to {REFERENCE}'s; rowwise differs by at most {worst:.1e}",
            _kind(df),
            brief=f"{equal} of {len(same)} runs",
        ),
        Claim(
            "bytes predicted by every strategy are the bytes sent",
            "none",
            f"{exact} of {len(ends)} runs equal to the byte",
            f"predicted vs {_kind(df)}",
            brief=f"{exact} of {len(ends)} runs",
        ),
    ]
    if "metrics.auc_share" in ends:
        low = ends.loc[ends["metrics.auc_share"].idxmin()]
        found.append(
            Claim(
                "AUC at least 0.9 of the way from 0.5 to the generator's Bayes AUC",
                "none",
                f"{low['metrics.auc_share']:.3f} of the way at the least: AUC {low['metrics.auc']:.4f}, "
                f"Bayes {low['metrics.bayes_auc']:.4f}",
                _kind(df),
                brief=f"{low['metrics.auc_share']:.3f} of the way",
            )
        )
    else:
        found.append(Claim("AUC on the held-out end of the log", "none", f"{ends['metrics.auc'].max():.4f}", _kind(df)))
    return found


def _one_order(df: pd.DataFrame) -> pd.DataFrame:
    """The records of one order of the stream: i.i.d. where there is one."""
    orders = df["config.order"]
    return df.loc[orders == ("iid" if (orders == "iid").any() else orders.iloc[0])]


def _kind(df: pd.DataFrame) -> Kind:
    return df["kind"].iloc[0]


def _shift(i: int, n: int) -> float:
    return 0.8 * ((i + 0.5) / n - 0.5)


def _bars(ax: Axes, ends: pd.DataFrame, names: list[str], column: str, scale: float) -> None:
    """Grouped bars by world size."""
    table = ends.pivot_table(index="config.ranks", columns="point.strategy", values=column)
    for i, name in enumerate(names):
        at = [x + _shift(i, len(names)) for x in range(len(table))]
        style.bars(ax, at, table[name] / scale, _kind(ends), i, width=0.8 / len(names))
    ax.set_xticks(range(len(table)), [str(n) for n in table.index])
