"""`ClickBatch`, what a training step eats, and `ClickStream`, what makes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags, TableSpec

DENSE = 13  # integer features I1..I13
TABLES = tuple(f"C{t}" for t in range(1, 27))  # categorical features


@dataclass(frozen=True)
class ClickBatch:
    """B clicks or non-clicks.

    `label` [B] float32 (1 = click); `dense` [B, 13] float32, log1p of the integers, missing -> 0; `bags` table-major
    (bag t * B + b is sample b of table t), ids int64 and local to their table.
    """

    label: Tensor
    dense: Tensor
    bags: Bags

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.label)


class ClickStream(Protocol):
    """A sequence of samples with fixed positions: every reader, at any world size, sees the same data in the same
    order.
    """

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The 26 tables C1..C26."""
        ...

    @property
    def samples(self) -> int:
        """Samples in one pass."""
        ...

    def batches(self, batch: int, rank: int = 0, world: int = 1, start: int = 0) -> Iterator[ClickBatch]:
        """One pass in global batches of `batch` samples. `start` skips whole global batches.

        Rank r of `world` gets samples r * n // world to (r + 1) * n // world of each; n = batch, fewer in the last one.
        """
        ...

    def split(self, eval_share: float) -> "tuple[ClickStream, ClickStream]":
        """(training, evaluation): the last `eval_share` of the positions is for evaluation."""
        ...


def check_batching(batch: int, rank: int, world: int, start: int) -> None:
    """Raise ValueError unless the arguments of `ClickStream.batches` make sense."""
    if batch < 1 or start < 0 or not 0 <= rank < world:
        raise ValueError(
            f"batches: expected batch >= 1, 0 <= rank < world and start >= 0, "
            f"given batch={batch}, rank={rank}, world={world}, start={start}"
        )


def rank_slice(samples: int, rank: int, world: int) -> tuple[int, int]:
    """First and one-past-last sample of `rank` in a global batch: contiguous, in rank order, may be uneven."""
    return rank * samples // world, (rank + 1) * samples // world


def split_at(samples: int, eval_share: float) -> int:
    """Position where evaluation starts: both sides get at least one sample."""
    evaluation = round(samples * eval_share)
    if not 0 < evaluation < samples:
        raise ValueError(
            f"split: expected an eval_share that leaves samples on both sides, given {eval_share} of {samples} samples"
        )
    return samples - evaluation


def click_batch(label: NDArray[np.float32], dense: NDArray[np.float32], ids: NDArray[np.int64]) -> ClickBatch:
    """Pack `label` [B], `dense` [B, 13] and one-hot `ids` [26, B] into a ClickBatch; shares their memory."""
    offsets = torch.arange(ids.size + 1, dtype=torch.int64)
    return ClickBatch(
        torch.from_numpy(label), torch.from_numpy(dense), Bags(torch.from_numpy(ids.reshape(-1)), offsets)
    )


def transform_dense(integers: NDArray[np.int64], missing: NDArray[np.bool_]) -> NDArray[np.float32]:
    """log1p(max(x, 0)) as float32, missing -> 0: the transform of Meta's DLRM (github.com/facebookresearch/dlrm)."""
    dense = np.log1p(np.maximum(integers, 0)).astype(np.float32)
    dense[missing] = 0.0
    return dense
