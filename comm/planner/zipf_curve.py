"""The miss curve of a table of which only a description is known: rows, Zipf exponent, look-ups a batch.

Rows are drawn independently, row r with P ~ r^-alpha, `lookups` times a batch, so a batch uses it with
q = 1 - (1 - P)^lookups. An LRU cache keeps about what was used in the last T batches, for the T whose expected number
of rows is the cache's (Che, Tung, Wang, "Hierarchical web caching systems", IEEE JSAC 2002; for many rows the spread of
T is small):

    size(T) = sum of 1 - (1 - q)^T          misses(T) = sum of q (1 - q)^T

Sums over ranks are exact for the first HEAD of them and integrals over log-spaced ranks beyond.
"""

import numpy as np

from .miss_curve import Floats, MissCurve

HEAD, BANDS, TIMES = 64, 192, 96


def ranks_of(rows: int) -> tuple[Floats, Floats]:
    """Representative ranks (from 1) and how many ranks each stands for; the counts sum to `rows`."""
    head = np.arange(1, min(rows, HEAD) + 1, dtype=np.float64)
    if rows <= HEAD:
        return head, np.ones_like(head)
    edges = np.unique(np.concatenate([[HEAD], np.geomspace(HEAD, rows, BANDS + 1).round(), [rows]]))
    low, high = edges[:-1] + 0.5, edges[1:] + 0.5
    return np.concatenate([head, np.sqrt(low * high)]), np.concatenate([np.ones_like(head), high - low])


def zipf_curve(rows: int, alpha: float, lookups: float, batches: float | None = None) -> MissCurve:
    """The curve of `rows` rows under `lookups` i.i.d. look-ups a batch of exponent `alpha`.

    `batches`: how many batches the training has behind it; rows not used in them are first touches, and those of
    earlier batches are what a cache can hold. None: all rows were used long ago.

    Raises ValueError unless rows >= 1, alpha >= 0 and lookups >= 0.
    """
    if rows < 1 or alpha < 0 or lookups < 0:
        raise ValueError(f"expected rows >= 1, alpha >= 0, lookups >= 0, given {rows}, {alpha}, {lookups}")
    rank, count = ranks_of(rows)
    weight = rank**-alpha
    p = weight / float(weight @ count)
    idle = lookups * np.log1p(-np.minimum(p, 1 - 1e-12))  # log of the probability that a batch does not use the row
    q = -np.expm1(idle)
    accesses = float(q @ count)
    if accesses == 0.0:
        return MissCurve(np.zeros(1), np.zeros(1), 0.0, 0.0)
    # 40 mean gaps of the least used row: it too is back by then, but for e^-40
    longest = batches if batches is not None else 40.0 / -idle[-1]
    # whole batches: between two of them a cache holds a part of the older one, so the curve is straight there
    times = np.unique(np.concatenate([np.arange(17.0), np.geomspace(17, max(longest, 18), TIMES).round(), [longest]]))
    times = times[times <= longest]
    away = np.exp(times[:, None] * idle[None, :])  # not used in the last `times` batches
    size, missed = (1.0 - away) @ count, away @ (q * count)
    first = float(missed[-1]) if batches is not None else 0.0
    keep = np.concatenate([[True], np.diff(size) > 0])
    return MissCurve(size[keep], np.maximum(missed[keep] - first, 0.0), first, accesses)
