"""What this machine does, as a Topology: seconds of every collective by link and size, of the kernels, of dense layers.

    python -m experiments calibrate                                    ranks of one node, over loopback: `intra`
    python -m experiments calibrate --nodes 2 --ranks-per-node 2       an emulated cluster: `intra` and `nic`

A collective takes from the last arrival to the last end of a rank, the median over rounds in which all take turns. A
link is a line through its sizes, alpha + bytes / beta, or one with a knee (the burst of a shaped link costs nothing)
where that predicts left-out sizes better.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares
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

COLLECTIVES = ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")
LARGEST = 1 << 22
ROUNDS = 12
FEW_FROM = 1 << 17
"""Bytes from which a size takes part in every third round only: it is slow, and its time steadier."""
OWN = "calibrate"
"""Label of what calibration itself sends; a group's counts are rid of it in the end."""
STEEPEST = 1e-15
"""Least seconds a byte: where no slope shows, a link is as fast as this."""
TINY = 1e-12
"""Seconds; keeps the logarithm of a model finite on the way to its fit."""
NOISE = 0.1
"""Part of the time by which a median of rounds is off on a machine that is not quiet."""
Points = Sequence[tuple[float, float]]
"""Bytes and seconds."""

WORKLOAD = {"rows": 500_000, "dim": 32}
"""64 MB: more than a cache holds."""
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
    table = Table("link/collective or backend/op", "alpha, us", "beta, GB/s", "shape")
    for name, link in {**topology.links, **topology.kernels}.items():
        table.add_row(name, f"{link.alpha * 1e6:.0f}", f"{link.beta / 1e9:.3f}", "knee" if link.points else "line")
    console.print(table)
    console.print(f"random 512-byte rows {device.bandwidth / 1e9:.1f} GB/s; dense {device.flops / 1e9:.0f} Gflop/s")
    console.print(f"wrote {out}")


def sizes_up_to(largest: int, world: int, number: int = 20) -> list[int]:
    """`number` sizes in bytes from 1 KiB to `largest` by equal factors, as multiples of a float32 a rank."""
    return [round(size / (4 * world)) * 4 * world for size in np.geomspace(1024, largest, number)]


def calibrate_group(
    group: Group,
    largest: int = LARGEST,
    rounds: int = ROUNDS,
    compute_s: float = 0.001,
    pause_s: float = 0.005,
    collectives: Sequence[str] = COLLECTIVES,
) -> dict[str, Link]:
    """The links of a running group of 2 ranks or more, the same on every rank: `nic/...` if it has several nodes.

    All ranks call this. Between calls each computes for about `compute_s` and rests for `pause_s`, as in a step on
    shared cores: ranks that are through take cores from those that are not, and a shaped link has its burst back.
    """
    if group.size < 2:
        raise ValueError("group: expected 2 ranks or more, given 1: there is no link to measure")
    timings = time_collectives(group, sizes_up_to(largest, group.size), rounds, compute_s, pause_s, collectives)
    return {
        name: fit(points, f"gloo, {group.nodes} x {group.ranks_per_node} ranks") for name, points in timings.items()
    }


def time_collectives(
    group: Group,
    sizes: Sequence[int],
    rounds: int,
    compute_s: float,
    pause_s: float,
    collectives: Sequence[str] = COLLECTIVES,
) -> dict[str, list[tuple[float, float]]]:
    """For each link and collective: (bytes of the busiest rank or node as in `Topology`, median seconds) by size."""
    jobs = [job for size in sizes for job in _jobs(group, collectives, size)]
    for job in jobs:  # not timed; tells the bytes
        job.call(OWN)
        sent = _everywhere(group, group.sent.pop(OWN), "bytes")
        job.load = loads(sent, group.ranks_per_node)[job.kind]
    order, pauses = random.Random(0), random.Random(group.rank)  # one order for all ranks, for each pauses of its own
    for number in range(rounds):
        for job in order.sample(jobs, len(jobs)):
            if job.size < FEW_FROM or number % 3 == 0:
                _compute(pauses.uniform(0.5, 1.5) * compute_s)
                time.sleep(pause_s)
                start = time.perf_counter()
                job.call(OWN)
                job.times.append((start, time.perf_counter()))
    points: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        # perf_counter is the machine's clock: ranks on one machine can compare theirs
        start, end = _everywhere(group, torch.tensor(job.times, dtype=torch.float64), "times").amax(0).unbind(1)
        points.setdefault(f"{job.kind}/{job.collective}", []).append((job.load, float(np.median(end - start))))
    for label in [label for label in group.sent if label.startswith(OWN)]:
        del group.sent[label]
    for key in [key for key in group.calls if key[0].startswith(OWN)]:
        del group.calls[key]
    return points


@dataclass
class _Job:
    """One collective at one size; `load` in bytes, `times` of start and end in seconds."""

    kind: str
    collective: str
    call: Callable[[str], Tensor]
    size: int
    load: float = 0.0
    times: list[tuple[float, float]] = field(default_factory=list)


