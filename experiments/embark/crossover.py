"""Where one cluster overtakes another: reduction against unique by hotness and uniqueness, against replicated by rows.

Paper figure: none at hand; the formulas are bytes a rank receives in a step, values and gradients (d numbers of s bytes
a row, k bytes a key, h ids a bag of which a part u is distinct, R row parts a table, b samples a rank, V rows):

    unique < reduction         u h (2 d s + k) < 2 R d s + h k      about u h < R; hierarchical u h < nodes with a part
    replicated < reduction     2 V d s < 2 b d s + b h k            about V < b

A model of equal tables, one a rank, on nodes of 8; without dense part. The score also knows latency, look-ups, sorting
and both ends of a link, so its crossing may lie elsewhere than the formula's. One configuration runs on an emulated
cluster of 2 x 2 instead, values in fp32.

Command: python -m experiments run embark/crossover        seconds
Expect: time ratios that cross 1 near u h = R for values, later with keys and sorting.
Metrics: milliseconds of communication and of all embedding work, of either side; `formula`, the ratio of bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from comm.plan import Placement, Plan
from comm.planner.score import Score, score
from comm.planner.workload import DenseLoad, TableLoad, Workload
from comm.presets import h100x8
from comm.wire import row_bytes
from experiments.config import Measurement
from experiments.embark._emulated_crossover import Bench, measured
from experiments.embark._simulated import RANKS_PER_NODE, WIRE
from experiments.record import Value
from kernels import Optimizer, TableSpec

KEY = 4
"""Bytes of a row number."""
ROWS = 10_000_000
"""Of the tables in the comparison with `unique`: ids are not bounded by them."""


@dataclass(frozen=True)
class Config:
    """`hotness` x `unique` ratios, then `rows`; `samples` a rank. `emulated` ranks a node step, on links of `rate` and
    for `rounds` rounds; 0: simulated on nodes of 8.
    """

    nodes: int = 16
    samples: int = 512
    dim: int = 128
    hotness: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    unique: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    rows: tuple[int, ...] = (16, 64, 256, 512, 1024, 4096, 16_384, 65_536)
    emulated: int = 0
    rate: str = "200mbit"
    rounds: int = 5


SMALL = Config(2, 64, 64, (1, 4, 16), (0.1, 0.3, 1.0), (16, 64, 256, 1024), emulated=2)
GRID = (Config(), Config(nodes=1), Config(dim=32), SMALL)
LAPTOP = (Config(),)
TINY = (Config(nodes=2, hotness=(1, 20), unique=(0.2,), rows=(64,)),)
BUDGET_S = 6.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every point of both comparisons."""
    if config.emulated:
        bench = Bench(config.nodes, config.emulated, config.samples, config.dim, config.rate, config.rounds)
        yield from measured(bench, config.hotness, config.unique, config.rows)
        return
    for form, hotness, unique in product(reductions(config.nodes), config.hotness, config.unique):
        work = model(config, ROWS, hotness, unique)
        yield compared(config, work, form, "unique", {"hotness": hotness, "unique": unique, "rows": ROWS})
    for rows in config.rows:
        work = model(config, rows, 1, None)
        yield compared(config, work, "1 part", "replicated", {"hotness": 1, "unique": 1.0, "rows": rows})


def reductions(nodes: int) -> tuple[str, ...]:
    """The ways to reduce: a table whole, in rows over a node, and that through the node."""
    return ("1 part", "8 parts, flat") + (("8 parts, hierarchical",) if nodes > 1 else ())


def model(config: Config, rows: int, hotness: int, unique: float | None) -> Workload:
    """A table a rank, a part `unique` of any ids distinct; None: ids are uniform."""

    def distinct(ids: float) -> float:
        return rows * (1 - (1 - 1 / rows) ** ids) if unique is None else unique * ids

    world = config.nodes * RANKS_PER_NODE
    tables = (TableLoad(TableSpec(f"t{i}", rows, config.dim), hotness, distinct, 0, 0.0) for i in range(world))
    return Workload("equal tables", tuple(tables), config.samples * world, Optimizer("sgd"), DenseLoad.none())


def planned(config: Config, work: Workload, cluster: str) -> Plan:
    """Every table under one cluster."""
    world = config.nodes * RANKS_PER_NODE

    def place(i: int, name: str) -> Placement:
        first = i % config.nodes * RANKS_PER_NODE
        of_node = tuple(range(first, first + RANKS_PER_NODE))
        return {
            "unique": Placement(name, "unique", tuple(range(world)), wire=WIRE),
            "replicated": Placement(name, "replicated_dense", wire=WIRE),
            "1 part": Placement(name, "gridwise", (i,), wire=WIRE),
            "8 parts, flat": Placement(name, "gridwise", of_node, wire=WIRE),
            "8 parts, hierarchical": Placement(name, "hierarchical", of_node, wire=WIRE),
        }[cluster]

    specs = work.specs
    return Plan(world, specs, tuple(place(i, spec.name) for i, spec in enumerate(specs)))


def compared(config: Config, work: Workload, form: str, other: str, where: dict[str, Value]) -> Measurement:
    """One point: reduction in one form against another cluster."""
    topology = h100x8(config.nodes)
    point = {"part": other, "form": form, "nodes": config.nodes, "ranks_per_node": RANKS_PER_NODE, **where}
    metrics = {"formula": formula(config, form, other, where)}
    for name, cluster in (("reduction", form), (other, other)):
        priced: Score = score(planned(config, work, cluster), work, topology)
        metrics[f"{name}_ms"] = 1e3 * priced.embedding_s
        metrics[f"{name}_communication_ms"] = 1e3 * priced.communication_s
    return Measurement(point, metrics, {n: "1" if n == "formula" else "ms" for n in metrics}, 1, "simulated")


def formula(config: Config, form: str, other: str, where: dict[str, Value]) -> float:
    """Bytes received by reduction over those by the other cluster."""
    hotness, unique, rows = float(where["hotness"]), float(where["unique"]), float(where["rows"])
    table = TableSpec("t", 1, config.dim)
    row = row_bytes(table.dim, table.dtype, WIRE)
    parts = RANKS_PER_NODE if form == "8 parts, flat" else 1
    if other == "replicated":
        return (2 * config.samples * row + config.samples * hotness * KEY) / (2 * rows * row)
    return (2 * parts * row + hotness * KEY) / (unique * hotness * (2 * row + KEY))
