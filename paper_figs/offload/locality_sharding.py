"""The costliest device's step: by how caches are sized, and by how shards are placed."""

import pandas as pd
from matplotlib.figure import Figure

from paper_figs import style
from paper_figs.offload._shared import colour_of, groups, kind_of
from paper_figs.table import Claim

SOURCE = "offload/locality_sharding"
BLIND = "one load factor", "blind"


def draw(df: pd.DataFrame) -> Figure:
    """A panel a share of memory and link: bars of the rating over that of one load factor, blind."""
    panels = list(groups(df, ["point.ranks", "point.share", "point.link"]))
    fig, axes = style.figure(-(-len(panels) // 2), min(2, len(panels)), height=2.6)
    colours = colour_of(df["point.placement"])
    for ax, ((ranks, share, link), rows) in zip(axes, panels, strict=False):
        sizes = list(dict.fromkeys(rows["point.sizes"]))
        for placement, part in rows.dropna(subset=["metrics.rating_us"]).groupby("point.placement", sort=False):
            at = [sizes.index(name) + 0.27 * (colours[placement] - 1) for name in part["point.sizes"]]
            style.bars(ax, at, part["metrics.rating_us"], kind_of(df), colours[placement], str(placement), width=0.25)
        ax.set_xticks(range(len(sizes)), sizes, fontsize=6)
        ax.set(ylabel="costliest device, us", title=f"{ranks} devices, {100 * share:.3g} % in memory, link 1/{link:g}")
    axes[0].legend(fontsize=6)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df: pd.DataFrame) -> list[Claim]:
    """What sizing, placing and both save of the costliest device's step."""
    found = []
    for (ranks, share, link), rows in groups(df, ["point.ranks", "point.share", "point.link"]):
        rating = rows.set_index(["point.sizes", "point.placement"])["metrics.rating_us"]
        base = rating.get(BLIND)
        arms = {
            "placing alone": ("one load factor", "aware"),
            "sizing alone": ("water-filling", "blind"),
            "both": ("water-filling", "aware"),
            "jointly": ("water-filling", "joint"),
        }
        got = ", ".join(f"{name} {100 * (rating[key] / base - 1):+.0f} %" for name, key in arms.items())
        got += f"; published rule, aware {100 * (rating['priority', 'aware'] / base - 1):+.0f} %"
        found.append(Claim(f"the costliest device against one load factor placed blind: {ranks} devices, "
                           f"{100 * share:.3g} % of the tables in memory, link 1/{link:g}", "none", got,
                           kind_of(df)))  # fmt: skip
    return found
