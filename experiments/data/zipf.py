"""Seeded Zipf ids over any number of rows: what EMBark's workloads draw (i.i.d., exponent 1.1, ids permuted)."""

import torch
from torch import Tensor

from experiments.data.hashing import key_of, permute_all
from experiments.data.marginals import draw, expected_distinct, marginal


def zipf_ids(rows: int, alpha: float, count: int, seed: int, start: int = 0) -> Tensor:
    """`count` ids of an i.i.d. Zipf stream, P(rank r) ~ r^-alpha over `rows` rows, [count] int64.

    Ranks become ids by a keyed bijection of [0, rows), so a frequent id may be anywhere. Id i of the stream depends on
    (rows, alpha, seed, start + i) only. alpha = 0 is uniform.
    """
    law = marginal(rows, alpha)
    ranks = draw(law, key_of(seed, rows, "zipf"), start, count)
    return torch.from_numpy(permute_all(ranks, rows, key_of(seed, rows, "zipf-ids")))


def zipf_unique_ratio(rows: int, alpha: float, keys: int) -> float:
    """Expected distinct ids / `keys` among `keys` ids of `zipf_ids`."""
    return expected_distinct(marginal(rows, alpha), keys) / keys
