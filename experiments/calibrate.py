"""What this machine does: alpha and beta of every collective between processes on it, and its device's limits, as a
Topology.

Each collective is timed at sizes from 1 KiB to 4 MiB a rank; alpha (seconds) and beta (bytes/s sent a rank) are the
line through the medians, relative errors weighted equally. Over loopback the link is called `intra`.
"""

import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from comm.group import Group, launch
from comm.topology import Link, Topology
from experiments.record import now
from experiments.timing import random_row_bandwidth
from kernels.cost import Device

RANKS = 2
SIZES = tuple(2**power for power in range(10, 23))  # bytes a rank
COLLECTIVES = ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")
REPEATS = 15


def main(out: Path = Path("runs/topology.json")) -> None:
    """Measure, save to `out` and print."""
    console = Console()
    console.print(f"timing {len(COLLECTIVES)} collectives at {len(SIZES)} sizes on {RANKS} ranks, about 20 s")
    times = launch(RANKS, time_collectives)[0]
    source = f"measured over loopback with gloo, {RANKS} ranks, {now()}"
    links = {f"intra/{name}": _fit(points, source) for name, points in times.items()}
    device = Device("cpu", random_row_bandwidth(row_bytes=512), _flops(), f"measured, {now()}")
    topology = Topology(1, RANKS, links, device)
    topology.save(out)
    table = Table("link/collective", "alpha, us", "beta, GB/s", "largest error of the line, %")
    for name, link in links.items():
        points = times[name.removeprefix("intra/")]
        worst = max(abs(link.seconds(bytes_) / seconds - 1) for bytes_, seconds in points)
        table.add_row(name, f"{link.alpha * 1e6:.0f}", f"{link.beta / 1e9:.2f}", f"{worst * 100:.0f}")
    console.print(table)
    console.print(f"random 512-byte rows {device.bandwidth / 1e9:.1f} GB/s; matmul {device.flops / 1e9:.0f} Gflop/s")
    console.print(f"wrote {out}")


def time_collectives(group: Group) -> dict[str, list[tuple[int, float]]]:
    """For each collective: (bytes that a rank sent, median seconds) by size."""
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in COLLECTIVES}
    for size in SIZES:
        entries = size // 4 // group.size
        x = torch.zeros(group.size, entries)
        calls = {
            "all_to_all": lambda x=x: group.exchange(x, "all_to_all"),
            "all_gather": lambda x=x: group.all_gather(x[0], [x.shape[1]] * group.size, "all_gather"),
            "all_reduce": lambda x=x: group.all_reduce(x.flatten(), "all_reduce"),
            "reduce_scatter": lambda x=x: group.reduce_scatter(x, "reduce_scatter"),
        }
        for name, call in calls.items():
            call()
            before, seconds = int(group.sent[name].sum()), []
            for _ in range(REPEATS):
                group.barrier()
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
            sent = (int(group.sent[name].sum()) - before) // REPEATS
            points[name].append((sent, float(np.median(seconds))))
    return points


def _fit(points: list[tuple[int, float]], source: str) -> Link:
    """The line seconds = alpha + bytes / beta with the least squared relative error; neither part below zero."""
    bytes_, seconds = np.array(points).T
    # dividing each equation by its right side turns absolute errors into relative ones
    solution = nnls(np.stack([1 / seconds, bytes_ / seconds], axis=1), np.ones(len(points)))[0]
    return Link(float(solution[0]), float(1 / max(solution[1], 1e-15)), source)


def _flops(n: int = 1024, repeats: int = 5) -> float:
    """Flop/s of an fp32 matrix product, the best of a few."""
    a = torch.ones(n, n)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, a)
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)
