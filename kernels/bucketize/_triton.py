"""bucketize on a GPU: a stable counting sort by owner.

`route` finds owner and row of each id and counts a block's ids per owner; a running sum over (owner, block) says where
each block's ids of an owner begin; `scatter` puts them there in order. Owners are few, so a block looks at each in
turn: no atomics, stable.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton_common import Variant


def config() -> dict[str, int]:
    return {"BLOCK": 512, "num_warps": 4}


@triton.jit
def table_of_position(table_starts, position, tables, SEARCH_STEPS: tl.constexpr):
    # The last table that begins at or before `position`: bisection on [T + 1] numbers that stay in the cache.
    low = position * 0
    high = low + tables
    for _ in tl.static_range(SEARCH_STEPS):
        middle = (low + high) // 2
        begins_before = tl.load(table_starts + middle) <= position
        searching = high - low > 1
        low = tl.where(searching & begins_before, middle, low)
        high = tl.where(searching & (begins_before == 0), middle, high)
    return low


@triton.jit
def route_kernel(
    owners,  # [N] int32
    rows,  # [N]
    counts,  # [world, blocks]
    ids,  # [N]
    table_starts,  # [T + 1]
    parts,  # [T]
    span,  # [T]
    first,  # [T]
    owner_of_cell,  # [cells]
    base_of_cell,  # [cells]
    n,
    tables,
    world,
    blocks,
    SEARCH_STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    position = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    exists = position < n
    table = table_of_position(table_starts, position, tables, SEARCH_STEPS)
    id = tl.load(ids + position, mask=exists, other=0).to(tl.int64)
    rows_a_part = tl.load(span + table, mask=exists, other=1)
    by_range = rows_a_part > 0
    divisor = tl.where(by_range, rows_a_part, tl.load(parts + table, mask=exists, other=1))
    quotient = id // divisor
    remainder = id - quotient * divisor
    cell = tl.load(first + table, mask=exists, other=0) + tl.where(by_range, quotient, remainder)
    row = tl.load(base_of_cell + cell, mask=exists, other=0) + tl.where(by_range, remainder, quotient)
    owner = tl.load(owner_of_cell + cell, mask=exists, other=0)
    tl.store(owners + position, owner.to(tl.int32), mask=exists)
    tl.store(rows + position, row, mask=exists)
    for rank in range(world):
        tl.store(counts + rank * blocks + block, tl.sum(((owner == rank) & exists).to(tl.int32), axis=0))


@triton.jit
def scatter_kernel(
    order,  # [N]
    rows_by_owner,  # [N]
    owners,  # [N] int32
    rows,  # [N]
    counts,  # [world, blocks]
    counts_through,  # [world, blocks], running sum of counts, this one included
    n,
    world,
    blocks,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    position = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    exists = position < n
    owner = tl.load(owners + position, mask=exists, other=-1)
    row = tl.load(rows + position, mask=exists, other=0)
    for rank in range(world):
        mine = owner == rank
        cell = rank * blocks + block
        begin = tl.load(counts_through + cell) - tl.load(counts + cell)
        to = begin + tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(order + to, position, mask=mine)
        tl.store(rows_by_owner + to, row, mask=mine)


def bucketize(
    ids: Tensor,
    table_starts: Tensor,
    parts: Tensor,
    span: Tensor,
    first: Tensor,
    owner: Tensor,
    base: Tensor,
    world: int,
) -> tuple[Tensor, Tensor, Tensor]:
    n, tables = len(ids), len(parts)
    order, rows, rows_by_owner = (table_starts.new_empty(n) for _ in range(3))
    launch = config()
    blocks = triton.cdiv(n, launch["BLOCK"])
    counts = table_starts.new_empty(world, blocks)
    if n:
        owners = table_starts.new_empty(n, dtype=torch.int32)
        with torch.cuda.device_of(ids):
            route_kernel[(blocks,)](
                owners,
                rows,
                counts,
                ids,
                table_starts,
                parts,
                span,
                first,
                owner,
                base,
                n,
                tables,
                world,
                blocks,
                SEARCH_STEPS=search_steps(tables),
                **launch,
            )
            through = counts.view(-1).cumsum(0)
            scatter_kernel[(blocks,)](order, rows_by_owner, owners, rows, counts, through, n, world, blocks, **launch)
    return order, counts.sum(1), rows_by_owner


def search_steps(tables: int) -> int:
    return (tables - 1).bit_length()


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles; the same for any width of warp."""
    launch = config()
    block = {"BLOCK": launch["BLOCK"]}
    route = {
        "owners": "*i32",
        "rows": "*i64",
        "counts": "*i64",
        "ids": "*i64",
        "table_starts": "*i64",
        "parts": "*i64",
        "span": "*i64",
        "first": "*i64",
        "owner_of_cell": "*i64",
        "base_of_cell": "*i64",
        "n": "i32",
        "tables": "i32",
        "world": "i32",
        "blocks": "i32",
    }
    scatter = {
        "order": "*i64",
        "rows_by_owner": "*i64",
        "owners": "*i32",
        "rows": "*i64",
        "counts": "*i64",
        "counts_through": "*i64",
        "n": "i32",
        "world": "i32",
        "blocks": "i32",
    }
    steps = {"SEARCH_STEPS": search_steps(26)}
    return [
        Variant("bucketize-route", route_kernel, route, {**block, **steps}, (), 0, launch["num_warps"]),
        Variant("bucketize-scatter", scatter_kernel, scatter, block, (), 0, launch["num_warps"]),
    ]
