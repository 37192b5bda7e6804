"""Sizing and placement taken apart: what each of them does for the device that waits longest.

Paper figure: none known; Locality-Aware Sharding is a piece that the abstract names. The device memory is the same in
every arm. Sizes: one load factor, in proportion to bytes, the published priority rule, water-filling. Placements:
`blind` balances look-ups, `aware` look-ups and misses together, `joint` also shares each device's memory out anew and
lets shards change places. Look-ups and skew of the tables are assumptions (experiments/offload/_described.py).

Run:      python -m experiments run offload/locality_sharding --laptop   (a few seconds)
Expect:   sizing matters more than placement; joint below every other arm.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from comm.planner.locality import Devices, Locality, LocalityPlan
from comm.planner.sizing.fixed import largest_fixed
from comm.planner.sizing.marginal import marginal
from comm.planner.sizing.priority import by_priority
from comm.planner.sizing.proportional import proportional
from experiments.config import Measurement
from experiments.offload._described import described_tables
from experiments.offload.autosize import BANDWIDTH

SIZES = {"one load factor": largest_fixed, "by bytes": proportional, "priority": by_priority, "water-filling": marginal}


@dataclass(frozen=True)
class Config:
    """`share` of the tables' bytes that the devices hold together, `spent` of it by sizing, so that shards find room.

    `link`: the device memory's bandwidth over the link's.
    """

    tables: int = 856
    ranks: int = 128
    batch: int = 65_536
    shares: tuple[float, ...] = (0.06, 0.1, 0.2, 0.4)
    links: tuple[float, ...] = (60.0, 20.0, 8.0)
    spent: float = 0.85


GRID = (Config(ranks=16, batch=8192), Config(ranks=64, batch=8192))
LAPTOP = (Config(tables=300, ranks=16, batch=8192, shares=(0.06, 0.2), links=(60.0,)),)
TINY = (Config(tables=20, ranks=2, batch=512, shares=(0.3,), links=(60.0,)),)
BUDGET_S = 4.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every way of sizing under every way of placing."""
    tables = described_tables(config.tables, config.batch)
    whole = sum(table.demand().whole_bytes for table in tables)
    for share in config.shares:
        for link in config.links:
            device = Devices(config.ranks, share * whole / config.ranks, BANDWIDTH, BANDWIDTH / link)
            planner = Locality(tables, device)
            for name, size in SIZES.items():
                sizing = size(planner.demands, config.spent * planner.budget)
                for placement, aware in (("blind", False), ("aware", True)):
                    yield _measured(config, share, link, name, placement, planner.place(sizing, aware))
            yield _measured(config, share, link, "water-filling", "joint", planner.plan())


def _measured(
    config: Config, share: float, link: float, size: str, placement: str, plan: LocalityPlan | None
) -> Measurement:
    metrics: dict[str, float] = {"placed": float(plan is not None)}
    if plan is not None:
        mean = sum(plan.seconds) / len(plan.seconds)
        links = sum(plan.link_seconds) / len(plan.link_seconds)
        metrics |= {
            "rating_us": 1e6 * plan.rating,
            "mean_us": 1e6 * mean,
            "imbalance": plan.rating / mean,
            "link_us": 1e6 * max(plan.link_seconds),
            "link_imbalance": max(plan.link_seconds) / links if links else 1.0,
        }
    units = {n: "us" if n.endswith("_us") else "ratio" for n in metrics}
    point = {"share": share, "link": link, "sizes": size, "placement": placement, "ranks": config.ranks}
    return Measurement(point | {"tables": config.tables}, metrics, units, 1, "predicted")
