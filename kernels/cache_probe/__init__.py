"""A set-associative cache of row numbers: probe, admit and evict, lock. It holds no rows; `row_copy` moves them.

The state is three tensors, changed in place. Line (set, way) has the *slot* set * ways + way, its place in an array of
rows.

| tensor | shape, dtype | |
|---|---|---|
| tags | [sets, ways] int64 | the row in the line, -1: empty |
| stamps | [sets, ways] int64 | lowest goes first; > -2^63 |
| locks | [sets, ways] int32 | batches in flight that use the line; any number but 0 locks it |

A row can be in one set only, where a hash puts it:

    x = (row ^ row >> 32) mod 2^32;   x ^= x >> 16;   x = x * 0x7feb352d mod 2^32;   x ^= x >> 15
    x = x * 0x846ca68b mod 2^32;   x ^= x >> 16;   set(row) = x * sets >> 32

| function | gives | changes |
|---|---|---|
| cache_probe(rows) | slots [U] int64: the slot that holds the row, or -1: a miss | stamps of hits |
| cache_admit(rows) | slots, evicted [M] int64, conflicts [] int64 | tags and stamps of victims |
| cache_lock(slots), cache_unlock(slots) | - | locks of slots >= 0, by +1 and -1 |

`rows` [U] int32 or int64, >= 0, distinct: `unique_ids` gives them so (two equal rows race). `admit` takes rows that are
not in the cache: the misses of `probe`, after its hits were locked, or they may be victims.

`admit`: each set takes its rows in ascending order. A row gets the set's best line that has no lock and was not given
out in this call: an empty one first, else the one of the lowest stamp; ties go to the lowest way. `slots` is that
line's, `evicted` the row that it held, or -1. A row that finds no line is a *conflict miss*: -1 for both, counted in
`conflicts`. A locked line is never a victim, whatever the policy.

The policy is what a stamp is. `lru`: `step`, at a hit and on admission; `step` may be [U] numbers, one a row, which
makes other policies (minus the next step that uses the row: look-ahead). `lfu`: one more at a hit, 1 on admission.
`peek`, of `probe` alone, changes nothing: to find the slots again.

One batch, its rows written back and loaded by `row_copy`, which skips pairs with a -1:

    slots = cache_probe(rows, tags, stamps, "lru", step)
    cache_lock(slots, locks)
    misses = rows[slots < 0]
    new = cache_admit(misses, tags, stamps, locks, "lru", step)
    cache_lock(new.slots, locks)
    row_copy(lines, table, new.slots, new.evicted)
    row_copy(table, lines, misses, new.slots)
    ...                                                     use the lines
    cache_unlock(slots, locks)
    cache_unlock(new.slots, locks)

Exact: integers only, every backend gives the same bits, and so does any number of threads: one worker owns a set.

Bytes: probe U ids, U sets of 8 ways (tags), U slots and stamps written; admit two index sorts, M sets of 20 ways (tags,
stamps, locks), 4 M numbers of 8 written (slots, evicted, tags, stamps); lock 8 a slot and 4 read and 4 written.
Errors: ValueError with the expected and the given for a wrong shape, dtype, layout or policy.
Source: the sets, stamps and lock counters are those of FBGEMM's software cache of embedding tables, which refuses locks
with LFU; here both take them. The hash is lowbias32 of C. Wellons' hash-prospector, the upper half of a row folded in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backend

POLICIES = ("lru", "lfu")


class Admitted(NamedTuple):
    """What `cache_admit` did with each row. See the module's docstring."""

    slots: Tensor
    evicted: Tensor
    conflicts: Tensor


def new_cache(sets: int, ways: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Empty (tags, stamps, locks) of `sets` x `ways` lines: 20 bytes a line."""
    if not 1 <= sets < 2**31 or ways < 1:
        raise ValueError(f"cache: expected 1 <= sets < 2^31 and ways >= 1, given sets={sets}, ways={ways}")
    tags = torch.full((sets, ways), -1, dtype=torch.int64, device=device)
    return tags, torch.zeros_like(tags), torch.zeros_like(tags, dtype=torch.int32)


def cache_probe(
    rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: int | Tensor = 0, backend: str | None = None
) -> Tensor:
    """The slot of each of `rows` [U], or -1; hits are stamped. See the module's docstring for the contract."""
    if policy not in (*POLICIES, "peek"):
        raise ValueError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}, peek")
    step = _check(rows, tags, stamps, step)
    return _cache_probe(rows, tags, stamps, policy, step, _backend.resolve(backend, tags.device))


