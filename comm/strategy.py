"""The Strategy protocol: the phases of one exchange, each with its cost.

A strategy carries tables of one width. Its phases take `bags` (table-major) to `pooled` [tables * batch, dim] and,
once `grad` [tables * batch, dim] is there, update its store. Names of values and phases are under the strategy's
label.
"""

from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Store

INPUTS = ("step", "lr", "training")
"""What a frame holds for every strategy: step number, learning rate (runtime value), whether rows are updated after."""


class Strategy(Protocol):
    """How the rows of some tables travel."""

    label: str
    shards: Shards
    store: Store

    def forward(self) -> tuple[Phase, ...]:
        """Phases from `bags` to `pooled`."""
        ...

    def backward(self) -> tuple[Phase, ...]:
        """Phases from `grad` to the update of the store."""
        ...

    def sent(self, counts: Counts) -> dict[str, Tensor]:
        """Bytes of each phase from rank to rank, [world, world] int64 with a zero diagonal. Equal to what a Group
        counts.
        """
        ...


def build(name: str, label: str, shards: Shards, group: Group, store: Store, backend: str | None = None) -> Strategy:
    """The strategy in `comm/<name>.py` (one of `plan.STRATEGIES`, which a Plan has checked) for the tables of
    `shards`.
    """
    return import_module(f"comm.{name}").STRATEGY(label, shards, group, store, backend)


def off_diagonal(bytes_: Tensor) -> Tensor:
    """`bytes_` [world, world] without what a rank sends to itself."""
    return bytes_ * (1 - torch.eye(len(bytes_), dtype=bytes_.dtype))
