"""The share of a step that embedding communication takes, by number of nodes.

Paper figure: the blog on EMBark gives 25 % at 8 ranks and 51 % at 128, of DLRM on DGX H100 (its figure 2; which model
and which exchange is not said); drawn as paper points. Here: table-row-wise flat and hierarchical and the search's
plan, all without overlap, from 1 to 16 nodes of 8, global batch 65536.

Command: python -m experiments run embark/comm_share        a minute
Expect: a share that grows with nodes, most with the flat exchange.
Metrics: `share` of the step in per cent (keys, values and gradients of the tables on the network), `step_ms`; `fits`, 0
where table-row-wise would need more memory than a rank has (T200 and T510 on one node): priced all the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.config import Measurement
from experiments.embark._simulated import MEMORY, MODELS, NODES, RANKS_PER_NODE, Job, modes, searched, table_rows

PAPER = {8: 25.0, 128: 51.0}
"""Per cent by ranks; developer.nvidia.com/blog, "Boost large-scale recommendation system training embedding using
EMBark".
"""


@dataclass(frozen=True)
class Config:
    """Models and nodes; `moves` of the search, None for its own number."""

    models: tuple[str, ...] = MODELS
    nodes: tuple[int, ...] = NODES
    moves: int | None = None


GRID = (Config(),)
LAPTOP = (Config(models=("dcnv2", "t200"), nodes=(1, 16), moves=20_000),)
TINY = (Config(models=("dcnv2",), nodes=(1, 2), moves=500),)
BUDGET_S = 8.0


def measure(config: Config) -> Iterator[Measurement]:
    """The paper's points, then every model on every cluster."""
    for ranks, share in PAPER.items():
        point = {
            "model": "not said",
            "nodes": ranks // RANKS_PER_NODE,
            "ranks_per_node": RANKS_PER_NODE,
            "arm": "paper",
        }
        yield Measurement(point, {"share": share}, {"share": "%"}, 1, "paper")
    for model in config.models:
        for nodes in config.nodes:
            job = Job(model, nodes)
            arms = {f"table_row_wise, {mode}": table_rows(job, mode) for mode in modes(job)}
            arms["search"] = searched(job, moves=config.moves).plan
            for arm, plan in arms.items():
                priced = job.price(plan)
                metrics = {"share": 100 * priced.communication_s / priced.step_s, "step_ms": 1e3 * priced.step_s}
                metrics["fits"] = float(priced.fits(MEMORY))
                unit = {"share": "%", "step_ms": "ms", "fits": "1"}
                yield Measurement({**job.point, "arm": arm}, metrics, unit, 1, "simulated")
