"""Labels a model can learn: Bernoulli(sigmoid(base + row effects + pairwise terms + dense terms))."""

import numpy as np
from numpy.typing import NDArray

from experiments.data.batch import DENSE, TABLES
from experiments.data.columns import Column
from experiments.data.hashing import key_of, uniforms

RATE = 0.215  # clicks per sample
SPREAD = 1.25  # standard deviation of the logits: sets the Bayes AUC
SHARES = {"rows": 0.45, "pairs": 0.05, "dense": 0.5}  # of the logits' variance
# A row of probability p has its effect scaled by p / (p + SEEN): a row seen fewer than a hundred times in 200,000
# samples says little, so that nearly all of the signal can be learned from that many.
SEEN = 1e-2
PAIRS = (("C6", "C20"), ("C9", "C17"), ("C14", "C23"), ("C17", "C22"))  # small tables only: the terms are tabulated


def _signed(key: np.uint64, count: int) -> NDArray[np.float64]:
    """`count` keyed effects, uniform with mean 0 and variance 1."""
    return np.sqrt(12.0) * (uniforms(key, 0, count) - 0.5)


def _shrunk(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return p / (p + SEEN)


class LabelModel:
    """Click logits from ranks and dense features; a calibration sample sets the scales so that rate and spread hold."""

    def __init__(
        self, columns: tuple[Column, ...], ranks: NDArray[np.int64], dense: NDArray[np.float32], seed: int
    ) -> None:
        """`ranks` [26, n] and `dense` [n, 13]: the calibration sample."""
        laws = [c.law for c in columns]
        # The last entry serves every rank past the tabulated ones: no effect (its weight would be below 1e-2).
        self._rows = [
            np.append(_signed(key_of(seed, c.name, "effect"), len(c.law.p)) * _shrunk(c.law.p), 0.0) for c in columns
        ]
        self._pairs = []
        for left, right in PAIRS:
            a, b = TABLES.index(left), TABLES.index(right)
            p = laws[a].p[:, None] * laws[b].p
            effect = _signed(key_of(seed, left, right, "pair"), p.size).reshape(p.shape)
            self._pairs.append((a, b, effect * _shrunk(p)))
        self._mean = dense.mean(0, dtype=np.float64)
        self._slope = _signed(key_of(seed, "dense"), DENSE) / np.maximum(dense.std(0, dtype=np.float64), 1e-6)
        parts = self._parts(ranks, dense)
        self._centre = {k: float(v.mean()) for k, v in parts.items()}
        self._scale = {k: SPREAD * np.sqrt(SHARES[k]) / float(v.std()) for k, v in parts.items()}
        self._base = 0.0
        self._base = _intercept(self.logits(ranks, dense), RATE)

    def _parts(self, ranks: NDArray[np.int64], dense: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        rows = np.zeros(ranks.shape[1])
        for effect, rank in zip(self._rows, ranks, strict=True):
            rows += effect[np.minimum(rank, len(effect) - 1)]
        pairs = np.zeros(ranks.shape[1])
        for a, b, effect in self._pairs:
            pairs += effect[ranks[a], ranks[b]]
        # einsum, not matmul: its order of summation does not depend on the number of rows.
        return {"rows": rows, "pairs": pairs, "dense": np.einsum("nd,d->n", dense - self._mean, self._slope)}

    def logits(self, ranks: NDArray[np.int64], dense: NDArray[np.float32]) -> NDArray[np.float64]:
        """True logits [n] of `ranks` [26, n] and `dense` [n, 13]."""
        total = np.full(ranks.shape[1], self._base)
        for k, v in self._parts(ranks, dense).items():
            total += self._scale[k] * (v - self._centre[k])
        return total


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def _intercept(logits: NDArray[np.float64], rate: float) -> float:
    """The b with mean(sigmoid(logits + b)) = rate, by bisection to 2^-50 of the bracket."""
    low, high = -40.0, 40.0
    for _ in range(50):
        half = (low + high) / 2
        low, high = (half, high) if sigmoid(logits + half).mean() < rate else (low, half)
    return (low + high) / 2


def auc(label: NDArray[np.float32], score: NDArray[np.float64]) -> float:
    """Area under the ROC curve."""
    from sklearn.metrics import roc_auc_score  # here, because it takes a second to import and every rank imports us

    return float(roc_auc_score(label, score))
