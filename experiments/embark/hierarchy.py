"""Flat against hierarchical: what crosses between nodes, and how long values travel, by cluster.

Paper figure: none at hand (EMBark's topology-aware communication). Plan: table-row-wise, each table in rows over the L
ranks of one node. Flat, every one of the L sends its partial sum of a bag to the sample's node; hierarchical, they are
added inside the node first, so a NIC carries 1 / L of the values. Simulated on 1 to 16 nodes of 8 by the planner's
score; bytes of values there, both ways, by formula: B * d * s * (nodes - 1) / nodes of each table of the busiest node,
over its 8 NICs, times 8 if flat. Emulated with a timer for the dense part, bytes as counted.

Command: python -m experiments run embark/hierarchy --laptop    20 s (shaped links need root; else loopback)
Expect: L times fewer bytes between nodes; the time falls by less, since the node's own exchange is added.
Metrics: `send_ms` of values, forward and backward; `nic_mb` of values on the busiest NIC in a step; `step_ms`.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from comm.cost import loads
from experiments.config import Measurement
from experiments.embark._emulated import Arm, Stay, stay
from experiments.embark._emulated_plans import desk_of
from experiments.embark._simulated import BATCH, NODES, POOLED, RANKS_PER_NODE, Job, modes, table_rows
from experiments.record import Value

VALUES = ("send", "grad_send")
WIRE_BYTES = 2
"""Of a number on the simulated wire, fp16."""


@dataclass(frozen=True)
class Config:
    """`sites` are (nodes, ranks a node) emulated; `nodes` of 8 simulated. `samples` a rank, 0 for the site's own."""

    model: str = "t200"
    sites: tuple[tuple[int, int], ...] = ((2, 2), (2, 4))
    nodes: tuple[int, ...] = NODES
    rate: str = "200mbit"
    samples: int = 0
    rounds: int = 5


GRID = (
    *(Config(model, ((2, 2),)) for model in ("dcnv2", "t510")),
    *(Config(model, ()) for model in ("t180", "t200")),
    Config("dcnv2", ((2, 4),), ()),
)
LAPTOP = (Config("dcnv2", ((2, 2),), (2, 16), samples=16, rounds=3),)
TINY = (Config("dcnv2", ((2, 1),), (2,), samples=2, rounds=1),)
BUDGET_S = 20.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every simulated cluster, then every emulated one."""
    for nodes in config.nodes:
        yield from simulated(Job(config.model, nodes))
    for nodes, local in config.sites:
        desk = desk_of(config.model, nodes, local, config.rate, config.samples, min(3, config.rounds))
        arms = [Arm(form, desk.table_row_wise(form), "none") for form in POOLED]
        yield from emulated(stay(desk.site, desk.topology, arms, config.rounds))


def simulated(job: Job) -> Iterator[Measurement]:
    """Both forms at the planner's score."""
    for form in modes(job):
        priced = job.price(table_rows(job, form))
        widths = [sum(spec.dim for spec in job.workload.specs[node :: job.nodes]) for node in range(job.nodes)]
        copies = RANKS_PER_NODE if form == "flat" else 1
        bytes_ = 2 * BATCH * max(widths) * WIRE_BYTES * (job.nodes - 1) / job.nodes / RANKS_PER_NODE * copies
        metrics = {"send_ms": 1e3 * sum(priced.parts[name] for name in VALUES), "nic_mb": bytes_ / 1e6}
        metrics["step_ms"] = 1e3 * priced.step_s
        yield Measurement({**job.point, "form": form}, metrics, UNITS, 1, "simulated")


def emulated(found: Stay) -> Iterator[Measurement]:
    """Both forms as they ran."""
    local = found.site.ranks_per_node
    for seen in found.arms:
        send = [
            sum(s for phase, s in line.communication.items() if phase.rsplit(".", 1)[-1] in VALUES)
            for line in seen.timelines
        ]
        bytes_ = [b for label, b in seen.sent.items() if set(label.split(".")) & set(VALUES)]
        metrics = {
            "send_ms": 1e3 * statistics.median(send),
            "nic_mb": loads(torch.stack(bytes_).sum(0), local)["nic"] / 1e6,
            "step_ms": seen.step_ms,
        }
        point: dict[str, Value] = {**found.site.point, "form": seen.arm.name}
        yield Measurement(point, metrics, UNITS, len(send), found.cluster.kind, found.environment)


UNITS = {"send_ms": "ms", "nic_mb": "MB/step", "step_ms": "ms"}
