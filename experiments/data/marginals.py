"""How often each row of a table is used: listed heavy hitters, then a shifted-power tail, drawn by inverse CDF."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from experiments.data.hashing import unit

EXACT = 65_536  # ranks whose probability is tabulated; past them the sum over ranks is an integral


class Marginal(NamedTuple):
    """P(rank r), r = 0 .. rows - 1. Build it with `marginal`.

    `p` [K] and `cdf` [K] (inclusive) hold the first K = min(rows, EXACT) ranks; past them P(r) = scale * (r +
    shift)^-s. The integral over (r - 1/2, r + 1/2) stands for the sum there: its relative error is s (s + 1) / (24 (r +
    shift)^2), below 1e-10 for r >= EXACT and s <= 3.
    """

    p: NDArray[np.float64]
    cdf: NDArray[np.float64]
    rows: int
    shift: float
    s: float
    scale: float


@njit(cache=True)
def _integral(x: float, s: float) -> float:
    return np.log(x) if s == 1.0 else x ** (1.0 - s) / (1.0 - s)


@njit(cache=True)
def _inverse_integral(y: float, s: float) -> float:
    return np.exp(y) if s == 1.0 else (y * (1.0 - s)) ** (1.0 / (1.0 - s))


def marginal(rows: int, s: float, q: float = 0.0, heavy: Sequence[float] = ()) -> Marginal:
    """The first ranks have the probabilities of `heavy`; the rest of the mass falls as (j + q)^-s, j = 1, 2, ...

    Fewer rows than heavy hitters, or heavy hitters without a tail, are renormalised.

    Raises ValueError unless rows >= 1, q >= 0, s >= 0 and heavy is positive with
    sum <= 1 (+ 0.001: published shares are rounded).
    """
    head = np.asarray(heavy[:rows], np.float64)
    if rows < 1 or q < 0 or s < 0 or (head <= 0).any() or head.sum() > 1.001:
        raise ValueError(
            f"marginal: expected rows >= 1, q >= 0, s >= 0 and positive heavy hitters of sum <= 1, "
            f"given rows={rows}, q={q}, s={s}, heavy sum {head.sum():.4f}"
        )
    exact = min(rows, max(EXACT, len(head)))
    j = np.arange(1, exact - len(head) + 1, dtype=np.float64)
    weight = (j + q) ** -s
    past = 0.0
    shift = q + 1 - len(head)  # rank r is tail rank j = r - len(head) + 1
    if rows > exact:
        past = _integral(rows - 0.5 + shift, s) - _integral(exact - 0.5 + shift, s)
    total = float(weight.sum()) + past
    mass = max(0.0, 1.0 - float(head.sum())) if total else 0.0
    p = np.concatenate([head, weight * (mass / total if total else 0.0)])
    whole = float(p.sum()) + mass * (past / total if total else 0.0)
    scale = mass / total / whole if total else 0.0
    return Marginal(p / whole, np.cumsum(p / whole), rows, shift, float(s), scale)


@njit(cache=True)
def rank_at(m: Marginal, u: float) -> np.int64:
    """The rank whose CDF interval holds `u` in (0, 1)."""
    exact = len(m.p)
    if u < m.cdf[exact - 1]:
        return np.int64(np.searchsorted(m.cdf, u, side="right"))
    if m.rows == exact:
        return np.int64(exact - 1)
    y = (u - m.cdf[exact - 1]) / m.scale + _integral(exact - 0.5 + m.shift, m.s)
    if m.s > 1.0 and y >= 0.0:  # past the integral's limit, by rounding
        return np.int64(m.rows - 1)
    rank = np.int64(_inverse_integral(y, m.s) - m.shift + 0.5)
    return np.int64(min(max(rank, exact), m.rows - 1))


@njit(cache=True)
def middle(m: Marginal, rank: int) -> float:
    """The middle of `rank`'s CDF interval."""
    exact = len(m.p)
    if rank < exact:
        return m.cdf[rank] - 0.5 * m.p[rank]
    past = _integral(rank + m.shift, m.s) - _integral(exact - 0.5 + m.shift, m.s)
    return m.cdf[exact - 1] + m.scale * past


@njit(cache=True)
def draw(m: Marginal, key: np.uint64, first: int, count: int) -> NDArray[np.int64]:
    """`count` i.i.d. ranks at positions first, first + 1, ... of the stream `key`, [count] int64."""
    out = np.empty(count, np.int64)
    for i in range(count):
        out[i] = rank_at(m, unit(key, first + i))
    return out


def expected_distinct(m: Marginal, draws: int) -> float:
    """E[distinct ranks among `draws` i.i.d. draws] = sum over ranks of 1 - (1 - p)^draws.

    Past the tabulated ranks the sum is a trapezoid over 20,001 log-spaced ranks: the integrand varies by under 0.2 % a
    step, so its error is below 1e-6 of the result.
    """
    # A table of one row has p = 1, whose log1p is -inf: certain to be seen.
    seen = float(-np.expm1(draws * np.log1p(-np.minimum(m.p, 1 - 1e-16))).sum())
    exact = len(m.p)
    if m.rows == exact:
        return seen
    x = np.geomspace(exact - 0.5 + m.shift, m.rows - 0.5 + m.shift, 20_001)
    missed = -np.expm1(draws * np.log1p(-m.scale * x**-m.s))
    return seen + float(np.trapezoid(missed, x))
