"""A narrower slow tier: bytes against log loss."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, kind_of, mark
from paper_figs.table import Claim

SOURCE = "offload/precision"


def draw(df: pd.DataFrame) -> Figure:
    """Log loss over all rows on the device, and bytes over the link, by size of the cache."""
    fig, (loss, moved) = style.figure(1, 2)
    df = _compared(df)
    colours = colour_of(df["point.format"])
    for name, rows in df.groupby("point.format", sort=False):
        by_size = rows.groupby("point.multiple")[["more", "metrics.bytes_a_step"]].mean()
        style.line(loss, by_size.index, by_size["more"], kind_of(df), colours[name], str(name))
        style.line(moved, by_size.index, by_size["metrics.bytes_a_step"] / 1e3, kind_of(df), colours[name])
    mark(loss, 0.0)
    loss.set(xlabel="lines / distinct rows of two batches", ylabel="log loss above the device's, 1e-4")
    moved.set(xlabel="lines / distinct rows of two batches", ylabel="kB over the link a step")
    loss.legend()
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Bytes of a row, bytes moved and losses by format."""
    df = _compared(df)
    whole = df.loc[df["point.format"] == "fp32"].groupby("point.multiple")["metrics.bytes_a_step"].mean()
    got = []
    for name, rows in df.groupby("point.format", sort=False):
        share = (rows.groupby("point.multiple")["metrics.bytes_a_step"].mean() / whole).mean()
        got.append(
            f"{name}: {rows['metrics.row_bytes'].iloc[0]:.0f} B a row, {100 * share:.0f} % of the bytes moved, log "
            f"loss {rows['more'].min():+.1f} to {rows['more'].max():+.1f} e-4, AUC {rows['auc_more'].min():+.4f} to "
            f"{rows['auc_more'].max():+.4f}"
        )
    return [Claim("a narrower slow tier behind full-precision lines, against all rows on the device", "none",
                  "; ".join(got), kind_of(df))]  # fmt: skip


def _compared(df: pd.DataFrame) -> pd.DataFrame:
    more = 1e4 * (df["metrics.log_loss"] - df["metrics.log_loss_device"])
    return df.assign(more=more, auc_more=df["metrics.auc"] - df["metrics.auc_device"])
