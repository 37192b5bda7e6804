"""Samples a second of every arm under four models: DLRM-DCNv2, DLRM, DeepFM, Wide & Deep.

Paper figure: none known. A model is here what its dense part costs: a timer in proportion to its matrices (6 flops a
weight and sample), on a device so fast that communication is half of DCNv2's de-duplicated step. Widths: DCNv2 as in
MLPerf, DLRM as in its paper, DeepFM and Wide & Deep as in theirs. What the exchange moves is the same under all.

Run:      python -m experiments run fec/throughput --laptop
Expect:   models with little to compute hide little: exposed time falls by less, throughput gains stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from experiments.config import Measurement
from experiments.data.batch import DENSE
from experiments.fec._arms import ARMS, BASELINES, FEC, FULL, MICRO
from experiments.fec._cell import Cell, Turn, environment, metrics_of, point_of, run_cell, samples_of, seen, tiny, unit
from experiments.fec._streams import ZipfClicks
from experiments.record import Value
from kernels import Bags, TableSpec
from models.dcn import DLRMDCNv2
from models.deepfm import DeepFM
from models.dlrm import DLRM
from models.ranking import RankingModel
from models.wide_deep import WideDeep

MODELS = ("dcnv2", "dlrm", "deepfm", "wide_deep")
UNIT = "dcnv2"
"""The model that the cell's stand-in is as long as."""
ALL = (*BASELINES, FEC, FULL, MICRO)


@dataclass(frozen=True)
class Config:
    """`arms` of each of `models`, all in turn."""

    cell: Cell = field(default_factory=lambda: Cell(batch=512))
    models: tuple[str, ...] = MODELS
    arms: tuple[str, ...] = ALL
    steps: int = 3
    rounds: int = 1


GRID = (Config(),)
LAPTOP = (Config(models=("dcnv2", "deepfm"), arms=("raw", "unique", FULL), steps=2),)
TINY = (
    Config(
        tiny(), ("dcnv2", "deepfm"), ("unique", FULL), 1
    ),
)  # fmt: skip
BUDGET_S = 22.0


def measure(config: Config) -> Iterator[Measurement]:
    """All arms of all models in one cluster."""
    cell = config.cell
    tables = ZipfClicks(1, max_rows=cell.max_rows, dim=cell.dim).tables
    flops = {model: 6.0 * weights(model, tables) for model in {UNIT, *config.models}}
    which = [
        Turn(f"{model} {arm}", ARMS[arm], dense=flops[model] / flops[UNIT])
        for model in config.models
        for arm in config.arms
    ]
    cluster, ranks = run_cell(cell, which, config.rounds, config.steps)
    found = {turn.label: seen(ranks, turn.label) for turn in which}
    for model in config.models:
        against = {base: found[f"{model} {base}"] for base in BASELINES if base in config.arms}
        for arm in config.arms:
            metrics = metrics_of(found[f"{model} {arm}"], against, samples_of(cell, which, config.steps))
            metrics["flops_per_sample"] = flops[model]
            point: dict[str, Value] = {**point_of(cell, arm), "model": model}
            units = {metric: unit(metric) for metric in metrics} | {"flops_per_sample": "flop"}
            env = environment(cluster, ranks[0].dense_s * flops[model] / flops[UNIT])
            yield Measurement(point, metrics, units, config.rounds * config.steps, cluster.kind, env)


class _NoRows(nn.Module):
    """Tables as shapes alone."""

    def __init__(self, tables: tuple[TableSpec, ...]) -> None:
        super().__init__()
        self.tables = tuple(replace(table, rows=1) for table in tables)

    def forward(self, bags: Bags) -> Tensor:
        raise NotImplementedError("shapes alone: there are no rows")


def weights(model: str, tables: tuple[TableSpec, ...]) -> int:
    """Numbers in the matrices of the dense part over `tables`."""
    with torch.no_grad():
        built = build(model, tables)
        return sum(p.numel() for p in built.parameters() if p.ndim == 2)


def build(model: str, tables: tuple[TableSpec, ...]) -> RankingModel:
    """The model at its published widths."""
    embedding, dim = _NoRows(tables), tables[0].dim
    if model == "dcnv2":
        top = (1024, 1024, 512, 256, 1)
        return DLRMDCNv2(embedding, DENSE, (512, 256, dim), top, cross_layers=3, cross_rank=512)
    if model == "dlrm":
        return DLRM(embedding, DENSE, (512, 256, dim), (512, 256, 1))
    if model == "deepfm":
        return DeepFM(embedding, DENSE)
    return WideDeep(embedding, DENSE)
