"""Slow-down by model size against two baselines, and how long a dense part must be elsewhere."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import PUBLISHED, TARGET, colour_of, groups, mark
from paper_figs.table import Claim

SOURCE = "offload/scale"
NAMES = {
    "stream": "misses of the stream timed",
    "all touched": "all rows touched before",
    "100 TB": "100 TB on 128 devices, planned",
}


def draw(df: pd.DataFrame) -> Figure:
    """Timed: slow-down by scale at the longest dense part. Predicted: the dense part that 26 % takes, by scale."""
    fig, (timed, needed) = style.figure(1, 2, height=2.8)
    rows, predicted = _timed(df), _predicted(df)
    link = rows["point.link"].max()
    shown = rows.loc[(rows["point.dense"] == rows["point.dense"].max()) & (rows["point.link"] == link)]
    colours = colour_of(zip(shown["point.order"], shown["point.arm"], strict=True))
    for key, part in groups(shown, ["point.order", "point.arm"]):
        name = " ".join(key)
        style.line(timed, part["point.scale"], part["metrics.slow_down"], "emulated", colours[key], name)
        style.line(timed, part["point.scale"], part["metrics.slow_down_fits"], "emulated", colours[key], linestyle=":")
    mark(timed, TARGET, PUBLISHED)
    timed.set(xscale="log", xlabel="model / device memory", ylabel="slower, %",
              title="than the same model on the device; dotted: than the one that fits")  # fmt: skip
    timed.title.set_fontsize(6)
    timed.legend(fontsize=6)
    cases = predicted.loc[
        (predicted["point.link"] == predicted["point.link"].max()) & (predicted["point.rows"] == "all touched")
    ]
    colours = colour_of(zip(cases["point.arm"], cases["point.kernels"], strict=True))
    for key, part in groups(cases, ["point.arm", "point.kernels"]):
        style.line(needed, part["point.scale"], part["metrics.dense_for_26"], "predicted", colours[key],
                   f"{key[0]}, {key[1]} kernels")  # fmt: skip
    needed.set(xscale="log", xlabel="model / device memory", ylabel="dense / embedding, for 26 %")
    needed.legend(fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """The one published number, against both baselines; and what it depends on."""
    rows, predicted, found = _timed(df), _predicted(df), []
    scale, link, dense = rows["point.scale"].max(), rows["point.link"].max(), rows["point.dense"].max()
    largest = rows.loc[(rows["point.scale"] == scale) & (rows["point.link"] == link) & (rows["point.dense"] == dense)]
    for order, part in largest.groupby("point.order", sort=False):
        got = "; ".join(
            f"{row['point.arm']} {row['metrics.slow_down']:+.0f} % ({row['metrics.slow_down_low']:+.0f} to "
            f"{row['metrics.slow_down_high']:+.0f}), {row['metrics.slow_down_fits']:+.0f} % than the model that fits"
            for row in part.to_dict("records")
        )
        found.append(Claim(f"{scale:.0f}x the device's memory at most 15 % slower than the same model on the device "
                           f"(paper: 26 %): {order}, link 1/{link:.0f}, dense {dense:g}x the embedding step",
                           "abstract", got, "emulated vs paper", brief=got))  # fmt: skip
    for (order, which, kernels), part in groups(predicted, ["point.order", "point.rows", "point.kernels"]):
        at = part.loc[part["point.scale"] == scale]
        got = "; ".join(
            f"{arm} "
            + ", ".join(
                f"1/{row['point.link']:.0f}: {row['metrics.dense_for_15']:.1f}x / {row['metrics.dense_for_26']:.1f}x"
                for row in of_arm.to_dict("records")
            )
            for arm, of_arm in at.groupby("point.arm", sort=False)
        )
        found.append(Claim(f"the least dense part, over the embedding step, for 15 % / 26 % at {scale:.0f}x, by link: "
                           f"{NAMES[which]}, {order}, {kernels} kernels", "none", got, "predicted"))  # fmt: skip
    return found


def _timed(df: pd.DataFrame) -> pd.DataFrame:
    return df.loc[(df["kind"] == "emulated") & (df["point.arm"] != "device")]


def _predicted(df: pd.DataFrame) -> pd.DataFrame:
    return df.loc[df["kind"] == "predicted"]
