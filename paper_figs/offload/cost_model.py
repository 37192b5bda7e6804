"""The closed cost model against the clock."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, kind_of
from paper_figs.table import Claim

SOURCE = "offload/cost_model"


def draw(df: pd.DataFrame) -> Figure:
    """Predicted against clocked step; predicted against counted misses."""
    fig, (steps, misses) = style.figure(1, 2, height=2.8)
    colours = colour_of(df["point.arm"])
    for arm, rows in df.groupby("point.arm", sort=False):
        look = {"linestyle": "", "markersize": 3}
        style.line(
            steps, rows["metrics.predicted_ms"], rows["metrics.step_ms"], kind_of(df), colours[arm], str(arm), **look
        )
        style.line(misses, rows["metrics.predicted_misses"] / rows["metrics.rows"],
                   rows["metrics.misses"] / rows["metrics.rows"], kind_of(df), colours[arm], **look)  # fmt: skip
    for ax, columns in ((steps, ["metrics.predicted_ms", "metrics.step_ms"]), (misses, None)):
        ends = [df[columns].to_numpy().min(), df[columns].to_numpy().max()] if columns else [0.0, 1.0]
        ax.plot(ends, ends, color="#333333", linewidth=0.8)
    steps.set(xscale="log", yscale="log", xlabel="predicted ms", ylabel="clocked ms")
    misses.set(xlabel="predicted misses / rows", ylabel="counted misses / rows")
    steps.legend(fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Errors, rank correlation, the refitted link."""
    error = (df["metrics.predicted_ms"] / df["metrics.step_ms"] - 1).abs()
    by_arm = ", ".join(f"{arm} {100 * part.median():.0f} %" for arm, part in error.groupby(df["point.arm"], sort=False))
    ranks = df[["metrics.predicted_ms", "metrics.step_ms"]].rank().to_numpy()
    missed = 100 * (df["metrics.predicted_misses"] - df["metrics.misses"]).abs() / df["metrics.rows"]
    fitted = (df["metrics.refitted_rate"] / df["metrics.rate"]).dropna()
    spearman = np.corrcoef(ranks.T)[0, 1]
    got = f"median error {100 * error.median():.0f} % over {len(df)} points ({by_arm}), Spearman {spearman:.3f}"
    return [
        Claim("a step's time from the miss curve of the past, the link's rate and the device's step", "none", got,
              f"predicted vs {kind_of(df)}"),
        Claim("misses from the curve of earlier batches", "none",
              f"median error {missed.median():.1f} points, largest {missed.max():.1f}", f"predicted vs {kind_of(df)}"),
        Claim("the link's rate refitted from steps without prefetch, over the rate it was set to", "none",
              f"median {fitted.median():.2f}, {fitted.min():.2f} to {fitted.max():.2f}", f"predicted vs {kind_of(df)}"),
    ]  # fmt: skip
