"""How good predicted click probabilities are, over one evaluation pass."""

import numpy as np
import torch
from torch import Tensor


class ClickMetrics:
    """Collects logits and labels batch by batch; `compute` looks at the whole pass at once.

    An AUC is no mean of batches' AUCs. With several ranks, gather logits and labels and update one object with them.
    """

    def __init__(self) -> None:
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits [B] of any floating dtype, labels [B] of 0 or 1 in any dtype.

        Raises ValueError naming the first logit that is not finite or label that is neither 0 nor 1.
        """
        if logits.ndim != 1 or logits.shape != labels.shape:
            raise ValueError(
                f"expected logits and labels of one shape [B], given {tuple(logits.shape)} and {tuple(labels.shape)}"
            )
        z = logits.detach().to("cpu", torch.float64).numpy()
        y = labels.detach().to("cpu", torch.float64).numpy()
        _refuse(z, np.isfinite(z), "logits: expected finite numbers; the model has diverged or the input is bad")
        _refuse(y, (y == 0) | (y == 1), "labels: expected 0 or 1")
        # `.numpy()` shares memory with a CPU float64 tensor: copy, so that what was measured cannot change afterwards.
        self._logits.append(z.copy())
        self._labels.append(y.copy())

    def compute(self) -> dict[str, float]:
        """Metrics of everything added so far.

        `auc`: area under the ROC curve; 0.5 is chance. `logloss`: mean cross-entropy in nats. `rate`: share of ones.
        `ne`: normalised entropy, logloss / entropy of always predicting `rate`; below 1 is better than that (He et al.,
        "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014). Raises ValueError without samples of
        both classes.
        """
        from sklearn.metrics import roc_auc_score  # here, because it takes a second to import and every rank imports us

        z = np.concatenate(self._logits) if self._logits else np.empty(0)
        y = np.concatenate(self._labels) if self._labels else np.empty(0)
        clicks = int(y.sum())
        if clicks in (0, len(y)):
            raise ValueError(
                f"AUC and entropy: expected samples of both classes, given {len(y)} samples with {clicks} clicks; "
                "evaluate on more samples"
            )
        rate = clicks / len(y)
        # log(1 + exp(z)) - y z, in the form that neither overflows nor cancels.
        logloss = float(np.mean(np.logaddexp(0.0, np.where(y == 1, -z, z))))
        base = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        return {"auc": float(roc_auc_score(y, z)), "ne": float(logloss / base), "logloss": logloss, "rate": rate}


def _refuse(values: np.ndarray, good: np.ndarray, message: str) -> None:
    if not good.all():
        at = int(np.argmin(good))
        raise ValueError(f"{message}; given {values[at]} at position {at} of the batch")