def cache_admit(
    rows: Tensor,
    tags: Tensor,
    stamps: Tensor,
    locks: Tensor,
    policy: str,
    step: int | Tensor = 0,
    backend: str | None = None,
) -> Admitted:
    """Give each of `rows` [M], none of them cached, a line. See the module's docstring for the contract."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
    step = _check(rows, tags, stamps, step)
    _check_locks(locks)
    if locks.shape != tags.shape:
        raise ValueError(f"locks: expected {tuple(tags.shape)} like tags, given {tuple(locks.shape)}")
    name = _backend.resolve(backend, tags.device)
    slots, evicted = _cache_admit(rows, tags, stamps, locks, policy, step, name)
    return Admitted(slots, evicted, (slots < 0).sum())


def cache_lock(slots: Tensor, locks: Tensor, backend: str | None = None) -> None:
    """Add 1 to the lock of each of `slots` [U] int64, distinct; negative ones are skipped."""
    _lock(slots, locks, 1, backend)


def cache_unlock(slots: Tensor, locks: Tensor, backend: str | None = None) -> None:
    """Take what `cache_lock` added. A lock below 0 (one unlock too many) keeps its line locked."""
    _lock(slots, locks, -1, backend)


def _lock(slots: Tensor, locks: Tensor, by: int, backend: str | None) -> None:
    if slots.ndim != 1 or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"slots: expected a contiguous 1-D int64 tensor, given {slots.dtype} {tuple(slots.shape)}")
    _check_locks(locks)
    _cache_lock(slots, locks, by, _backend.resolve(backend, locks.device))


def _check(rows: Tensor, tags: Tensor, stamps: Tensor, step: int | Tensor) -> Tensor:
    """Hold the arguments of probe and admit to their contract; `step` as a tensor."""
    if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64) or not rows.is_contiguous():
        raise ValueError(
            f"rows: expected a contiguous 1-D int32 or int64 tensor, given {rows.dtype} {tuple(rows.shape)}"
        )
    for name, state in (("tags", tags), ("stamps", stamps)):
        if state.ndim != 2 or state.dtype != torch.int64 or not state.is_contiguous() or 0 in state.shape:
            raise ValueError(
                f"{name}: expected a contiguous int64 [sets >= 1, ways >= 1] tensor, "
                f"given {state.dtype} {tuple(state.shape)}"
            )
    if stamps.shape != tags.shape:
        raise ValueError(f"stamps: expected {tuple(tags.shape)} like tags, given {tuple(stamps.shape)}")
    if isinstance(step, int):
        return torch.full((1,), step, device=tags.device)
    if step.shape not in ((1,), rows.shape) or step.dtype != torch.int64 or not step.is_contiguous():
        raise ValueError(
            f"step: expected an int, or contiguous int64 [1] or [{len(rows)}], given {step.dtype} {tuple(step.shape)}"
        )
    return step


def _check_locks(locks: Tensor) -> None:
    if locks.ndim != 2 or locks.dtype != torch.int32 or not locks.is_contiguous():
        raise ValueError(
            f"locks: expected a contiguous int32 [sets, ways] tensor, given {locks.dtype} {tuple(locks.shape)}"
        )


@torch.library.custom_op(f"{_backend.NAMESPACE}::cache_probe", mutates_args=("stamps",))
def _cache_probe(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor, backend: str) -> Tensor:
    return _backend.load("cache_probe", backend).cache_probe(rows, tags, stamps, policy, step)


@torch.library.custom_op(f"{_backend.NAMESPACE}::cache_admit", mutates_args=("tags", "stamps"))
def _cache_admit(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    return _backend.load("cache_probe", backend).cache_admit(rows, tags, stamps, locks, policy, step)


@torch.library.custom_op(f"{_backend.NAMESPACE}::cache_lock", mutates_args=("locks",))
def _cache_lock(slots: Tensor, locks: Tensor, by: int, backend: str) -> None:
    _backend.load("cache_probe", backend).cache_lock(slots, locks, by)


@_cache_probe.register_fake
def _(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor, backend: str) -> Tensor:
    return tags.new_empty(rows.shape)


@_cache_admit.register_fake
def _(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    return tags.new_empty(rows.shape), tags.new_empty(rows.shape)


@_cache_lock.register_fake
def _(slots: Tensor, locks: Tensor, by: int, backend: str) -> None:
    return None
