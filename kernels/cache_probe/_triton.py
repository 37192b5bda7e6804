"""cache_probe on a GPU: a program holds the WAYS of ITEMS sets, [ITEMS, WAYS].

To admit, rows are sorted by set with the library's stable sort. Every row looks at its set, and the first of each set
does the work for all: one worker a set, so no atomics and no race. The state of a set is read once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from .._triton_common import INTERPRETED_ITEMS, Variant
from ._torch import set_of as set_of_rows

LOWEST, HIGHEST = tl.constexpr(-(2**63)), tl.constexpr(2**63 - 1)


def config(ways: int) -> dict[str, int]:
    """Launch parameters: a warp holds 128 lines, four a lane; more ways take more warps."""
    padded = 1 << (ways - 1).bit_length()
    items = INTERPRETED_ITEMS if knobs.runtime.interpret else max(1, 128 // padded)
    return {"ITEMS": items, "WAYS": padded, "num_warps": min(8, max(1, padded // 128))}


@triton.jit
def set_of(row, sets):
    x = (row ^ (row >> 32)) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * (0x846CA68B - 0x100000000)) & 0xFFFFFFFF  # minus 2^32: the product stays within int64
    x ^= x >> 16
    return (x * sets) >> 32


@triton.jit
def probe_kernel(
    slots,  # [U]
    rows,  # [U]
    tags,  # [sets, ways]
    stamps,  # [sets, ways], changed in place
    step,  # [U], or [1] if not STEPS
    n,
    sets,
    ways,
    LRU: tl.constexpr,
    LFU: tl.constexpr,
    STEPS: tl.constexpr,
    ITEMS: tl.constexpr,
    WAYS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    way = tl.arange(0, WAYS)  # [WAYS]
    exists = item < n
    row = tl.load(rows + item, mask=exists, other=0).to(tl.int64)
    line = (set_of(row, sets) * ways)[:, None] + way[None, :]  # [ITEMS, WAYS], slots
    in_set = exists[:, None] & (way < ways)[None, :]
    held = tl.load(tags + line, mask=in_set, other=-1) == row[:, None]  # rows are >= 0
    tl.store(slots + item, tl.max(tl.where(held, line, -1), axis=1), mask=exists)
    if LRU:
        now = tl.load(step + item * STEPS, mask=exists, other=0)
        tl.store(stamps + line, now[:, None] + tl.zeros_like(line), mask=held)
    if LFU:
        tl.store(stamps + line, tl.load(stamps + line, mask=held, other=0) + 1, mask=held)


@triton.jit
def admit_kernel(
    slots,  # [M]
    evicted,  # [M]
    rows,  # [M]
    order,  # [M], by set, then row
    set_sorted,  # [M], the set of rows[order]
    through,  # [M], how many of rows[order] are in this set or an earlier one
    tags,  # [sets, ways], changed in place
    stamps,  # [sets, ways], changed in place
    locks,  # [sets, ways]
    step,  # [M], or [1] if not STEPS
    n,
    ways,
    LRU: tl.constexpr,
    STEPS: tl.constexpr,
    ITEMS: tl.constexpr,
    WAYS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    way = tl.arange(0, WAYS)  # [WAYS]
    exists = item < n
    of = tl.load(set_sorted + item, mask=exists, other=-1)
    before = tl.load(set_sorted + item - 1, mask=exists & (item > 0), other=-1)
    works = exists & (of != before)  # the first of its set
    length = tl.where(works, tl.load(through + item, mask=exists, other=0) - item, 0)
    line = (of * ways)[:, None] + way[None, :]  # [ITEMS, WAYS], slots
    in_set = works[:, None] & (way < ways)[None, :]
    tag = tl.load(tags + line, mask=in_set, other=0)
    stamp = tl.load(stamps + line, mask=in_set, other=0)
    key = tl.where(tag < 0, LOWEST, stamp)  # empty lines first
    free = in_set & (tl.load(locks + line, mask=in_set, other=1) == 0)  # neither locked nor given out
    for turn in range(tl.max(length, axis=0)):
        active = turn < length  # [ITEMS]
        at = tl.load(order + item + turn, mask=active, other=0)
        lowest = tl.min(tl.where(free, key, HIGHEST), axis=1)
        best = tl.min(tl.where(free & (key == lowest[:, None]), line, HIGHEST), axis=1)
        found = active & (best != HIGHEST)
        victim = (line == best[:, None]) & found[:, None]  # [ITEMS, WAYS]
        tl.store(slots + at, tl.where(found, best, -1), mask=active)
        tl.store(evicted + at, tl.max(tl.where(victim, tag, -1), axis=1), mask=active)
        row = tl.load(rows + at, mask=active, other=0).to(tl.int64)
        tl.store(tags + best, row, mask=found)
        now = tl.full([ITEMS], 1, tl.int64)
        if LRU:
            now = tl.load(step + at * STEPS, mask=active, other=0)
        tl.store(stamps + best, now, mask=found)
        free = free & (victim == 0)


@triton.jit
def lock_kernel(locks, slots, n, by, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    slot = tl.load(slots + item, mask=item < n, other=-1)
    tl.store(locks + slot, tl.load(locks + slot, mask=slot >= 0, other=0) + by, mask=slot >= 0)


def cache_probe(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor) -> Tensor:
    slots = tags.new_empty(len(rows))
    sets, ways = tags.shape
    launch = config(ways)
    if len(rows):
        with torch.cuda.device_of(tags):
            probe_kernel[(triton.cdiv(len(rows), launch["ITEMS"]),)](
                slots,
                rows,
                tags,
                stamps,
                step,
                len(rows),
                sets,
                ways,
                LRU=policy == "lru",
                LFU=policy == "lfu",
                STEPS=int(len(step) > 1),
                **launch,
            )
    return slots


def cache_admit(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor
) -> tuple[Tensor, Tensor]:
    slots, evicted = tags.new_empty(len(rows)), tags.new_empty(len(rows))
    sets, ways = tags.shape
    launch = config(ways)
    if len(rows):
        ascending = torch.argsort(rows)
        set_sorted, by_set = torch.sort(set_of_rows(rows, sets)[ascending], stable=True)
        with torch.cuda.device_of(tags):
            admit_kernel[(triton.cdiv(len(rows), launch["ITEMS"]),)](
                slots,
                evicted,
                rows,
                ascending[by_set],
                set_sorted,
                torch.searchsorted(set_sorted, set_sorted, right=True),
                tags,
                stamps,
                locks,
                step,
                len(rows),
                ways,
                LRU=policy == "lru",
                STEPS=int(len(step) > 1),
                **launch,
            )
    return slots, evicted


def cache_lock(slots: Tensor, locks: Tensor, by: int) -> None:
    launch = {"BLOCK": 512, "num_warps": 4}
    if len(slots):
        with torch.cuda.device_of(locks):
            lock_kernel[(triton.cdiv(len(slots), launch["BLOCK"]),)](locks, slots, len(slots), by, **launch)


def variants(lanes: int) -> list[Variant]:
    """What the ahead-of-time check compiles; the same for any width of warp."""
    launch = config(ways=32)
    warps = launch.pop("num_warps")
    state = {"tags": "*i64", "stamps": "*i64", "step": "*i64", "n": "i32", "ways": "i32"}
    probe = {"slots": "*i64", "rows": "*i64", "sets": "i32", **state}
    index = dict.fromkeys(("slots", "evicted", "rows", "order", "set_sorted", "through"), "*i64")
    lru, lfu = {"LRU": True, "STEPS": 0}, {"LRU": False, "STEPS": 0}
    admit = {**index, "locks": "*i32", **state}
    lock = {"locks": "*i32", "slots": "*i64", "n": "i32", "by": "i32"}
    return [
        Variant("cache_probe-probe-lru", probe_kernel, probe, {**lru, "LFU": False, **launch}, (), 0, warps),
        Variant("cache_probe-probe-lfu", probe_kernel, probe, {**lfu, "LFU": True, **launch}, (), 0, warps),
        Variant("cache_probe-admit-lru", admit_kernel, admit, {**lru, **launch}, (), 0, warps),
        Variant("cache_probe-admit-lfu", admit_kernel, admit, {**lfu, **launch}, (), 0, warps),
        Variant("cache_probe-lock", lock_kernel, lock, {"BLOCK": 512}, (), 0, 4),
    ]
