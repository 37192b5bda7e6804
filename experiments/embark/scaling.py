"""Throughput from 1 to 16 nodes: the same global batch on more ranks (strong), and more samples too (weak).

Paper figure: none at hand. Table-row-wise without overlap (hierarchical where there are nodes), the same with overlap,
and the search's plan with overlap. Strong: 65536 samples in all. Weak: 512 a rank, so that both meet at 16 nodes.

Command: python -m experiments run embark/scaling        two minutes
Expect: strong scaling well below linear for table-row-wise, nearer to it for the search.
Metrics: `step_ms`, `samples_per_s`; `fits`, 0 where a plan would need more memory than a rank has: priced all the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from comm.plan import Plan
from experiments.config import Measurement, grid
from experiments.embark._simulated import (
    BATCH,
    MEMORY,
    MODELS,
    NODES,
    RANKS_PER_NODE,
    Job,
    Overlap,
    searched,
    table_rows,
)

SAMPLES_A_RANK = 512


@dataclass(frozen=True)
class Config:
    """`form` is `strong` or `weak`; `moves` of the search, None for its own number."""

    form: str = "strong"
    model: str = "dcnv2"
    nodes: tuple[int, ...] = NODES
    moves: int | None = None


GRID = grid(Config, form=("strong", "weak"), model=MODELS)
LAPTOP = grid(Config, form=("strong", "weak"), model=("dcnv2",), nodes=((1, 4, 16),), moves=(20_000,))
TINY = grid(Config, form=("strong", "weak"), nodes=((1, 2),), moves=(500,))
BUDGET_S = 8.0


def measure(config: Config) -> Iterator[Measurement]:
    """Every number of nodes.

    Raises ValueError for another form of scaling.
    """
    if config.form not in ("strong", "weak"):
        raise ValueError(f"form: expected strong or weak, given {config.form!r}")
    for nodes in config.nodes:
        batch = BATCH if config.form == "strong" else SAMPLES_A_RANK * RANKS_PER_NODE * nodes
        job = Job(config.model, nodes, batch)
        rows = table_rows(job)
        found = searched(job, overlap="steps", seeds=(rows,), moves=config.moves).plan
        arms: tuple[tuple[str, Overlap, Plan], ...] = (
            ("table_row_wise", "none", rows),
            ("table_row_wise", "steps", rows),
            ("search", "steps", found),
        )
        for arm, overlap, plan in arms:
            priced = job.price(plan, overlap)
            step = priced.step_s
            point = {**job.point, "form": config.form, "batch": batch, "arm": arm, "overlap": overlap}
            metrics = {"step_ms": 1e3 * step, "samples_per_s": batch / step, "fits": float(priced.fits(MEMORY))}
            unit = {"step_ms": "ms", "samples_per_s": "1/s", "fits": "1"}
            yield Measurement(point, metrics, unit, 1, "simulated")
