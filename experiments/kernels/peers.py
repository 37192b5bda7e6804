"""The embedding kernels of backend `cpu` against their peers: torch, and FBGEMM where it can be imported.

Paper figure: none; the speed of the kernels is the project's own claim.
Command: make bench-peers, in an environment of its own that has FBGEMM. Minutes: about five on two quiet cores.
Expected shape: forward as fast as torch, which is at the memory limit; rows of bytes and every training step faster
than the best peer, the more the more state the optimizer has; many tables in one call fastest at small batches.

Parts: `forward` of a float32 table or one of bytes; `step`, that is forward, backward and optimizer, by optimizer;
`tables`, the 26 tables of DLRM-DCNv2 (MLPerf) in one forward, `most_rows` of each at the most.
Arms: experiments/kernels/_peer_arms.py. They take turns, each on another batch, so that rows come from memory unless
they are popular; before a clock starts, each one's results are held to the truth within a derived bound. Numba and
torch have threads of their own, which by default spin for milliseconds after a call, in the way of the next arm's: on
two cores OMP_WAIT_POLICY=PASSIVE, as the Makefile sets it, takes a forward from 16 ms to 6 ms in both.

Metrics: `ms` median; `ratio` of this arm's time to that of `cpu`, round by round, with the ends of its 90 % interval
(above 1: `cpu` is faster); `gbytes_per_s` of the contract's bytes; `of_random_rows` that over `random_gbytes_per_s`,
the rate at which uniform rows can be read here by a plain loop, measured in the same rounds (above 1 where popular rows
come from the cache). env.fbgemm says which FBGEMM was compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle, product
from typing import Any

import torch
from torch import Tensor

import kernels
from experiments.config import Measurement, grid
from experiments.data.zipf import zipf_ids
from experiments.kernels import _peer_arms as peers
from experiments.kernels._peer_arms import EPS, LR, OURS, STEP, Arm, Batch
from experiments.timing import Samples, interleaved, touch_rows
from kernels._cases import copied
from kernels.pooled_lookup import cases as lookup
from kernels.sparse_update import cases as update
from kernels.unique_ids.cases import cost as unique_cost


@dataclass(frozen=True)
class Config:
    """One table (or 26), a measurement for every batch, hotness and Zipf exponent (0: uniform ids)."""

    part: str = "forward"
    what: str = "float32"
    """The table's numbers, `float32` or `int8`; of a step the optimizer."""
    dim: int = 128
    table_bytes: int = 1 << 30
    most_rows: int = 300_000
    """Of each table of `tables`."""
    batch: tuple[int, ...] = (8192,)
    hotness: tuple[int, ...] = (1, 20, 100)
    most_ids: int = 1 << 20
    """Batches are cut to this many ids."""
    alphas: tuple[float, ...] = (0.0, 1.05)
    pairs: int = 31
    warmup: int = 2
    reuse_bytes: int = 1 << 28
    """Bytes of rows read between two uses of a batch: several times a last-level cache."""
    seed: int = 0


OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
STEPS = {"part": ("step",), "what": OPTIMIZERS, "most_ids": (204_800,), "pairs": (15,)}
TABLES = {"part": ("tables",), "batch": ((64, 2048),)}
GRID = (
    *grid(Config, dim=(128, 64), what=("float32", "int8")),
    *grid(Config, **STEPS, dim=(128, 64)),
    *grid(Config, **TABLES),
)
_LAPTOP = {"table_bytes": (1 << 29,), "hotness": ((20,),), "warmup": (1,)}
LAPTOP = (
    *grid(Config, **_LAPTOP, what=("float32", "int8"), pairs=(11,)),
    *grid(Config, **_LAPTOP | STEPS | {"what": ("sgd", "adagrad", "adam"), "pairs": (5,)}),
    *grid(Config, **_LAPTOP | TABLES, most_rows=(100_000,), pairs=(11,)),
)
_TINY = {"table_bytes": (1 << 15,), "hotness": ((3,),), "most_rows": (50,), "pairs": (5,), "reuse_bytes": (1 << 14,)}
_TINY |= {"alphas": ((1.05,),)}
TINY = (
    *grid(Config, **_TINY, what=("float32", "int8"), batch=((16,),)),
    *grid(Config, **STEPS | _TINY, batch=((16,),)),
    *grid(Config, **TABLES | _TINY | {"batch": ((4,),)}),
)
BUDGET_S = 45.0

