"""Batches of EMBark's workloads: Zipf ids by inverse CDF through a keyed bijection, so no table's ids are ever listed.

Id i of table t is a function of (seed, t, i): position i = (step * batch + sample) * hotness + place in the bag. A rank
draws its own slice of a batch and nothing else.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.hashing import key_of, permute, permute_all
from experiments.data.marginals import Marginal, draw, marginal
from kernels import Bags, TableSpec

ALPHA = 1.1
"""Exponent of the published generator."""


@lru_cache(maxsize=64)
def _law(rows: int) -> Marginal:
    return marginal(rows, ALPHA)


def hot_id(rows: int, seed: int, number: int) -> int:
    """The id of the most frequent rank of table `number`."""
    return int(permute(0, rows, key_of(seed, number, "embark-ids")))


def table_ids(rows: int, seed: int, number: int, first: int, count: int) -> NDArray[np.int64]:
    """Ids at positions first, first + 1, ... of table `number`, [count] int64 in [0, rows)."""
    ranks = draw(_law(rows), key_of(seed, number, "embark-draw"), first, count)
    return permute_all(ranks, rows, key_of(seed, number, "embark-ids"))


def bags(
    specs: Sequence[TableSpec], hotness: Sequence[int], batch: int, step: int, rank: int, world: int, seed: int = 0
) -> Bags:
    """Table-major bags of `rank`: its share of global batch `step`, of `batch` samples over `world` ranks.

    Raises ValueError unless `world` divides `batch`.
    """
    if batch % world:
        raise ValueError(f"batch: expected a multiple of {world} ranks, given {batch}")
    local = batch // world
    first = step * batch + rank * local
    ids = [
        table_ids(spec.rows, seed, number, first * h, local * h)
        for number, (spec, h) in enumerate(zip(specs, hotness, strict=True))
    ]
    lengths = np.repeat(np.asarray(hotness, np.int64), local)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Bags(torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets))
