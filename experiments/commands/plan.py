"""`python -m experiments plan`: where a model's tables should go on a cluster, why, and what a step would take."""

import json
import re
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from comm.planner.score import Overlap
from comm.planner.search import MOVES, Options, Planned, search
from comm.planner.torchrec_export import export
from comm.presets import h100x8
from comm.topology import Topology
from comm.wire import Wire
from experiments.data.table_list import read_tables
from experiments.embark.workloads import MODELS, workload

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
FOR_TORCHREC = ("replicated_dense", "hierarchical")
"""Clusters that TorchRec has too."""


def main(
    tables: str,
    topology: str,
    memory: str,
    batch: int = 65_536,
    optimizer: str = "rowwise_adagrad",
    dense_parameters: int = 0,
    overlap: Overlap = "steps",
    wire: Wire = "fp16",
    moves: int = MOVES,
    out: Path = Path("runs/plan.json"),
    torchrec: Path | None = None,
) -> None:
    """Plan tables under a memory cap per rank; prints each table's choice and what the runner-up would cost.

    Args:
        tables: a table list (experiments/data/table_list.py says what is in it), or dcnv2, t180, t200, t510.
        topology: NODESx8xH100, such as 16x8xH100, or a file that `calibrate` wrote.
        memory: bytes of each rank for rows, optimizer state and buffers, such as 60GB or 64GiB.
        batch: samples of a global batch.
        optimizer: the tables' rule, whose state takes memory (table lists only).
        dense_parameters: gradients that share the network (table lists only).
        overlap: none, step (exchanges under the same step's compute) or steps (the next step's keys too).
        wire: the format in which values travel.
        moves: how long to search.
        out: the plan, as JSON to edit, diff and train under.
        torchrec: also write TorchRec's sharding plan here; clusters and row parts are then those that it has.
    """
    if tables in MODELS:
        load = workload(tables, batch=batch)
    else:
        load = read_tables(Path(tables), batch, optimizer, dense_parameters)
    cluster, cap, began = topology_of(topology), bytes_of(memory), time.perf_counter()
    options = Options(wire=wire) if torchrec is None else Options(clusters=FOR_TORCHREC, rows=False, wire=wire)
    with Progress(SpinnerColumn(), TextColumn("planning"), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        bar.add_task("", total=None)
        planned = search(load, cluster, cap, overlap, options, moves)
    took = time.perf_counter() - began
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(planned.plan.to_json(), encoding="utf-8")
    print(planned)
    print(where_time_goes(planned))
    print(f"planned in {took:.1f} s -> {out}")
    if torchrec is not None:
        torchrec.write_text(json.dumps(export(planned.plan, cluster.ranks_per_node), indent=1) + "\n", encoding="utf-8")
        print(f"for TorchRec -> {torchrec}")


def where_time_goes(planned: Planned) -> str:
    """The parts of the step, longest first, in words."""
    parts = sorted(planned.score.parts.items(), key=lambda part: -part[1])
    return "of the step, overlapped or not: " + ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in parts if s > 0)


def topology_of(text: str) -> Topology:
    """A preset by size and name, or a calibrated topology from its file.

    Raises ValueError that says what was expected.
    """
    if match := re.fullmatch(r"(\d+)x8xH100", text):
        return h100x8(int(match[1]))
    if Path(text).is_file():
        return Topology.load(Path(text))
    raise ValueError(
        f"topology: expected NODESx8xH100, such as 16x8xH100, or a file that calibrate wrote, given {text!r}"
    )


def bytes_of(text: str) -> int:
    """A number of bytes with its unit. Raises ValueError that lists the units."""
    match = re.fullmatch(r"([\d.]+) ?([A-Za-z]+)", text)
    if not match or match[2].upper() not in UNITS:
        raise ValueError(f"memory: expected a number and one of {', '.join(UNITS)}, such as 60GB, given {text!r}")
    return round(float(match[1]) * UNITS[match[2].upper()])
