"""In what order a stream's keys come: the same marginals, with or without locality in time.

Tag reordering: the first use of a key gets a uniform tag; each later use, with probability p, a random earlier tag of
that key plus an exponential gap, else a uniform tag; look-ups are sorted by tag. The gap's rate is c times the key's
share of all look-ups, so reuse comes c times sooner than the key's mean distance.

One exception: a key with at least HEAVY of the look-ups keeps uniform tags. Under the rule its uses pile up in a few
roots, and whole batches hold a single value of a small column; and it is never far from its last use anyway.
"""

from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from experiments.data.hashing import at, key_of, permute_all, uniforms, unit

Order = Literal["iid", "meta_low", "meta_medium", "sessions"]
ORDERS: tuple[str, ...] = get_args(Order)
HEAVY = 0.01  # share of look-ups: the bound of a listed heavy hitter
REUSE = {"meta_low": (0.3, 40.0), "meta_medium": (0.9, 40.0)}  # order -> (p, c)
SESSION = 100.0  # mean look-ups of a user's run
SESSION_SIGMA = 1.0  # of ln(length): runs from about ten to about a thousand


@njit(cache=True)
def _tags(sorted_keys: NDArray[np.int64], p: float, c: float, key: np.uint64) -> NDArray[np.float64]:
    """Tags of look-ups grouped by key; a tag is a time in units of the stream's length."""
    n = len(sorted_keys)
    tags = np.empty(n, np.float64)
    first = 0
    while first < n:
        end = first
        while end < n and sorted_keys[end] == sorted_keys[first]:
            end += 1
        # share * n look-ups = end - first: the rate per look-up times the stream's length.
        rate = c * (end - first)
        reuse = p if end - first < HEAVY * n else 0.0
        for i in range(first, end):
            if i > first and unit(key, 4 * i) < reuse:
                earlier = first + np.int64(at(key, 4 * i + 1) % np.uint64(i - first))
                tags[i] = tags[earlier] - np.log(unit(key, 4 * i + 2)) / rate
            else:
                tags[i] = unit(key, 4 * i + 3)
        first = end
    return tags


def reorder(keys: NDArray[np.int64], p: float, c: float, seed: int, name: str = "") -> NDArray[np.int64]:
    """`keys` [N], the same values in tag order, [N] int64. p = 0 is a uniform shuffle."""
    grouped = np.sort(keys, kind="stable")
    tags = _tags(grouped, p, c, key_of(seed, name, "tags"))
    return grouped[np.argsort(tags, kind="stable")]


def session_users(samples: int, users: int, seed: int) -> NDArray[np.int64]:
    """User of each of `samples` look-ups, [samples] int64 in [0, users): contiguous runs, each user in one run only.

    Run lengths are log-normal with mean SESSION (as ML-100K by time: 943 users in 100,000 ratings). Raises ValueError
    when there are more runs than users.
    """
    key = key_of(seed, "session-length")
    runs = int(samples / SESSION * 1.5) + 64
    radius = np.sqrt(-2.0 * np.log(uniforms(key, 0, runs)))
    normal = radius * np.cos(2.0 * np.pi * uniforms(key, runs, runs))
    lengths = np.exp(np.log(SESSION) - SESSION_SIGMA**2 / 2 + SESSION_SIGMA * normal)
    ends = np.cumsum(np.maximum(1, np.rint(lengths).astype(np.int64)))
    run = np.searchsorted(ends, np.arange(samples), side="right")
    if run[-1] >= users:
        raise ValueError(
            f"sessions: expected at least one user per run, given {users} users for {run[-1] + 1} runs "
            f"({samples} samples): raise max_rows or lower samples"
        )
    return permute_all(run, users, key_of(seed, "session-user"))
