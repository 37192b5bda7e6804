"""Lookup and fused backward + update of whole table sets on one device, as large as its memory lets them be.

Paper figure: none; the speed of the kernels is the project's own claim.
Command: make gpu on a machine with a CUDA device; python -m experiments run kernels/device for a small form anywhere.
Minutes: on a GPU, as many as `make gpu` is given. Expected shape: uniform rows of 512 B read at 0.9 of the rate of a
copy; with Zipf ids above it, since popular rows come from the cache; the update behind, for its sort.

Sets: `single`, one table of `dim` columns; `dcnv2`, `t200`, `t510`, the published ones of experiments/embark/workloads,
all rows times one `scale` so that tables and optimizer states take `memory_bytes` (0: `share` of the device's memory).
Tables of one width are stacked and served by one call. Batches take turns, so that a row comes from memory unless it is
popular. Arms: each backend of `kernels` that runs on the device, and `torch`: F.embedding_bag, a call a table, for the
lookup alone. Before a clock starts, a sample of every arm's results is held to the truth within a derived bound.

Metrics: `ms` median; `gbytes_per_s` of the contracts' bytes; `of_copy` that over the rate of a large copy on the
device in the same run (read + written bytes); `ratio` torch's time over this arm's, with the ends of its 90 % interval
(lookup only); `scale` of the rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from experiments.config import Measurement, grid
from experiments.data.zipf import zipf_ids
from experiments.embark.workloads import model_of
from experiments.kernels.peers import hold, sampled
from experiments.timing import Samples, copy_bandwidth, interleaved_parts
from kernels._cases import copied
from kernels.pooled_lookup import cases as lookup_cases
from kernels.sparse_update import cases as update_cases
from kernels.sparse_update.optimizer import STATES
from kernels.unique_ids.cases import cost as unique_cost

SINGLE, TORCH = "single", "torch"
DTYPES = {"float32": torch.float32, "float16": torch.float16}
LR, EPS, STEP = 0.01, 1e-8, 1
PHASES = ("lookup", "update")


@dataclass(frozen=True)
class Config:
    """One set of tables; `dim` and `hotness` are those of `single`. `alpha`: Zipf exponent of ids, 0 for uniform."""

    tables: str = SINGLE
    dtype: str = "float32"
    dim: int = 128
    hotness: int = 20
    alpha: float = 0.0
    batch: int = 65_536
    memory_bytes: int = 1 << 28
    share: float = 0.6
    optimizer: str = "rowwise_adagrad"
    batches: int = 4
    pairs: int = 15
    warmup: int = 2
    seed: int = 0


_HERE = {"batch": (1024,), "pairs": (5,)}
GRID = (
    *grid(Config, **_HERE, dtype=("float32", "float16"), alpha=(0.0, 1.05)),
    *grid(Config, **_HERE | {"batch": (64,)}, tables=("dcnv2", "t200", "t510"), alpha=(1.05,)),
)
LAPTOP = grid(Config, **_HERE | {"batch": (64,)}, memory_bytes=(1 << 26,), tables=("dcnv2",), alpha=(1.05,))
TINY = (
    *grid(Config, memory_bytes=(1 << 14,), batch=(16,), hotness=(3,), dtype=("float32", "float16"), pairs=(5,)),
    *grid(Config, tables=("t200",), memory_bytes=(1 << 21,), batch=(2,), alpha=(1.05,), batches=(2,), pairs=(5,)),
)
BUDGET_S = 6.0
_CARD = {"memory_bytes": (8 << 30,)}
_SETS = {"memory_bytes": (0,), "batches": (2,)}
GPU = (
    *grid(Config, **_CARD, alpha=(0.0, 1.05)),
    *grid(Config, **_SETS, tables=("dcnv2",), alpha=(1.05, 0.0)),
    *grid(Config, **_CARD, dtype=("float16",), alpha=(0.0, 1.05)),
    *grid(Config, **_SETS, tables=("t200",), batch=(4096,), alpha=(1.05,)),
    *grid(Config, **_SETS, tables=("t510",), batch=(8192,), alpha=(1.05,)),
    *grid(Config, **_CARD, dim=(64, 256), alpha=(0.0, 1.05)),
    *grid(Config, **_CARD, hotness=(1, 100), alpha=(0.0, 1.05)),
    *grid(Config, **_CARD, dim=(64, 256), hotness=(1, 100), alpha=(0.0, 1.05)),
    *grid(Config, **_CARD, dtype=("float16",), dim=(64, 256), alpha=(0.0, 1.05)),
    *grid(Config, **_SETS, dtype=("float16",), tables=("dcnv2",), alpha=(1.05,)),
)
"""What `make gpu` times, the most telling first. `batches` times a batch's rows is many times the largest cache of a
card, but for bags of one id, whose four batches of rows are 2.6 times the 50 MB of an H200."""


@dataclass(frozen=True)
class Stack:
    """Tables of one width, one below the other, with their states; `sizes` rows and `hotness` ids a bag of each."""

    table: Tensor
    states: tuple[Tensor, ...]
    sizes: tuple[int, ...]
    hotness: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Of one stack: `ids` [N] its rows, `offsets` [bags + 1], `grad_out` [bags, dim]; (ids, offsets) of each table."""

    ids: Tensor
    offsets: Tensor
    grad_out: Tensor
    parts: tuple[tuple[Tensor, Tensor], ...]


