"""Sizing caches: every proposer's plan, rated by its costliest device, against dense grids; and the time it takes.

Paper figure: none known; the paper names iterative planning, and its published code is one of the arms (`search`: 16
budgets by Luus-Jaakola, sizes by the priority rule). Fixed load factors, sizes by bytes and by priority are placed with
misses in the cost; `water-filling` sizes and places together. Oracles: a dense grid of 200 budgets for the search, a
dense grid of sizes (knapsack) for the bytes that all devices move. Look-ups and skew of the 856 tables are assumptions
(experiments/offload/_described.py). Planning is timed at 128 devices, and for a model of 100 TB in a process of its
own, whose memory is read when it ends.

Run:      python -m experiments run offload/autosize --laptop   (about 15 s)
Expect:   water-filling at or below every other rating; 856 tables on 128 devices in under 5 s; 100 TB in under 30 s and
          2 GB.
"""

import multiprocessing
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from comm.planner.locality import Devices, Locality, LocalityPlan
from comm.planner.sizing.demand import Sizing
from comm.planner.sizing.fixed import fixed, largest_fixed
from comm.planner.sizing.knapsack import knapsack
from comm.planner.sizing.marginal import marginal
from comm.planner.sizing.priority import by_priority
from comm.planner.sizing.proportional import proportional
from comm.planner.sizing.scale_up import best_of, dense_grid, scale_up
from experiments.config import Measurement
from experiments.offload._described import described_tables

LOAD_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.4)
BANDWIDTH, LINK = 3.35e12, 3.35e12 / 60
"""Data sheet of an H100 SXM: 3.35 TB/s of memory; a sixtieth of that is PCIe 5 x16."""
HUNDRED_TB = 100e12


@dataclass(frozen=True)
class Config:
    """`tables` of the published ones on `ranks` devices that hold each of `shares` of them; `timed_ranks` for the
    times (0: none).
    """

    tables: int = 856
    ranks: int = 128
    batch: int = 65_536
    shares: tuple[float, ...] = (0.06, 0.1, 0.2, 0.4)
    grid: int = 200
    cells: int = 400
    timed_ranks: int = 128
    large_ranks: int = 128


GRID = (Config(ranks=16, batch=8192), Config(tables=120, ranks=16, batch=8192))
LAPTOP = (Config(tables=120, ranks=16, batch=8192, shares=(0.06, 0.15, 0.4), grid=60, cells=600),)
TINY = (Config(tables=20, ranks=2, batch=512, shares=(0.2,), grid=5, cells=20, timed_ranks=0, large_ranks=0),)
BUDGET_S = 18.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every proposer at every share of the tables' bytes, then the times."""
    tables = described_tables(config.tables, config.batch)
    whole = sum(table.demand().whole_bytes for table in tables)
    for share in config.shares:
        planner = Locality(tables, Devices(config.ranks, share * whole / config.ranks, BANDWIDTH, LINK))
        for proposer, placed, probes in _plans(planner, config.grid):
            metrics: dict[str, float] = {"placed": float(placed is not None), "probes": float(probes)}
            if placed is not None:
                metrics |= {
                    "rating_us": 1e6 * placed.rating,
                    "link_us": 1e6 * max(placed.link_seconds),
                    "moved_bytes": sum(placed.link_seconds) * LINK,
                    "spent": sum(placed.memory) / planner.budget,
                }
            units = {n: "us" if n.endswith("_us") else "bytes" if "bytes" in n else "share" for n in metrics}
            point = {"share": share, "proposer": proposer, "tables": config.tables, "ranks": config.ranks}
            yield Measurement(point, metrics, units | {"probes": "plans"}, 1, "predicted")
        ideal = knapsack(planner.demands, planner.budget, config.cells).moved(planner.demands)
        filled = marginal(planner.demands, planner.budget).moved(planner.demands)
        point = {"share": share, "proposer": "sizes alone", "tables": config.tables, "ranks": config.ranks}
        metrics = {"moved_bytes": filled, "oracle_bytes": ideal}
        yield Measurement(point, metrics, dict.fromkeys(metrics, "bytes"), 1, "predicted")
    if config.timed_ranks:
        yield _timed(856, config.timed_ranks, 1.0, 65_536, 0.25, "856 tables")
    if config.large_ranks:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:  # so that the memory is its own
            yield own.submit(_hundred_terabytes, config.large_ranks).result()


def _plans(planner: Locality, points: int) -> Iterator[tuple[str, LocalityPlan | None, int]]:
    """(proposer, its plan or None, plans rated) of every proposer."""
    demands, budget = planner.demands, planner.budget
    for factor in LOAD_FACTORS:
        sizing = fixed(demands, factor)
        yield f"fixed {factor:g}", planner.place(sizing) if sizing.bytes(demands) <= budget else None, 1
    for name, size in (("largest fixed", largest_fixed), ("by bytes", proportional), ("priority", by_priority)):
        yield name, _largest_that_fits(planner, size), 1
    start = Sizing(tuple(d.start for d in demands))
    plans: dict[Sizing, LocalityPlan | None] = {}

    def rate(sizing: Sizing) -> float | None:
        plans[sizing] = planner.place(sizing)
        placed = plans[sizing]
        return None if placed is None else placed.rating

    probes = scale_up(demands, start, budget, rate)
    yield "search", plans[best_of(probes).sizing], len(probes)
    grid = dense_grid(demands, start, budget, rate, points)
    yield "dense grid", plans[best_of(grid).sizing], len(grid)
    yield "water-filling", planner.plan(), 1


def _largest_that_fits(planner: Locality, size) -> LocalityPlan | None:  # noqa: ANN001 (demands, budget -> Sizing)
    """The plan of the largest share of the memory, in steps of 2 %, for which shards of these sizes can be placed."""
    for spent in range(100, 48, -2):
        placed = planner.place(size(planner.demands, spent / 100 * planner.budget))
        if placed is not None:
            return placed
    return None


def _hundred_terabytes(ranks: int) -> Measurement:
    rows = sum(table.spec.rows for table in described_tables(batch=1))
    return _timed(856, ranks, HUNDRED_TB / (rows * 516), 65_536, 1 / 37, "100 TB")


def _timed(count: int, ranks: int, factor: float, batch: int, share: float, name: str) -> Measurement:
    """Seconds from descriptions to a plan, and the most memory that this process had by then."""
    begin = time.perf_counter()
    tables = described_tables(count, batch, factor=factor)
    whole = sum(table.demand().whole_bytes for table in tables)
    plan = Locality(tables, Devices(ranks, share * whole / ranks, BANDWIDTH, LINK)).plan()
    seconds = time.perf_counter() - begin
    metrics = {
        "seconds": seconds,
        "process_bytes": 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "model_bytes": whole,
        "device_bytes": share * whole / ranks,
        "floor_bytes": 8.0 * sum(t.spec.rows for t in tables) / ranks,
        "rating_us": 1e6 * plan.rating,
        "link_us": 1e6 * max(plan.link_seconds),
        "mean_link_us": 1e6 * sum(plan.link_seconds) / ranks,
    }
    units = {n: "us" if n.endswith("_us") else "bytes" if "bytes" in n else "s" for n in metrics}
    return Measurement({"proposer": "time", "plan": name, "ranks": ranks, "tables": count}, metrics, units, 1)
