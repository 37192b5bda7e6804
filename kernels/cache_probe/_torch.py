"""The truth of cache_probe: plain torch."""

import torch
from torch import Tensor

WORD = 2**32 - 1


def set_of(rows: Tensor, sets: int) -> Tensor:
    """The set of each row, [U] int64."""
    x = rows.long()
    x = (x ^ (x >> 32)) & WORD
    x ^= x >> 16
    x = x * 0x7FEB352D & WORD
    x ^= x >> 15
    x = x * (0x846CA68B - 2**32) & WORD  # minus 2^32: the same word, and the product stays within int64
    x ^= x >> 16
    return x * sets >> 32


def cache_probe(rows: Tensor, tags: Tensor, stamps: Tensor, policy: str, step: Tensor) -> Tensor:
    sets, ways = tags.shape
    of = set_of(rows, sets)
    held = tags[of] == rows[:, None]  # [U, ways]
    slots = torch.where(held.any(1), of * ways + held.long().argmax(1), -1)
    hits = slots >= 0
    if policy == "lru":
        stamps.view(-1)[slots[hits]] = step.expand(len(rows))[hits]
    elif policy == "lfu":
        stamps.view(-1)[slots[hits]] += 1
    return slots


def cache_admit(
    rows: Tensor, tags: Tensor, stamps: Tensor, locks: Tensor, policy: str, step: Tensor
) -> tuple[Tensor, Tensor]:
    sets, ways = tags.shape
    order = by_set(rows, sets)
    of = set_of(rows, sets)[order]
    turn = torch.arange(len(of), device=of.device) - torch.searchsorted(of, of)  # of each row in its set
    locked = locks[of] != 0
    key = torch.where(tags[of] < 0, torch.iinfo(torch.int64).min, stamps[of])  # empty lines first
    lines = torch.argsort(key, dim=1, stable=True)  # [M, ways], ways of each row's set, best first
    lines = lines.gather(1, torch.argsort(locked.gather(1, lines).long(), dim=1, stable=True))  # locked ones last
    found = turn < (~locked).sum(1)
    way = lines.gather(1, turn.clamp(max=ways - 1)[:, None])[:, 0]
    victims = (of * ways + way)[found]
    slots, evicted = torch.full_like(of, -1), torch.full_like(of, -1)
    slots[order[found]] = victims
    evicted[order[found]] = tags.view(-1)[victims]
    tags.view(-1)[victims] = rows[order[found]].long()
    stamps.view(-1)[victims] = step.expand(len(rows))[order[found]] if policy == "lru" else 1
    return slots, evicted


def by_set(rows: Tensor, sets: int) -> Tensor:
    """Positions of `rows` grouped by set, rows ascending within a set, [U] int64."""
    ascending = torch.argsort(rows)
    return ascending[torch.argsort(set_of(rows, sets)[ascending], stable=True)]


def cache_lock(slots: Tensor, locks: Tensor, by: int) -> None:
    locks.view(-1)[slots[slots >= 0]] += by
