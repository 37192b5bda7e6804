"""The measured points of `embark/crossover`: steps of equal tables, a table a rank, under one cluster or another."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from comm.group import Group
from comm.plan import Placement, Plan
from comm.simulate import Timeline
from experiments.cluster import run
from experiments.comm._steps import EmbeddingStep, Ran, cluster_of, environment, timeline
from experiments.config import Measurement
from experiments.record import Value
from kernels import Bags, TableSpec

KEY = 4
"""Bytes of a row number."""
ROWS = 100_000
"""Of the tables in the comparison with `unique`: ids are not bounded by them."""


@dataclass(frozen=True)
class Bench:
    """`samples` a rank on an emulated cluster with links of `rate`, `rounds` steps an arm in turns."""

    nodes: int
    ranks_per_node: int
    samples: int
    dim: int
    rate: str
    rounds: int

    @property
    def world(self) -> int:
        """Ranks, and tables."""
        return self.nodes * self.ranks_per_node

    def specs(self, rows: int) -> tuple[TableSpec, ...]:
        """The tables."""
        return tuple(TableSpec(f"t{i}", rows, self.dim) for i in range(self.world))

    def bags(self, rows: int, hotness: int, unique: float) -> list[Bags]:
        """Every rank's: of a table's ids on a rank, the part `unique` is distinct."""
        count, generator = self.samples * hotness, torch.Generator().manual_seed(0)
        distinct = min(rows, max(1, round(unique * count)))

        def ids() -> torch.Tensor:
            start = int(torch.randint(0, rows, (1,), generator=generator))
            kinds = (start + torch.arange(count) % distinct * max(1, rows // distinct)) % rows
            return kinds[torch.randperm(count, generator=generator)]

        offsets = torch.arange(self.world * self.samples + 1) * hotness
        return [Bags(torch.cat([ids() for _ in range(self.world)]), offsets) for _ in range(self.world)]

    def plan(self, rows: int, cluster: str) -> Plan:
        """Every table under one cluster."""
        local, everyone = self.ranks_per_node, tuple(range(self.world))

        def place(i: int, name: str) -> Placement:
            of_node = tuple(range(i % self.nodes * local, (i % self.nodes + 1) * local))
            found = {
                "unique": Placement(name, "unique", everyone),
                "replicated": Placement(name, "replicated_dense"),
                "1 part": Placement(name, "gridwise", (i,)),
                f"{local} parts, flat": Placement(name, "gridwise", of_node),
                f"{local} parts, hierarchical": Placement(name, "hierarchical", of_node),
            }
            return found[cluster]

        specs = self.specs(rows)
        return Plan(self.world, specs, tuple(place(i, spec.name) for i, spec in enumerate(specs)))

    @property
    def forms(self) -> tuple[str, ...]:
        """The ways to reduce."""
        local = self.ranks_per_node
        return ("1 part", f"{local} parts, flat", f"{local} parts, hierarchical")


@dataclass(frozen=True)
class Case:
    """Tables of `rows`, `hotness` ids a bag of which the part `unique` is distinct on a rank."""

    rows: int
    hotness: int
    unique: float
    clusters: tuple[str, ...]


def measured(
    bench: Bench, hotness: Sequence[int], unique: Sequence[float], rows: Sequence[int]
) -> Iterator[Measurement]:
    """Both comparisons: reduction in every form against unique; in one part against replicated, with one id a bag."""
    cases = [Case(ROWS, h, u, (*bench.forms, "unique")) for h in hotness for u in unique]
    cases += [Case(n, 1, 1.0, ("1 part", "replicated")) for n in rows]
    cluster = cluster_of(bench.nodes, bench.ranks_per_node, bench.rate)
    ranks = run(cluster, run_rank, bench, cases)
    for case, *of_case in zip(cases, *ranks, strict=True):
        lines = {c: [timeline(step) for step in zip(*(r[c] for r in of_case), strict=True)] for c in case.clusters}
        other = case.clusters[-1]
        for form in case.clusters[:-1]:
            metrics = {"formula": formula(bench, case, form, other)}
            for name, arm in (("reduction", form), (other, other)):
                metrics[f"{name}_ms"] = 1e3 * statistics.median(whole(line) for line in lines[arm])
                communication = [sum(line.communication.values()) for line in lines[arm]]
                metrics[f"{name}_communication_ms"] = 1e3 * statistics.median(communication)
            where: dict[str, Value] = {"hotness": case.hotness, "unique": case.unique, "rows": case.rows}
            point = {"part": other, "form": form, "nodes": bench.nodes, "ranks_per_node": bench.ranks_per_node, **where}
            units = {n: "1" if n == "formula" else "ms" for n in metrics}
            env = environment(cluster) | {"wire": "fp32"}
            yield Measurement(point, metrics, units, bench.rounds, cluster.kind, env)


def run_rank(group: Group, bench: Bench, cases: Sequence[Case]) -> list[Mapping[str, list[Ran]]]:
    """One rank: the arms of a case take turns."""
    found = []
    for case in cases:
        bags = bench.bags(case.rows, case.hotness, case.unique)
        steps = {c: EmbeddingStep(group, bench.plan(case.rows, c), bags) for c in case.clusters}
        for step in steps.values():
            step.run(shaped=False)
        rounds: list[Any] = [{c: step.run(shaped=False) for c, step in steps.items()} for _ in range(bench.rounds)]
        found.append({c: [ran[c] for ran in rounds] for c in case.clusters})
    return found


def whole(line: Timeline) -> float:
    """Seconds of all embedding work: each phase of its slowest rank, exchanges from the last arrival on."""
    longest = dict(line.communication)
    for span in line.spans:
        if span.resource != "network" and span.phase != "dense":
            longest[span.phase] = max(longest.get(span.phase, 0.0), span.end - span.start)
    return sum(longest.values())


def formula(bench: Bench, case: Case, form: str, other: str) -> float:
    """Bytes received by reduction over those by the other cluster; see `crossover`."""
    row = 4 * bench.dim
    parts = bench.ranks_per_node if form.endswith("flat") else 1
    if other == "replicated":
        return (2 * row + case.hotness * KEY) * bench.samples / (2 * case.rows * row)
    return (2 * parts * row + case.hotness * KEY) / (case.unique * case.hotness * (2 * row + KEY))