DCNV2_ROWS = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10,
              2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36)  # fmt: skip
DCNV2_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Of the 26 tables of MLPerf's DLRM-DCNv2: facebookresearch/dlrm, torchrec_dlrm/README.MD."""
PROBE, PROBE_READS = "rows", 1 << 16
CHECKED = 50_000
"""Ids whose bags, or rows, are held to the truth, about."""


@dataclass(frozen=True)
class Rows:
    """What the arms share. `scale_bias` [rows, 2] only of rows of bytes, `states` only of a step."""

    table: Tensor
    scale_bias: Tensor | None
    states: tuple[Tensor, ...]
    sizes: tuple[int, ...]
    """Rows of each table that is stacked in `table`."""


def measure(config: Config) -> Iterator[Measurement]:
    """Time every arm on every kind of batch: one measurement each.

    Raises:
        ValueError: unknown part, table or optimizer.
        RuntimeError: an arm's result is further from the truth than rounding explains.
    """
    rows = make_rows(config)
    arms = make_arms(config, rows)
    for alpha, size, hotness in product(config.alphas, config.batch, hotness_of(config)):
        size = min(size, max(config.most_ids // sum(hotness), 1))
        batches = make_batches(config, rows, hotness, alpha, size, least=len(arms) + 1)
        check = check_step if config.part == "step" else check_forward
        check(arms, batches[0], rows, config)
        probe = [zipf_ids(len(rows.table), 0.0, PROBE_READS, config.seed + i) for i in range(1, 5)]
        calls = {PROBE: turns(partial(touch_rows, rows.table), probe)} | {
            name: turns(arm.call, batches[(start := i * len(batches) // len(arms)) :] + batches[:start])
            for i, (name, arm) in enumerate(arms.items())
        }
        times = interleaved(calls, config.pairs, config.warmup)
        point = {"part": config.part, "what": config.what, "dim": config.dim, "alpha": alpha, "batch": size}
        point |= {"hotness": sum(hotness), "table_bytes": rows.table.nbytes}
        moved, probed = bytes_of(batches[0], rows, config), PROBE_READS * rows.table[0].nbytes
        for name in arms:
            yield measurement(point | {"arm": name}, times, moved, probed)


def hotness_of(config: Config) -> list[tuple[int, ...]]:
    """Ids a bag of each table, for every kind of batch."""
    return [DCNV2_HOTNESS] if config.part == "tables" else [(hotness,) for hotness in config.hotness]


def make_rows(config: Config) -> Rows:
    """Draw the table and its states from the seed; states begin at 1, where rounding can be bounded."""
    random = torch.Generator().manual_seed(config.seed)
    if config.part == "tables":
        sizes = tuple(min(n, config.most_rows) for n in DCNV2_ROWS)
    else:
        sizes = (config.table_bytes // (config.dim * (1 if config.what == "int8" else 4)),)
    shape = (sum(sizes), config.dim)
    if config.part == "forward" and config.what == "int8":
        table = torch.empty(shape, dtype=torch.uint8).random_(generator=random)
        return Rows(table, torch.empty(len(table), 2).uniform_(-0.1, 0.1, generator=random), (), sizes)
    table = torch.empty(shape).uniform_(-0.1, 0.1, generator=random)
    if config.part != "step":
        return Rows(table, None, (), sizes)
    states = tuple(state.fill_(1) for state in kernels.state_like(table, kernels.Optimizer(config.what)))
    return Rows(table, None, states, sizes)


def make_arms(config: Config, rows: Rows) -> dict[str, Arm]:
    """The arms of a configuration, ours first."""
    if config.part == "step":
        return peers.step_arms(rows.table, rows.states, config.what)
    if config.part == "tables" and config.what == "float32":
        return peers.tables_arms(rows.sizes, rows.table)
    if config.part == "forward" and config.what == "float32":
        return peers.forward_arms(rows.table)
    if config.part == "forward" and rows.scale_bias is not None:
        packed = torch.cat([rows.table, rows.scale_bias.view(torch.uint8)], dim=1)
        return peers.byte_arms(rows.table, rows.scale_bias, packed)
    raise ValueError(
        "part: expected 'forward' with what 'float32' or 'int8', 'step' with an optimizer, or 'tables' with 'float32', "
        f"given {config.part!r} with {config.what!r}"
    )


def make_batches(
    config: Config, rows: Rows, hotness: Sequence[int], alpha: float, size: int, least: int
) -> list[Batch]:
    """So many batches that `reuse_bytes` of rows are read before one comes again, `least` at the least."""
    ids_each = sum(hotness) * size
    count = max(least, -(-config.reuse_bytes // (ids_each * rows.table[0].nbytes)))
    first = [0, *accumulate(rows.sizes)]
    drawn = [zipf_ids(n, alpha, count * size * h, config.seed + i)
             for i, (n, h) in enumerate(zip(rows.sizes, hotness, strict=True))]  # fmt: skip
    offsets = torch.arange(size + 1)
    ends = torch.cat([torch.full((size,), h) for h in hotness]).cumsum(0)
    random = torch.Generator().manual_seed(config.seed + 1)
    grad_out = torch.empty(len(hotness) * size, config.dim).normal_(0, 1e-3, generator=random)
    batches = []
    for b in range(count):
        each = [ids[b * size * h : (b + 1) * size * h] for ids, h in zip(drawn, hotness, strict=True)]
        stacked = torch.cat([ids + row for ids, row in zip(each, first, strict=False)])
        parts = tuple((ids, offsets * h) for ids, h in zip(each, hotness, strict=True))
        batches.append(Batch(stacked, torch.cat([ends.new_zeros(1), ends]), grad_out, torch.cat(each), parts))
    return batches


def turns(call: Callable[[Any], Any], batches: Sequence[Any]) -> Callable[[], Any]:
    """`call` on the next batch each time."""
    following = cycle(batches)
    return lambda: call(next(following))


def check_forward(arms: Mapping[str, Arm], batch: Batch, rows: Rows, config: Config) -> None:
    """Hold a sample of every arm's bags to the contract's bound of a sum of so many terms, in any order."""
    bags, positions, offsets = sampled(batch.offsets)
    touched, inverse = torch.unique(batch.ids[positions], return_inverse=True)
    scale_bias = None if rows.scale_bias is None else rows.scale_bias[touched]
    inputs = {"table": rows.table[touched], "ids": inverse, "offsets": offsets, "weights": None, "pooling": "sum"}
    inputs |= {"scale_bias": scale_bias, "out_dtype": torch.float32}
    truth = kernels.pooled_lookup(**copied(inputs, double=True), backend="torch")
    bound = lookup.bound(inputs, torch.finfo(torch.float32).eps)["out"]
    for name, arm in arms.items():
        hold(f"{name}, {config.what} {config.part}", arm.bags(arm.call(batch))[bags], truth, bound)


def check_step(arms: Mapping[str, Arm], batch: Batch, rows: Rows, config: Config) -> None:
    """Hold a sample of the rows after one step of every arm, each from the same weights, to the update's bound.

    A peer may take its terms from a weight one by one, each time rounding it: |w| eps a term more.
    """
    index = kernels.unique_ids(batch.ids, backend=OURS)
    before = [(whole, whole[index.rows]) for whole in (rows.table, *rows.states)]
    chosen, positions, starts = sampled(index.starts)
    inputs = {
        "table": before[0][1][chosen],
        "states": tuple(state[chosen] for _, state in before[1:]),
        "rows": torch.arange(len(chosen)),
        "grad_out": batch.grad_out,
        "offsets": batch.offsets,
        "weights": None,
        "pooling": "sum",
        "order": index.order[positions],
        "starts": starts,
        "optimizer": kernels.Optimizer(config.what, eps=EPS),
        "lr": LR,
        "step": STEP,
        "grad_scale": 1.0,
    }
    eps = torch.finfo(torch.float32).eps
    true = copied(inputs, double=True)
    kernels.sparse_update(**true, backend="torch")
    bound = update.bound(inputs, eps)["table"] + starts.diff()[:, None] * eps * inputs["table"].abs()
    for name, arm in arms.items():
        arm.call(batch)
        hold(f"{name}, step of {config.what}", rows.table[index.rows[chosen]], true["table"], bound)
        for whole, values in before:
            whole[index.rows] = values


def sampled(starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every so-manieth segment, CHECKED positions in all, about: (segments, their positions, starts among these)."""
    chosen = torch.arange(0, len(starts) - 1, -(-int(starts[-1]) // CHECKED))
    lengths = starts.diff()[chosen]
    own = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return chosen, torch.repeat_interleave(starts[chosen] - own[:-1], lengths) + torch.arange(int(own[-1])), own


def hold(what: str, given: Tensor, truth: Tensor, bound: Tensor) -> None:
    """Raise RuntimeError unless `given` is within `bound` of `truth` everywhere; a NaN is not."""
    wrong = ~((given - truth).abs() <= bound)
    if bool(wrong.any()):
        at = tuple(torch.nonzero(wrong)[0].tolist())
        raise RuntimeError(
            f"{what}: expected {float(truth[at])} within {float(bound[at])} at {at}, given {float(given[at])} "
            f"({int(wrong.sum())} such numbers of {wrong.numel()}): wrong results are not timed"
        )


def bytes_of(batch: Batch, rows: Rows, config: Config) -> float:
    """Bytes that the contracts of the ops count, the same for every arm."""
    forward = {"table": rows.table, "ids": batch.ids, "offsets": batch.offsets, "weights": None, "pooling": "sum"}
    read = lookup.cost(forward | {"scale_bias": rows.scale_bias, "out_dtype": torch.float32}).bytes["memory"]
    if config.part != "step":
        return read
    index = kernels.unique_ids(batch.ids, backend=OURS)
    segments = {"grad_out": batch.grad_out, "order": index.order, "starts": index.starts, "rows": index.rows}
    changed = update.cost(forward | segments | {"states": rows.states}).bytes["memory"]
    return read + changed + unique_cost({"ids": batch.ids}).bytes["memory"]


def measurement(point: dict[str, Any], times: Mapping[str, Samples], moved: float, probed: int) -> Measurement:
    """What the rounds say about `point`'s arm: it moved `moved` bytes, the probe of the same rounds read `probed`."""
    own = times[point["arm"]]
    ratio = own.over(times[OURS])
    return Measurement(
        point=point,
        metrics={
            "ms": own.median * 1e3,
            "ratio": ratio.median,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "gbytes_per_s": moved / own.median / 1e9,
            "of_random_rows": times[PROBE].over(own).median * moved / probed,
            "random_gbytes_per_s": probed / times[PROBE].median / 1e9,
        },
        unit={
            "ms": "ms",
            **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "this / cpu"),
            "gbytes_per_s": "GB/s",
            "of_random_rows": "fraction",
            "random_gbytes_per_s": "GB/s",
        },
        samples=len(own.seconds),
        env={
            "backend": OURS if point["arm"] in (OURS, "collection") else "none",
            "fbgemm": peers.fbgemm_version(),
        },
    )
