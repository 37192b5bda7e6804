"""What this machine does, as a Topology: seconds of every collective by link and size, of the kernels, of dense layers.

    python -m experiments calibrate                                    ranks of one node, over loopback: `intra`
    python -m experiments calibrate --nodes 2 --ranks-per-node 2       an emulated cluster: `intra` and `nic`

A collective takes from the last rank's arrival to the last rank's end, the median over repeats. A link is a line
through its sizes, alpha + bytes / beta, or linear between them where that predicts left-out sizes better.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import isotonic_regression, nnls
from torch import Tensor

import kernels
from comm.cost import loads
from comm.group import Group, launch
from comm.topology import Link, Topology
from experiments.cluster import Cluster, available, run
from experiments.record import now
from experiments.timing import random_row_bandwidth
from kernels import _backend
from kernels.cost import Device
from models.layers import MLP

LARGEST = 1 << 22
REPEATS = 11
OWN = "calibrate"
"""Label of what calibration itself sends; a group's counts are rid of it in the end."""
Points = Sequence[tuple[float, float]]
"""Bytes and seconds."""

WORKLOAD = {"rows": 100_000, "dim": 32}
HOTNESS = 4
IDS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
"""How many, when kernels are timed."""
CASES: Mapping[str, Callable[[int], Mapping[str, object]]] = {
    "pooled_lookup": lambda n: {"bags": n // HOTNESS, "hotness": HOTNESS, "ragged": False, **WORKLOAD},
    "segment_grads": lambda n: {"bags": n // HOTNESS, "hotness": HOTNESS, "ragged": False, **WORKLOAD},
    "sparse_update": lambda n: {"bags": n // HOTNESS, "hotness": HOTNESS, "ragged": False,
                                "optimizer": "rowwise_adagrad", **WORKLOAD},
    "unique_ids": lambda n: {"n": n, "rows": WORKLOAD["rows"]},
    "bucketize": lambda n: {"n": n // 8, "tables": 8, "rows": WORKLOAD["rows"], "cut": "mixed", "parts": 4, "world": 4},
}  # fmt: skip
"""The ops of an exchange, each with its case of n ids."""


def main(
    nodes: int = 1,
    ranks_per_node: int = 2,
    rate: str = "200mbit",
    shaping: bool = True,
    largest: int = LARGEST,
    out: Path = Path("runs/topology.json"),
) -> None:
    """Measure, save to `out` and print; see `python -m experiments calibrate --help`. Everything runs with one thread.

    Raises ValueError for one rank alone, or a cluster that this machine cannot have.
    """
    if nodes * ranks_per_node < 2:
        raise ValueError(f"calibrate: expected 2 ranks or more, given {nodes} x {ranks_per_node}")
    if nodes > 1 and shaping and (lacking := available()):
        raise ValueError(lacking)
    console = Console()
    console.print(f"timing collectives of {nodes} x {ranks_per_node} ranks at 20 sizes, kernels and dense layers")
    if nodes > 1:
        cluster = Cluster(nodes, ranks_per_node, rate, shaping)
        links, where = run(cluster, calibrate_group, largest)[0], cluster.link
    else:
        links, where = launch(ranks_per_node, calibrate_group, largest)[0], "loopback"
    device, rates = launch(1, measure_device)[0]
    topology = Topology(nodes, ranks_per_node, {n: _sourced(link, where) for n, link in links.items()}, device, rates)
    topology.save(out)
    table = Table("link/collective or backend/op", "alpha, us", "beta, GB/s", "fit")
    for name, link in {**topology.links, **topology.kernels}.items():
        table.add_row(name, f"{link.alpha * 1e6:.0f}", f"{link.beta / 1e9:.3f}", link.source)
    console.print(table)
    console.print(f"random 512-byte rows {device.bandwidth / 1e9:.1f} GB/s; dense {device.flops / 1e9:.0f} Gflop/s")
    console.print(f"wrote {out}")


def sizes_up_to(largest: int, world: int, number: int = 20) -> list[int]:
    """`number` sizes in bytes from 1 KiB to `largest` by equal factors, as multiples of a float32 a rank."""
    return [round(size / (4 * world)) * 4 * world for size in np.geomspace(1024, largest, number)]


def calibrate_group(
    group: Group, largest: int = LARGEST, repeats: int = REPEATS, pause_s: float = 0.0
) -> dict[str, Link]:
    """The links of a running group of 2 ranks or more, the same on every rank: `nic/...` if it has several nodes.

    All ranks call this. `pause_s` lets the link rest before each call, as compute between exchanges does: the burst of
    a shaped link has then come back.
    """
    if group.size < 2:
        raise ValueError("group: expected 2 ranks or more, given 1: there is no link to measure")
    timings = time_collectives(group, sizes_up_to(largest, group.size), repeats, pause_s)
    return {
        name: fit(points, f"gloo, {group.nodes} x {group.ranks_per_node} ranks") for name, points in timings.items()
    }


def time_collectives(
    group: Group, sizes: Sequence[int], repeats: int, pause_s: float
) -> dict[str, list[tuple[float, float]]]:
    """For each link and collective: (bytes of the busiest rank or node as in `Topology`, median seconds) by size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for size in sizes:
        for kind, collective, call in _collectives(group, size):
            label = f"{OWN}/{kind}/{collective}"
            call(label)
            group.sent.pop(label)
            seconds = _seconds(group, lambda call=call, label=label: call(label), repeats, pause_s)
            sent = _everywhere(group, group.sent.pop(label)) // repeats
            points.setdefault(f"{kind}/{collective}", []).append((loads(sent, group.ranks_per_node)[kind], seconds))
    group.sent.pop(OWN)
    for key in [key for key in group.calls if key[0].startswith(OWN)]:
        del group.calls[key]
    return points


def _collectives(group: Group, size: int) -> Iterator[tuple[str, str, Callable[[str], Tensor]]]:
    """Kind of link, collective, and a call that has every rank send about `size` bytes."""
    x = torch.zeros(group.size, size // 4 // group.size)
    wide = "nic" if group.nodes > 1 else "intra"
    yield wide, "all_to_all", lambda label: group.exchange(x, label)
    yield wide, "all_gather", lambda label: group.all_gather(x[0], [x.shape[1]] * group.size, label)
    yield wide, "all_reduce", lambda label: group.all_reduce(x.flatten(), label)
    yield wide, "reduce_scatter", lambda label: group.reduce_scatter(x, label)
    if group.nodes > 1 and group.ranks_per_node > 1:
        share = size // 4 // group.ranks_per_node
        node = group.node_of(group.rank)
        splits = [share if group.node_of(rank) == node else 0 for rank in range(group.size)]
        inside = torch.zeros(sum(splits))
        yield "intra", "all_to_all", lambda label: group.all_to_all(inside, splits, splits, label)


def _seconds(group: Group, call: Callable[[], object], repeats: int, pause_s: float) -> float:
    """Median over repeats of the time from the last rank's start to the last rank's end, on the machine's clock."""
    times = []
    for _ in range(repeats):
        time.sleep(pause_s)
        group.barrier()
        start = time.perf_counter()
        call()
        times.append((start, time.perf_counter()))
    start, end = _everywhere(group, torch.tensor(times, dtype=torch.float64)).amax(0).unbind(1)
    return float(np.median(end - start))


def _everywhere(group: Group, x: Tensor) -> Tensor:
    """Every rank's `x` [...], [size, ...]."""
    return group.all_gather(x[None], [1] * group.size, OWN)


def fit(points: Points, source: str) -> Link:
    """The link through `points`: a line, or linear between them if that predicts left-out points better.

    Least relative errors, neither alpha nor 1 / beta below zero; between points, seconds are made to grow with bytes
    first. What predicts better has a median error that is smaller by a percent of the time or more, when each inner
    point is left out in turn. `source` is completed by which it is and by that error.
    """
    points = sorted(points)
    inner = range(1, len(points) - 1)
    errors = {}
    for shape in (_line, _broken):
        left_out = [shape(points[:i] + points[i + 1 :], "").seconds(points[i][0]) / points[i][1] - 1 for i in inner]
        errors[shape] = float(np.median(np.abs(left_out))) if left_out else 0.0
    shape = _broken if errors[_broken] < errors[_line] - 0.01 else _line
    name = "line" if shape is _line else "linear between sizes"
    return shape(points, f"{source}, {name}, error {errors[shape]:.0%} of a left-out size")


def _line(points: Points, source: str) -> Link:
    """seconds = alpha + bytes / beta."""
    bytes_, seconds = np.array(points).T
    # dividing each equation by its right side turns absolute errors into relative ones
    solution = nnls(np.stack([1 / seconds, bytes_ / seconds], axis=1), np.ones(len(points)))[0]
    return Link(float(solution[0]), float(1 / max(solution[1], 1e-15)), source)


def _broken(points: Points, source: str) -> Link:
    """Linear between points; above them as steep as over their last third."""
    bytes_, seconds = np.array(points).T
    rising = isotonic_regression(seconds, weights=1 / seconds**2).x
    kept = tuple((float(b), float(s)) for b, s in zip(bytes_, rising, strict=True))
    (first, begin), (last, end) = kept[min(-len(kept) // 3, -2)], kept[-1]
    beta = (last - first) / max(end - begin, 1e-15 * (last - first))
    return Link(kept[0][1], beta, source, kept)


def _sourced(link: Link, where: str) -> Link:
    return Link(link.alpha, link.beta, f"{where}, {link.source}, {now()}", link.points)


def measure_device(group: Group) -> tuple[Device, dict[str, Link]]:
    """The limits of this rank's device and the rates of the kernels on it; `group` has this rank alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = f"measured, one thread, {now()}"
    limits = Device(device.type, random_row_bandwidth(device=device.type), dense_flops(device), source)
    return limits, time_kernels(device, IDS)


def time_kernels(device: torch.device, sizes: Sequence[int], repeats: int = REPEATS) -> dict[str, Link]:
    """Seconds of the default backend's ops against the bytes of their contract, over `sizes` of ids."""
    backend, rates = _backend.default(device), {}
    for op, fields in CASES.items():
        cases = import_module(f"kernels.{op}.cases")
        points = []
        for n in sizes:
            inputs = cases.make(cases.Case(name="calibrate", **fields(n)), 0, device)
            call = getattr(kernels, op)
            seconds = _median_seconds(lambda call=call, inputs=inputs: call(**inputs), device, repeats)
            points.append((cases.cost(inputs).bytes["memory"], seconds))
        name = f"{backend}/{op}"
        rates[name] = fit(points, f"{WORKLOAD['dim'] * 4}-byte rows, {now()}")
    return rates


def dense_flops(device: torch.device, batch: int = 512, repeats: int = REPEATS) -> float:
    """Flop/s of the forward and backward of an MLP in fp32: 6 flops a weight and sample."""
    layers = MLP(256, (256, 256, 64), last_relu=False).to(device)
    x = torch.ones(batch, 256, device=device, requires_grad=True)
    flops = 6 * batch * sum(p.numel() for p in layers.parameters() if p.ndim == 2)
    return flops / _median_seconds(lambda: layers(x).sum().backward(), device, repeats)


def _median_seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of `repeats` calls after one that does not count."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds = []
    for _ in range(repeats + 1):
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))
