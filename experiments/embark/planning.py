"""The search's seconds, by moves and by size: T510 on 128 ranks, and copies of its tables on up to 1024.

Paper figure: none; HugeCTR's planner takes 2 to 45 s on these models as published, TorchRec's 8 to 10 s on DLRM-DCNv2's
26 tables (`embark/planners` has both here). One thread, compilation cached; 512 samples a rank; the search alone,
without the plans of others to start from.

Command: python -m experiments run embark/planning        a minute
Expect: T510 on 128 ranks within 2 s; a plan 2 % from that within 0.5 s; seconds that grow with tables and ranks.
Metrics: simulated `step_ms` without overlap and `bound_ms`; measured `plan_s`, processor seconds of one thread.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from comm.planner.search import MOVES, Options, search
from comm.planner.workload import TableLoad, Workload
from comm.presets import h100x8
from experiments.config import Measurement
from experiments.embark._simulated import CLUSTERS, MEMORY, RANKS_PER_NODE, WIRE
from experiments.embark.workloads import workload
from experiments.record import Value

SAMPLES_A_RANK = 512


@dataclass(frozen=True)
class Config:
    """`copies` of every table on `nodes`; `moves` of the search, one plan each, 0 for its own number."""

    model: str = "t510"
    copies: int = 1
    nodes: int = 16
    moves: tuple[int, ...] = (0,)


GRID = (
    Config(moves=(1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 0)),
    Config(copies=1, nodes=4),
    Config(copies=2, nodes=32),
    Config(copies=4, nodes=128),
)
LAPTOP = (Config(moves=(10_000, 0)),)
TINY = (Config("dcnv2", 2, 2, (100, 500)),)
BUDGET_S = 10.0


def copied(model: str, copies: int, batch: int) -> Workload:
    """The workload with every table `copies` times."""
    one = workload(model, batch=batch)

    def renamed(i: int) -> Iterator[TableLoad]:
        return (replace(load, table=replace(load.table, name=f"{load.table.name}.{i}")) for load in one.tables)

    tables = tuple(load for i in range(copies) for load in renamed(i))
    return replace(one, name=f"{copies} x {model}", tables=tables)


def measure(config: Config) -> Iterator[Measurement]:
    """A plan for every number of moves."""
    topology = h100x8(config.nodes)
    load = copied(config.model, config.copies, SAMPLES_A_RANK * topology.world)
    options = Options(clusters=CLUSTERS, wire=WIRE)
    search(workload("dcnv2", batch=512), h100x8(1), MEMORY, "none", options, moves=1)  # compile
    for moves in config.moves:
        began = time.process_time()
        planned = search(load, topology, MEMORY, "none", options, moves or MOVES)
        seconds = time.process_time() - began
        point: dict[str, Value] = {
            "model": config.model, "tables": len(load.tables), "nodes": config.nodes,
            "ranks_per_node": RANKS_PER_NODE, "moves": moves,
        }  # fmt: skip
        metrics = {"step_ms": 1e3 * planned.score.step_s, "bound_ms": 1e3 * planned.bound_s}
        yield Measurement(point, metrics, dict.fromkeys(metrics, "ms"), 1, "simulated")
        yield Measurement(point, {"plan_s": seconds}, {"plan_s": "s"}, 1, "measured")
