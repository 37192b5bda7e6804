"""Inputs of cache_probe for tests and benchmarks, and what they cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._cases import INDEX_BYTES, covering, generator, name_of
from ..cost import Cost
from . import new_cache
from ._torch import cache_admit


@dataclass(frozen=True)
class Case:
    """`n` of the first `rows` rows against a cache of `sets` x `ways` lines that saw `seen` others before."""

    name: str
    n: int
    rows: int
    seen: int
    sets: int
    ways: int
    policy: str = "lru"
    steps: bool = False
    index: torch.dtype = torch.int64


_CHOICES = covering(
    {
        "n": (0, 1, 30),
        "sets": (1, 3, 8),
        "ways": (1, 2, 5, 32),
        "policy": ("lru", "lfu", "peek"),
        "steps": (False, True),
        "index": (torch.int32, torch.int64),
    }
)
CASES = (
    *(Case(name_of(choice), rows=60, seen=40, **choice) for choice in _CHOICES),
    Case("beyond_int32", n=20, rows=2**40, seen=40, sets=8, ways=2),
)
BENCH = (
    Case("lru", n=100_000, rows=1_000_000, seen=500_000, sets=2**14, ways=32),
    Case("lfu", n=100_000, rows=1_000_000, seen=500_000, sets=2**14, ways=32, policy="lfu"),
)
STEP = 7


def draw_distinct(n: int, rows: int, random: torch.Generator) -> Tensor:
    """[n] distinct rows of 0 .. rows - 1, ascending."""
    return torch.randint(rows - n + 1, (n,), generator=random).sort().values + torch.arange(n)


def make(case: Case, seed: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of `cache_probe`; `stamps` changes in place."""
    random = generator(seed)
    tags, stamps, locks = new_cache(case.sets, case.ways)
    rows = draw_distinct(case.n, case.rows, random)
    seen = draw_distinct(case.seen, case.rows, random)
    if case.n:
        seen = torch.cat([seen, rows[::2]]).unique()  # so that there are hits whatever `rows`
    cache_admit(seen, tags, stamps, locks, "lru", torch.zeros(1, dtype=torch.int64))
    step = torch.randint(100, (case.n,), generator=random) if case.steps else torch.tensor([STEP])
    return {
        "rows": rows.to(case.index).to(device),
        "tags": tags.to(device),
        "stamps": stamps.to(device),
        "policy": case.policy,
        "step": step.to(device),
    }


def cost(inputs: dict[str, Any]) -> Cost:
    """Bytes of the contract: rows, the tags of their sets, slots, and a stamp each (read as well to count)."""
    rows, tags, policy = inputs["rows"], inputs["tags"], inputs["policy"]
    stamps = {"peek": 0, "lru": 1, "lfu": 2}[policy]
    return Cost(bytes={"memory": len(rows) * (rows.itemsize + (tags.shape[1] + 1 + stamps) * INDEX_BYTES)})


def bound(inputs: dict[str, Any], eps: float) -> dict[str, Tensor]:
    """Nothing: integers are exact."""
    return {}
