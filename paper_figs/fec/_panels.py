"""What figures of this group share: arms in one order and colour, and the three panels that every one shows."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from experiments.record import Kind
from paper_figs import style

ORDER: tuple[str, ...] = (
    "raw",
    "unique",
    "unique_node",
    "tier",
    "prefetch",
    "tier+prefetch",
    "prefetch+deferral",
    "tier+prefetch+deferral",
    "prefetch+deferral+parts",
    "tier+prefetch+deferral+parts",
    "allgather",
    "dense",
)
FEC, FULL, MICRO = ORDER[5], ORDER[7], ORDER[9]
BASELINES = ORDER[:3]
COLOURS: dict[str, int] = dict(zip(ORDER, (6, 0, 5, 7, 4, 3, 4, 1, 2, 2, 3, 4), strict=True))
_SHORT = (("tier", "T"), ("prefetch", "P"), ("deferral", "D"), ("parts", "M"))
KEY = "T tier, P pre-fetch, D deferral, M micro-batches"


def short(arm: str) -> str:
    """The arm's label on an axis: see KEY."""
    if arm in BASELINES or ("+" not in arm and arm not in ("tier", "prefetch", "parts")):
        return {"unique": "de-dup.", "unique_node": "node de-d."}.get(arm, arm)
    return "+".join(dict(_SHORT)[part] for part in arm.split("+"))


def of_arms(df: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of ORDER."""
    place = {name: i for i, name in enumerate(ORDER)}
    return df.sort_values("point.arm", key=lambda arms: arms.map(place), kind="stable")


def arms_of(df: pd.DataFrame) -> list[str]:
    """Arms of `df`, in order."""
    return list(dict.fromkeys(of_arms(df)["point.arm"]))


def three(axes: Sequence[Axes], df: pd.DataFrame) -> None:
    """Exposed time, step time, bytes on the busiest node's link, a bar an arm."""
    df = of_arms(df)
    panels = (("exposed_ms", 1.0, "exposed ms a step"), ("step_ms", 1.0, "ms a step"),
              ("bytes_between", 1e6, "MB a step, node to nodes"))  # fmt: skip
    for ax, (metric, scale, label) in zip(axes, panels, strict=True):
        for at, row in enumerate(df.to_dict("records")):
            style.bars(ax, [at], row[f"metrics.{metric}"] / scale, row["kind"], COLOURS[row["point.arm"]])
        ax.set(ylabel=label)
        ax.set_xticks(range(len(df)), [short(arm) for arm in df["point.arm"]], rotation=60, ha="right", fontsize=6)


def curves(axes: Sequence[Axes], df: pd.DataFrame, x: str, metrics: Sequence[tuple[str, float, str]]) -> None:
    """A line an arm and kind over column `x`, one panel a metric (name, divisor, label)."""
    for ax, (metric, scale, label) in zip(axes, metrics, strict=True):
        for arm in arms_of(df):
            for kind in dict.fromkeys(df["kind"]):
                rows = df.loc[(df["point.arm"] == arm) & (df["kind"] == kind)].sort_values(x)
                if len(rows):
                    more = {"linestyle": ""} if kind in ("emulated", "measured") else {"marker": ""}
                    name = short(arm) if kind == df["kind"].iloc[-1] else None
                    style.line(ax, rows[x], rows[f"metrics.{metric}"] / scale, kind, COLOURS[arm], name, **more)
        ax.set(ylabel=label)


THREE = (("exposed_ms", 1.0, "exposed ms"), ("step_ms", 1.0, "step ms"), ("bytes_between", 1e6, "MB, node to nodes"))
"""What `curves` shows by default."""


def beside(ax: Axes, df: pd.DataFrame, metric: str, scale: float = 1.0) -> None:
    """Lines across at what raw, de-duplicated and node-de-duplicated steps came out as, if they ran."""
    for found in df.loc[df["point.arm"].isin(BASELINES)].to_dict("records"):
        arm, value = found["point.arm"], found[f"metrics.{metric}"] / scale
        label = f"{short(arm)}: {value:.0f}"
        ax.axhline(value, color=style.colour(COLOURS[arm]), linewidth=0.8, label=label)


def row(df: pd.DataFrame, arm: str) -> dict:
    """The one record of `arm`."""
    (found,) = df.loc[df["point.arm"] == arm].to_dict("records")
    return found


def times(found: dict, what: str, base: str) -> str:
    """A ratio to a baseline in words, with its smallest and largest round if there are several."""
    name = f"metrics.{what}_vs_{base}"
    low, high = found.get(f"{name}_low"), found.get(f"{name}_high")
    spread = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None and low != high else ""
    return f"{found[name]:.2f}x{spread}"


def kind_of(df: pd.DataFrame) -> Kind:
    """The kind of the clock's records: emulated on shaped links, measured on plain ones."""
    return next((kind for kind in df["kind"] if kind in ("emulated", "measured")), df["kind"].iloc[0])


def median_error(df: pd.DataFrame) -> float:
    """Of simulated against clocked step time."""
    return float((df["metrics.simulated_step_ms"] / df["metrics.step_ms"] - 1).abs().median())
