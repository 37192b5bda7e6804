"""As ranks grow: exposed time, step time and bytes by arm; lines simulated, points on the cluster."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.fec._panels import FULL, KEY, THREE, curves, kind_of
from paper_figs.table import Claim

SOURCE = "fec/ranks"


def draw(df: pd.DataFrame) -> Figure:
    """Three panels, then ratios of the full arm to the baselines."""
    fig, axes = style.figure(2, 3, height=2.4)
    curves(axes[:3], df, "point.ranks", THREE)
    full = df.loc[df["point.arm"] == FULL]
    for ax, base in zip(axes[3:], ("raw", "unique", "unique_node"), strict=True):
        for i, what in enumerate(("exposed", "throughput")):
            for kind in dict.fromkeys(full["kind"]):
                rows = full.loc[full["kind"] == kind].sort_values("point.ranks")
                more = {} if kind == "simulated" else {"linestyle": ""}
                style.line(ax, rows["point.ranks"], rows[f"metrics.{what}_vs_{base}"], kind, i, what, **more)
        ax.axhline(1, color="#333333", linewidth=0.8)
        ax.set(ylabel=f"T+P+D, x against {base}")
    for ax in axes:
        ax.set(xlabel="ranks", xscale="log")
        ax.set_xticks(sorted(set(df["point.ranks"])), [str(n) for n in sorted(set(df["point.ranks"]))], minor=False)
        ax.minorticks_off()
    axes[1].set_title(KEY, fontsize=6)
    axes[3].legend(*(part[:2] for part in axes[3].get_legend_handles_labels()))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """Ratios at every size, and the simulator's error where there is a cluster."""
    full = df.loc[df["point.arm"] == FULL]
    got = "; ".join(
        f"{row['point.nodes']} x {row['point.ranks_per_node']} {row['metrics.exposed_vs_unique']:.1f}x, "
        f"{row['metrics.throughput_vs_unique']:.2f}x"
        for row in full.loc[full["kind"] == "simulated"].to_dict("records")
    )
    found = [Claim("exposed time and throughput against de-duplicated, by nodes x ranks", "none", got, "simulated")]
    clocked = df.loc[df["kind"] != "simulated"]
    errors = []
    for row in clocked.to_dict("records"):
        same = (
            df["point.ranks"].eq(row["point.ranks"]) & df["point.arm"].eq(row["point.arm"]) & df["kind"].eq("simulated")
        )
        same &= df["point.ranks_per_node"].eq(row["point.ranks_per_node"])
        errors += [abs(s / row["metrics.step_ms"] - 1) for s in df.loc[same, "metrics.step_ms"]]
    if errors:
        got = f"{100 * pd.Series(errors).median():.0f} % over {len(errors)} points, from batches and links alone"
        found.append(Claim("median error of simulated step time", "none", got, f"simulated vs {kind_of(clocked)}"))
    return found
