"""Embedding communication in the fixed cell, by arm: exposed and total time, step time, bytes."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import FEC, FULL, KEY, MICRO, arms_of, kind_of, median_error, row, three, times
from paper_figs.table import Claim

SOURCE = "fec/comm_time"


def draw(df: pd.DataFrame) -> Figure:
    """Exposed time, step time and bytes of every arm; dots: all communication, and the simulated step."""
    fig, axes = style.figure(1, 3, height=3.0)
    three(axes, df)
    arms = arms_of(df)
    for ax, metric, label in (
        (axes[0], "communication_ms", "all, hidden or not"),
        (axes[1], "simulated_step_ms", "simulated"),
    ):
        values = [row(df, arm)[f"metrics.{metric}"] for arm in arms]
        ax.plot(range(len(arms)), values, linestyle="", marker="_", color="#333333", markersize=9, label=label)
        ax.legend(loc="upper right")
    axes[2].set_title(KEY, fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The headline's two ratios, against raw and against the fair baseline."""
    kind, found = kind_of(df), []
    for what, words, paper in (
        ("exposed", "exposed embedding communication", "6.65x"),
        ("throughput", "throughput", "2.42x"),
    ):
        full, both, parts, unique = (row(df, arm) for arm in (FULL, FEC, MICRO, "unique"))
        got = (
            f"tier + pre-fetch {times(both, what, 'raw')}, with deferral {times(full, what, 'raw')}; de-duplication "
            f"alone {times(unique, what, 'raw')}"
        )
        found.append(Claim(f"{words} against raw AlltoAll at least {paper}", "abstract", got, kind, got))
        got = (
            f"tier + pre-fetch {times(both, what, 'unique')}, with deferral {times(full, what, 'unique')}, "
            f"micro-batches {times(parts, what, 'unique')}; against node-level de-duplication "
            f"{times(full, what, 'unique_node')}"
        )
        target = "2.7x, with micro-batches 4.5x" if what == "exposed" else "1.5x, with micro-batches 1.7x"
        found.append(Claim(f"{words} against de-duplicated AlltoAll at least {target}", "none", got, kind, got))
    share = row(df, "unique")
    share = share["metrics.exposed_ms"] / share["metrics.step_ms"]
    error = f"{100 * median_error(df):.0f} % over {len(df)} arms (communication {100 * share:.0f} % of the unique step)"
    found.append(
        Claim("median error of simulated step time at most 15 %", "none", error, f"simulated vs {kind}", error)
    )
    return found