Arm = Mapping[str, Callable[[Sequence[Batch]], object]]
"""By phase; a call works on one batch of every stack."""


def measure(config: Config) -> Iterator[Measurement]:
    """Time every arm on one set of tables: one measurement for each phase and arm.

    Raises:
        ValueError: unknown set, dtype or optimizer.
        RuntimeError: an arm's result is further from the truth than rounding explains.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stacks, scale = make_stacks(config, device)
    batches = [[make_batch(stack, config, turn) for stack in stacks] for turn in range(config.batches)]
    arms = make_arms(stacks, config, device)
    for name, arm in arms.items():
        check(name, arm, stacks, batches[0], config)
    variants = {}
    for name, arm in arms.items():
        turns = {phase: cycle(batches) for phase in arm}
        variants[name] = {phase: _next(call, turns[phase]) for phase, call in arm.items()}
    copied_per_s = copy_bandwidth(device.type, 1 << 30 if device.type == "cuda" else 1 << 26)
    times = interleaved_parts(variants, config.pairs, config.warmup, device.type)
    pairs = list(zip(stacks, batches[0], strict=True))
    moved = {phase: sum(bytes_of(phase, *pair) for pair in pairs) for phase in PHASES}
    for phase in PHASES:
        by_arm = {name: parts[phase] for name, parts in times.items() if phase in parts}
        for name in by_arm:
            point = {"phase": phase, "arm": name, "device": device.type, "ids": sum(len(b.ids) for b in batches[0])}
            yield measurement(point, by_arm, moved[phase], copied_per_s, scale)


def shapes_of(config: Config, memory_bytes: int) -> tuple[list[tuple[int, int, int]], float]:
    """(rows, ids a bag, columns) of every table, and the factor on the published rows (1 for `single`).

    Tables and states take `memory_bytes` at the most; a table keeps two rows.

    Raises ValueError where that is too little.
    """
    width = DTYPES[config.dtype].itemsize

    def bytes_a_row(dim: int) -> int:
        return dim * width + sum(4 * (dim if kind == "cell" else 1) for kind in STATES[config.optimizer])

    if config.tables == SINGLE:
        rows = memory_bytes // bytes_a_row(config.dim)
        if rows < 2:
            raise ValueError(f"memory_bytes: expected two rows of {bytes_a_row(config.dim)} B, given {memory_bytes}")
        return [(rows, config.hotness, config.dim)], 1.0
    shapes = model_of(config.tables).shapes
    least = sum(2 * bytes_a_row(dim) for _, _, dim in shapes)
    whole = sum(rows * bytes_a_row(dim) for rows, _, dim in shapes)
    if memory_bytes < least:
        raise ValueError(
            f"memory_bytes: expected {least} for two rows a table of {config.tables}, given {memory_bytes}"
        )
    scale = min(1.0, (memory_bytes - least) / whole)  # rows are at most 2 + scale * rows
    return [(rows if scale == 1 else 2 + int(rows * scale), hotness, dim) for rows, hotness, dim in shapes], scale


def make_stacks(config: Config, device: torch.device) -> tuple[list[Stack], float]:
    """The tables drawn from the seed, and the factor on their published rows; states begin at 1, as in kernels/step."""
    if config.dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, given {config.dtype!r}")
    memory = config.memory_bytes
    if not memory:
        if device.type != "cuda":
            raise ValueError("memory_bytes: expected bytes on a CPU, given 0 (a share of a CUDA device's memory)")
        memory = int(torch.cuda.get_device_properties(device).total_memory * config.share)
    shapes, scale = shapes_of(config, memory)
    random = torch.Generator(device).manual_seed(config.seed)
    optimizer, stacks = kernels.Optimizer(config.optimizer), []
    for dim in dict.fromkeys(dim for _, _, dim in shapes):
        sizes, hotness = zip(*((rows, h) for rows, h, d in shapes if d == dim), strict=True)
        table = torch.empty(sum(sizes), dim, dtype=DTYPES[config.dtype], device=device)
        table.uniform_(-0.1, 0.1, generator=random)
        states = tuple(state.fill_(1) for state in kernels.state_like(table, optimizer))
        stacks.append(Stack(table, states, sizes, hotness))
    return stacks, scale


def make_batch(stack: Stack, config: Config, turn: int) -> Batch:
    """Batch number `turn` of a stack; bags lie table by table."""
    device, size = stack.table.device, config.batch
    drawn = [
        zipf_ids(rows, config.alpha, size * hotness, config.seed + number, start=turn * size * hotness)
        for number, (rows, hotness) in enumerate(zip(stack.sizes, stack.hotness, strict=True))
    ]
    stacked = torch.cat([ids + first for ids, first in zip(drawn, accumulate((0, *stack.sizes[:-1])), strict=True)])
    lengths = torch.tensor(list(chain.from_iterable([h] * size for h in stack.hotness)))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    random = torch.Generator(device).manual_seed(config.seed + turn)
    grad_out = torch.empty(len(lengths), stack.table.shape[1], device=device).normal_(0, 1e-3, generator=random)
    own = torch.arange(size + 1)
    parts = tuple((ids.to(device), (own * h).to(device)) for ids, h in zip(drawn, stack.hotness, strict=True))
    return Batch(stacked.to(device), offsets.to(device), grad_out, parts)


def make_arms(stacks: Sequence[Stack], config: Config, device: torch.device) -> dict[str, Arm]:
    """Every backend that runs for real on the device, but the truth; then torch's lookup."""
    optimizer = kernels.Optimizer(config.optimizer, eps=EPS)

    def ours(backend: str) -> Arm:
        def lookup(batch: Sequence[Batch]) -> list[Tensor]:
            return [
                kernels.pooled_lookup(s.table, b.ids, b.offsets, backend=backend, out_dtype=torch.float32)
                for s, b in zip(stacks, batch, strict=True)
            ]

        def update(batch: Sequence[Batch]) -> None:
            for s, b in zip(stacks, batch, strict=True):
                index = kernels.unique_ids(b.ids, backend=backend)
                segments = (b.grad_out, b.offsets, None, "sum", index.order, index.starts)
                kernels.sparse_update(s.table, s.states, index.rows, *segments, optimizer, LR, STEP, backend=backend)

        return {"lookup": lookup, "update": update}

    views = [stack.table.split(list(stack.sizes)) for stack in stacks]

    def torch_lookup(batch: Sequence[Batch]) -> list[list[Tensor]]:
        return [
            [
                F.embedding_bag(ids, table, own[:-1], mode="sum")
                for table, (ids, own) in zip(tables, b.parts, strict=True)
            ]
            for tables, b in zip(views, batch, strict=True)
        ]

    backends = ("triton", "numba") if device.type == "cuda" else ("cpu",)
    return {name: ours(name) for name in backends} | {TORCH: {"lookup": torch_lookup}}


