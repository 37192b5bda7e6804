"""The plans of the emulated experiments: every planner is told the site's tables, its memory and its measured links.

As `_simulated.py` does for the published cluster; values travel in fp32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from comm.plan import Plan
from comm.planner.baselines.by_index import round_robin, table_row_wise, uniform
from comm.planner.baselines.hugectr import Limits, OutOfMemory, auto, hier_auto
from comm.planner.baselines.swept import swept
from comm.planner.score import Overlap, Score, score
from comm.planner.search import Options, search
from comm.topology import Topology
from experiments.embark._emulated import Site, calibrated
from experiments.embark._simulated import CLUSTERS, POOLED

NODE = (*CLUSTERS, "unique_node")


@dataclass(frozen=True)
class Desk:
    """A site and what its cluster was measured to do."""

    site: Site
    topology: Topology

    def price(self, plan: Plan, overlap: Overlap = "none") -> Score:
        """The planner's score."""
        return score(plan, self.site.workload, self.topology, overlap)

    def step_s(self, plan: Plan, overlap: Overlap = "none") -> float:
        """Its seconds, infinity if the plan does not fit."""
        priced = self.price(plan, overlap)
        return priced.step_s if priced.fits(self.site.memory) else float("inf")

    def table_row_wise(self, mode: str) -> Plan:
        """EMBark's baseline."""
        site = self.site
        return table_row_wise(site.workload.specs, site.nodes, site.ranks_per_node, POOLED[mode], memory=site.memory)

    def searched(
        self, overlap: Overlap, clusters: tuple[str, ...] = CLUSTERS, columns: bool = True, skew: bool = True,
        seeds: tuple[Plan, ...] = (), moves: int | None = None,
    ) -> Plan:  # fmt: skip
        """Our search's."""
        load = self.site.workload if skew else self.site.workload.without_skew()
        options = Options(clusters=clusters, columns=columns)
        more = {} if moves is None else {"moves": moves}
        return search(load, self.topology, self.site.memory, overlap, options, seeds=seeds, **more).plan

    def baselines(self) -> Iterator[tuple[str, str, Plan]]:
        """(planner, mode, plan) of every planner but ours that finds one."""
        for mode in POOLED:
            for name, make in self._planners(mode).items():
                try:
                    yield name, mode, make()
                except OutOfMemory:
                    continue

    def _planners(self, mode: str) -> dict[str, Callable[[], Plan]]:
        """HugeCTR's by itself, with thresholds of its user's, and with all of them swept."""
        site, specs, pooled = self.site, self.site.workload.specs, POOLED[mode]
        hotness, link = site.workload.hotness, self.topology.link("nic", "all_to_all")
        ratio = self.topology.device.bandwidth / link.beta
        limits = Limits(site.nodes, site.ranks_per_node, site.memory, 1.0, ratio, site.workload.batch)
        small, few = len(specs) // 4, len(specs) // 3
        return {
            "table_row_wise": lambda: self.table_row_wise(mode),
            "round_robin": lambda: round_robin(specs, site.world, pooled),
            "uniform": lambda: uniform(specs, site.world, pooled),
            "auto": lambda: auto(specs, hotness, limits, pooled=pooled),
            "hier_auto": lambda: hier_auto(specs, hotness, limits, pooled=pooled),
            "auto, columns": lambda: auto(specs, hotness, limits, columns=True, pooled=pooled),
            "auto, replicated": lambda: auto(specs, hotness, limits, replicated=small, pooled=pooled),
            "hier_auto, unique": lambda: hier_auto(specs, hotness, limits, unique=few, pooled=pooled),
            "swept": lambda: swept(specs, hotness, limits, pooled, "table", self.step_s)[1],
        }


def desk_of(model: str, nodes: int, ranks_per_node: int, rate: str, samples: int = 0, rounds: int = 3) -> Desk:
    """The site of `model` on an emulated cluster, which is measured for it in `rounds` rounds (once a process)."""
    topology = calibrated(nodes, ranks_per_node, rate, rounds=rounds)
    return Desk(Site(model, nodes, ranks_per_node, rate, samples), topology)
