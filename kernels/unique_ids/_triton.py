"""unique_ids on a GPU: the library's stable radix sort (`torch.sort`) gives the permutation, two kernels do the rest.

`count` flags the first id of each run and counts the flags of a block; `scatter` numbers the runs and writes the
result. Between them the number of distinct ids comes to the host, once: it is the size of the result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import Variant


def config() -> dict[str, int]:
    return {"BLOCK": 512, "num_warps": 4}


@triton.jit
def begins_run(keys, at, n):
    key = tl.load(keys + at, mask=at < n, other=-1)
    before = tl.load(keys + at - 1, mask=(at > 0) & (at < n), other=-1)  # ids are >= 0: the first always begins one
    return key, (key != before) & (at < n)


@triton.jit
def count_kernel(
    runs,  # [blocks]
    keys,  # [N], sorted
    n,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    _, begins = begins_run(keys, at, n)
    tl.store(runs + tl.program_id(0), tl.sum(begins.to(tl.int64), axis=0))


@triton.jit
def scatter_kernel(
    rows,  # [U]
    inverse,  # [N]
    starts,  # [U + 1]
    keys,  # [N], sorted
    order,  # [N]
    runs_through,  # [blocks], runs in this block and those before it
    runs,  # [blocks]
    n,
    distinct,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    key, begins = begins_run(keys, at, n)
    runs_before = tl.load(runs_through + block) - tl.load(runs + block)
    run = runs_before + tl.cumsum(begins.to(tl.int32), axis=0) - 1  # [BLOCK], the run of each sorted position
    tl.store(rows + run, key, mask=begins)
    tl.store(starts + run, at, mask=begins)
    tl.store(inverse + tl.load(order + at, mask=at < n, other=0), run, mask=at < n)
    if block == 0:
        tl.store(starts + distinct, n)


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = len(ids)
    launch = config()
    keys, order = torch.sort(ids, stable=True)
    blocks = max(1, triton.cdiv(n, launch["BLOCK"]))  # one block even without ids: it closes `starts`
    runs = order.new_empty(blocks)
    inverse = order.new_empty(n)
    with torch.cuda.device_of(ids):
        count_kernel[(blocks,)](runs, keys, n, **launch)
        runs_through = runs.cumsum(0)
        distinct = int(runs_through[-1])
        rows, starts = ids.new_empty(distinct), order.new_empty(distinct + 1)
        scatter_kernel[(blocks,)](rows, inverse, starts, keys, order, runs_through, runs, n, distinct, **launch)
    return rows, inverse, order, starts


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles; the same for any width of warp."""
    launch = config()
    block = {"BLOCK": launch["BLOCK"]}
    scatter = {
        "rows": "*i32",
        "inverse": "*i64",
        "starts": "*i64",
        "keys": "*i32",
        "order": "*i64",
        "runs_through": "*i64",
        "runs": "*i64",
        "n": "i32",
        "distinct": "i32",
    }
    wide = {**scatter, "rows": "*i64", "keys": "*i64"}
    count = {"runs": "*i64", "keys": "*i64", "n": "i32"}
    return [
        Variant("unique_ids-count-i64", count_kernel, count, block, (), 0, launch["num_warps"]),
        Variant("unique_ids-scatter-i32", scatter_kernel, scatter, block, (), 0, launch["num_warps"]),
        Variant("unique_ids-scatter-i64", scatter_kernel, wide, block, (), 0, launch["num_warps"]),
    ]