def check(name: str, arm: Arm, stacks: Sequence[Stack], batch: Sequence[Batch], config: Config) -> None:
    """Hold a sample of an arm's bags, and of the rows after one update, to the contracts' bounds; undo the update."""
    eps = torch.finfo(torch.float32).eps
    outs = arm["lookup"](batch)
    for stack, b, out in zip(stacks, batch, outs, strict=True):  # pyright: ignore[reportArgumentType]
        out = torch.cat(out) if isinstance(out, list) else out
        bags, positions, offsets = sampled(b.offsets.cpu())
        touched, inverse = torch.unique(b.ids.cpu()[positions], return_inverse=True)
        rows = stack.table[touched.to(stack.table.device)].cpu()
        inputs = {"table": rows, "ids": inverse, "offsets": offsets, "weights": None, "pooling": "sum"}
        inputs |= {"scale_bias": None, "out_dtype": out.dtype}
        truth = kernels.pooled_lookup(**copied(inputs, double=True), backend="torch")
        bound = lookup_cases.bound(inputs, eps)["out"]
        hold(f"{name}, lookup of {config.tables}", out[bags.to(out.device)].cpu(), truth, bound)
    if "update" in arm:
        _check_update(name, arm, stacks, batch, config, eps)


def _check_update(
    name: str, arm: Arm, stacks: Sequence[Stack], batch: Sequence[Batch], config: Config, eps: float
) -> None:
    expected = []
    for stack, b in zip(stacks, batch, strict=True):
        index = kernels.unique_ids(b.ids, backend="torch")
        before = [(whole, index.rows, whole[index.rows]) for whole in (stack.table, *stack.states)]
        chosen, positions, starts = sampled(index.starts.cpu())
        at = chosen.to(index.rows.device)
        inputs = {
            "table": before[0][2][at].cpu(),
            "states": tuple(values[at].cpu() for _, _, values in before[1:]),
            "rows": torch.arange(len(chosen)),
            "grad_out": b.grad_out.cpu(),
            "offsets": b.offsets.cpu(),
            "weights": None,
            "pooling": "sum",
            "order": index.order.cpu()[positions],
            "starts": starts,
            "optimizer": kernels.Optimizer(config.optimizer, eps=EPS),
            "lr": LR,
            "step": STEP,
            "grad_scale": 1.0,
        }
        true = copied(inputs, double=True)
        kernels.sparse_update(**true, backend="torch")
        expected.append((before, index.rows[at], true["table"], update_cases.bound(inputs, eps)["table"]))
    arm["update"](batch)
    for (before, rows, truth, bound), stack in zip(expected, stacks, strict=True):
        hold(f"{name}, update of {config.tables}", stack.table[rows].cpu(), truth, bound)
        for whole, touched, values in before:
            whole[touched] = values


