"""EMBark's four workloads and the larger T7, as published: how many tables, of how many rows, ids a bag and columns.

Source: DLRM-DCNv2 from samples/dlrm/train.py, the others from benchmarks/embedding_collection (benchmark.sh and
dataset/*.py) of NVIDIA-Merlin/HugeCTR at 2f2016f. `t180` has 177 tables there, whatever its name. Ids are i.i.d. Zipf
of exponent 1.1 over all rows of a table, each rank at a random id; bags have exactly `hotness` ids. The scripts set no
seed: here every id is a function of (seed, table, step, position).

`scale` shrinks rows and batch; hotness, widths and the law stay, so the shape of the problem does. A scaled table keeps
two rows or more.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from comm.planner.workload import DenseLoad, TableLoad, Workload
from experiments.data.marginals import expected_distinct, marginal
from experiments.embark._generator import ALPHA, hot_id
from kernels import Optimizer, TableSpec

BATCH = 65_536
"""Samples of a global batch: the generator's part size, and MLPerf's reference; the paper's is not known."""
BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)
DENSE_FEATURES, CROSS_LAYERS, CROSS_RANK = 13, 3, 512
TRAFFIC = 36
"""Bytes of memory traffic an interaction's column and sample: assumed (reads and writes of three cross layers in fp16,
forward and backward).
"""


@dataclass(frozen=True)
class Model:
    """`groups` of (tables, rows, ids a bag, columns), trained with `optimizer`; `key_bytes` of an id in its files."""

    name: str
    groups: tuple[tuple[int, int, int, int], ...]
    optimizer: str = "sgd"
    key_bytes: int = 4

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(rows, ids a bag, columns) of every table, in order."""
        return tuple((rows, hotness, dim) for count, rows, hotness, dim in self.groups for _ in range(count))

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """Every table at full size."""
        return self.scaled(1.0)

    @property
    def hotness(self) -> tuple[int, ...]:
        """Ids a bag of every table."""
        return tuple(hotness for _, hotness, _ in self.shapes)

    def scaled(self, scale: float) -> tuple[TableSpec, ...]:
        """Every table with `scale` of its rows, float32."""
        if not 0 < scale <= 1:
            raise ValueError(f"scale: expected 0 < scale <= 1, given {scale}")
        return tuple(
            TableSpec(f"{self.name}.{i}", rows if scale == 1 else max(2, round(rows * scale)), dim)
            for i, (rows, _, dim) in enumerate(self.shapes)
        )

    @property
    def dense(self) -> DenseLoad:
        """Bottom MLP, three low-rank cross layers over everything, top MLP; gradients travel in two bytes."""
        bottom = _mlp((DENSE_FEATURES, *BOTTOM))
        width = sum(dim for _, _, dim in self.shapes) + BOTTOM[-1]
        weights = bottom + CROSS_LAYERS * 2 * width * CROSS_RANK + _mlp((width, *TOP))
        biases = sum(BOTTOM) + sum(TOP) + CROSS_LAYERS * width
        return DenseLoad(weights, bottom / weights, TRAFFIC * width, weights + biases, gradient_bytes=2)


def _mlp(widths: tuple[int, ...]) -> int:
    return sum(a * b for a, b in pairwise(widths))


_CRITEO_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976, 14,
    40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
_CRITEO_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)

MODELS = {
    model.name: model
    for model in (
        Model(
            "dcnv2",
            tuple((1, rows, hotness, 128) for rows, hotness in zip(_CRITEO_ROWS, _CRITEO_HOTNESS, strict=True)),
            "adagrad",
        ),
        Model(
            "t180",
            (
                (5, 10_000, 100, 128), (5, 4_000_000, 50, 64), (5, 4_000_000, 30, 64), (5, 50_000_000, 50, 32),
                (20, 1_000, 50, 128), (30, 10_000, 30, 128), (10, 5_000_000, 20, 256), (20, 4_000_000, 20, 128),
                (10, 10, 100, 128), (10, 1_000, 10, 64), (10, 10_000, 100, 128), (5, 100_000, 100, 64),
                (40, 4_000_000, 200, 64), (1, 50_000_000, 100, 128), (1, 500_000_000, 100, 32),
            ),
        ),
        Model(
            "t200",
            (
                (10, 100, 1, 128), (10, 1_000, 1, 128), (10, 1_000, 5, 128), (10, 10_000, 20, 128),
                (20, 10_000, 100, 128), (10, 10_000, 1, 128), (10, 100_000, 1, 128), (10, 1_000_000, 1, 128),
                (10, 2_000_000, 1, 128), (10, 2_000_000, 1, 128), (10, 4_000_000, 1, 128), (20, 4_000_000, 1, 128),
                (20, 2_000_000, 10, 64), (10, 4_000_000, 20, 128), (10, 4_000_000, 30, 128), (10, 4_000_000, 50, 128),
                (10, 50_000_000, 100, 128),
            ),
        ),
        Model(
            "t510",
            (
                (100, 1_000, 1, 128), (150, 100_000, 1, 128), (20, 1_000_000, 1, 128), (50, 2_000_000, 1, 128),
                (150, 4_000_000, 1, 128), (20, 4_000_000, 10, 128), (20, 4_000_000, 100, 128),
            ),
        ),
        Model(
            "t7",
            (
                (1, 10_000_000, 80, 256), (1, 400_000_000, 20, 64), (1, 1_000_000_000, 20, 128),
                (1, 5_000_000_000, 40, 32), (1, 1_000_000_000, 1, 128), (1, 10_000_000, 1, 64),
                (1, 10_000_000, 1, 128),
            ),
            key_bytes=8,
        ),
    )
}  # fmt: skip
"""By name, in lower case. T7 is in the scripts, not in the paper's list."""


def model_of(name: str) -> Model:
    """The model `name`; ValueError that lists the choices if there is none."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    return MODELS[name]


def workload(name: str, scale: float = 1.0, batch: int | None = None, seed: int = 0) -> Workload:
    """What the planner is told of model `name`: `batch` samples (default: BATCH * scale), distinct ids as expected.

    `seed` is that of the generator: it decides which id of a table is the most frequent, so which row part is hot.
    """
    model = model_of(name)
    specs = model.scaled(scale)
    loads = tuple(
        _load(spec, hotness, hot_id(spec.rows, seed, i))
        for i, (spec, hotness) in enumerate(zip(specs, model.hotness, strict=True))
    )
    return Workload(model.name, loads, batch or max(1, round(BATCH * scale)), Optimizer(model.optimizer), model.dense)


def _load(spec: TableSpec, hotness: float, most: int) -> TableLoad:
    law = marginal(spec.rows, ALPHA)
    return TableLoad(spec, hotness, partial(_distinct, spec.rows), most, float(law.p[0]))


_KNOWN: dict[tuple[int, float], float] = {}


def _distinct(rows: int, ids: float) -> float:
    """Expected distinct ids; tables of equal rows share the sum over ranks."""
    if (rows, ids) not in _KNOWN:
        _KNOWN[rows, ids] = expected_distinct(marginal(rows, ALPHA), round(ids))
    return _KNOWN[rows, ids]


def unique_ratio(rows: int, ids: float) -> float:
    """Expected distinct ids over `ids` of a table of `rows`: past 65,536 ranks by an integral."""
    return _distinct(rows, ids) / ids
