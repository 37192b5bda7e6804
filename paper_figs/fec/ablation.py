"""What each idea adds, one after another: exposed time and samples a second, in the fixed cell."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import COLOURS, FEC, FULL, KEY, MICRO, arms_of, kind_of, row, short
from paper_figs.table import Claim

SOURCE = "fec/comm_time"
LADDER = ("raw", "unique", "unique_node", "tier", "prefetch", FEC, "prefetch+deferral", FULL,
          "prefetch+deferral+parts", MICRO)  # fmt: skip


def draw(df: pd.DataFrame) -> Figure:
    """Samples a second, exposed time and bytes relative to raw; the same relative to de-duplicated."""
    fig, axes = style.figure(2, 3, height=2.6)
    arms = [arm for arm in LADDER if arm in arms_of(df)]
    for line, base in enumerate(("raw", "unique")):
        for ax, (metric, up, label) in zip(axes[3 * line :], _PANELS, strict=False):
            for at, arm in enumerate(arms):
                ratio = row(df, arm)[f"metrics.{metric}"] / row(df, base)[f"metrics.{metric}"]
                style.bars(ax, [at], ratio if up else 1 / ratio, kind_of(df), COLOURS[arm])
            ax.axhline(1, color="#333333", linewidth=0.8)
            ax.set(ylabel=f"{label},\nx against {'raw' if base == 'raw' else 'de-dup.'}")
            ax.set_xticks(range(len(arms)), [short(arm) for arm in arms], rotation=60, ha="right", fontsize=6)
    axes[1].set_title(KEY, fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


_PANELS = (
    ("samples_per_s", True, "throughput"),
    ("exposed_ms", False, "exposed time"),
    ("bytes_between", False, "bytes"),
)


def claims(df: pd.DataFrame) -> list[Claim]:
    """How much of the published ratio de-duplication alone gives, and what each idea adds."""
    raw, unique = row(df, "raw"), row(df, "unique")
    exposed = raw["metrics.exposed_ms"] / unique["metrics.exposed_ms"]
    throughput = unique["metrics.samples_per_s"] / raw["metrics.samples_per_s"]
    got = f"{exposed:.2f}x of 6.65x in exposed time, {throughput:.2f}x of 2.42x in throughput"
    found = [Claim("what de-duplication alone gives of the published ratios", "abstract", got, kind_of(df), got)]
    steps = []
    for before, after in (("unique", "tier"), ("unique", "prefetch"), ("prefetch", FEC), (FEC, FULL), (FULL, MICRO)):
        if {before, after} <= set(df["point.arm"]):
            gain = row(df, before)["metrics.exposed_ms"] / row(df, after)["metrics.exposed_ms"]
            steps.append(f"{short(before)} to {short(after)} {gain:.2f}x")
    found.append(Claim("exposed time, step by step", "none", "; ".join(steps), kind_of(df)))
    return found