def bytes_of(phase: str, stack: Stack, batch: Batch) -> float:
    """Bytes that the contracts of the ops count, the same for every arm."""
    shared = {"table": stack.table, "ids": batch.ids, "offsets": batch.offsets, "weights": None, "pooling": "sum"}
    if phase == "lookup":
        read = shared | {"scale_bias": None, "out_dtype": torch.float32}
        return lookup_cases.cost(read).bytes["memory"]
    index = kernels.unique_ids(batch.ids, backend="torch")
    segments = {"grad_out": batch.grad_out, "order": index.order, "starts": index.starts, "rows": index.rows}
    changed = update_cases.cost(shared | segments | {"states": stack.states}).bytes["memory"]
    return changed + unique_cost({"ids": batch.ids}).bytes["memory"]


def measurement(
    point: dict[str, str | int | float | bool],
    times: Mapping[str, Samples],
    moved: float,
    copied_per_s: float,
    scale: float,
) -> Measurement:
    """What the rounds say about `point`'s arm, which moved `moved` bytes."""
    own = times[str(point["arm"])]
    rate = moved / own.median
    metrics = {"ms": own.median * 1e3, "gbytes_per_s": rate / 1e9, "of_copy": rate / copied_per_s, "scale": scale}
    unit = {"ms": "ms", "gbytes_per_s": "GB/s", "of_copy": "fraction", "scale": "rows / published rows"}
    if TORCH in times:
        ratio = times[TORCH].over(own)
        metrics |= {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
        unit |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "torch / this")
    backend = point["arm"] if point["arm"] in kernels.BACKENDS and point["arm"] != TORCH else "none"
    return Measurement(point, metrics, unit, len(own.seconds), env={"backend": backend})


def _next(call: Callable[[Sequence[Batch]], object], turns: Iterator[Sequence[Batch]]) -> Callable[[], object]:
    return lambda: call(next(turns))