def _compute(seconds: float) -> None:
    """Keep a core and its caches busy until `seconds` have passed."""
    x, end = torch.ones(1 << 18), time.perf_counter() + seconds
    while time.perf_counter() < end:
        x.mul_(1.0)


def _jobs(group: Group, collectives: Sequence[str], size: int) -> Iterator[_Job]:
    """Each collective on each link, so that a rank sends about `size` bytes: over all ranks, and inside all nodes."""
    links = {"nic": group, "intra": group.node} if group.nodes > 1 else {"intra": group}
    for kind, part in links.items():
        if part.size == 1:
            continue
        x = torch.zeros(part.size, size // 4 // part.size)
        calls = {
            "all_to_all": partial(part.exchange, x),
            "all_gather": partial(part.all_gather, x[0], [x.shape[1]] * part.size),
            "all_reduce": partial(part.all_reduce, x.flatten()),
            "reduce_scatter": partial(part.reduce_scatter, x),
        }
        yield from (_Job(kind, name, calls[name], size) for name in collectives)


def _everywhere(group: Group, x: Tensor, label: str) -> Tensor:
    """Every rank's `x` [...], [size, ...]."""
    return group.all_gather(x[None], [1] * group.size, f"{OWN}.{label}")


def fit(points: Points, source: str) -> Link:
    """The link through `points`, four or more: a line, or one with a knee if that predicts left-out points better.

    Residuals are logarithms of ratios, so that small sizes count like large ones, and those beyond NOISE count by
    their size instead of its square. What predicts better has a median error that is smaller by a percent of the time
    or more, when each quarter of the points is left out in turn. `source` is completed by which it is and that error.
    """
    points = sorted(points)
    errors = {}
    for shape in (_line, _knee):
        ratios = []
        for turn in range(4):
            kept = shape([point for i, point in enumerate(points) if i % 4 != turn], "")
            ratios += [kept.seconds(bytes_) / seconds for bytes_, seconds in points[turn::4]]
        errors[shape] = float(np.median(np.abs(np.array(ratios) - 1)))
    shape = _knee if errors[_knee] < errors[_line] - 0.01 else _line
    return shape(points, f"{source}, {shape.__name__[1:]}, error {errors[shape]:.0%} of a left-out size")


def _line(points: Points, source: str) -> Link:
    """seconds = alpha + bytes / beta."""
    bytes_, seconds = np.array(points).T
    alpha, slope = _least(lambda x: x[0] + x[1] * bytes_, seconds, [[seconds[0], seconds[-1] / bytes_[-1]]])
    return Link(alpha, 1 / max(slope, STEEPEST), source)


def _knee(points: Points, source: str) -> Link:
    """One slope up to the knee, another above it."""
    bytes_, seconds = np.array(points).T

    def model(x: np.ndarray) -> np.ndarray:
        return x[0] + x[1] * np.minimum(bytes_, x[3]) + x[2] * np.maximum(bytes_ - x[3], 0)

    slope = seconds[-1] / bytes_[-1]
    starts = [[seconds[0], slope, slope, knee] for knee in np.quantile(bytes_, (0.25, 0.5, 0.75))]
    alpha, below, above, knee = _least(model, seconds, starts)
    return Link(alpha, 1 / max(above, STEEPEST), source, ((0.0, alpha), (knee, alpha + knee * below)))


def _least(
    model: Callable[[np.ndarray], np.ndarray], seconds: np.ndarray, starts: Sequence[Sequence[float]]
) -> list[float]:
    """The parameters of `model`, none below zero, that come nearest to `seconds`, from the best of `starts`."""

    def residuals(factors: np.ndarray, start: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(model(factors * start), TINY) / seconds)

    fits = []
    for start in map(np.array, starts):
        found = least_squares(
            residuals, np.ones(len(start)), bounds=(0, np.inf), loss="soft_l1", f_scale=NOISE,
            ftol=1e-9, xtol=1e-9, gtol=1e-9, max_nfev=60, args=(start,),
        )  # fmt: skip
        fits.append((float(found.cost), (found.x * start).tolist()))
    return min(fits)[1]


def _sourced(link: Link, where: str) -> Link:
    return Link(link.alpha, link.beta, f"{where}, {link.source}, {now()}", link.points)


def measure_device(group: Group) -> tuple[Device, dict[str, Link]]:
    """The limits of this rank's device and the rates of the kernels on it; `group` has this rank alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = f"measured, one thread, {now()}"
    limits = Device(device.type, random_row_bandwidth(device=device.type), dense_flops(device), source)
    return limits, time_kernels(device, IDS)


def time_kernels(device: torch.device, sizes: Sequence[int], repeats: int = ROUNDS) -> dict[str, Link]:
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


def dense_flops(device: torch.device, batch: int = 512, repeats: int = ROUNDS) -> float:
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
