"""Copies of hot rows behind every rank's own rows: how their gradients are summed and how they are updated."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernels import update_rows

from .canonical import all_reduce_touched, node_bytes, ring_bytes, touched_buffer, touched_bytes, touched_rows
from .group import Group
from .schedule import Phase
from .shards import Shards
from .store import Store


class Copies:
    """What strategies with a hot tier share. `ring` sums in the library's order, not the canonical."""

    label: str
    shards: Shards
    group: Group
    store: Store
    backend: str | None
    ring = False

    def hold_copies(self) -> None:
        """Where copies begin in this rank's array, and the way that their gradients take."""
        self.first_copy = self.shards.rows_of_rank[self.group.rank]
        self.through_nodes = self.group.nodes > 1 and self.group.ranks_per_node > 1 and not self.ring
        if self.through_nodes:
            _ = self.group.node, self.group.rail  # made here, by all ranks, before any stream runs

    def hot_phases(self, mine: Callable[..., tuple[Tensor, Tensor]], needs: tuple[str, ...]) -> tuple[Phase, Phase]:
        """From `needs`, of which `mine` makes this rank's touched copies and their gradients, to the update of all
        copies.
        """
        reduce = Phase("hot_reduce", HotReduce(self, mine), needs, ("hot_grads",), "network")
        apply = Phase("hot_apply", self.hot_apply, ("hot_grads", "lr", "step"), (), "compute")
        return reduce.scoped(self.label, ("lr", "step")), apply.scoped(self.label, ("lr", "step"))

    def hot_apply(self, hot_grads: tuple[Tensor, Tensor], lr: float, step: int) -> None:
        """The same optimizer step on every copy."""
        store, (touched, grads) = self.store, hot_grads
        lease = store.prepare(self.first_copy + touched, step)
        update_rows(store.values, store.states, lease.slots, grads, store.optimizer, lr, step + 1, backend=self.backend)
        store.release(lease, dirty=True)

    def hot_bytes(self) -> dict[str, Tensor]:
        """Bytes from rank to rank of the sum of their gradients, by label."""
        values, height, world = self.store.values, len(self.shards.hot_keys), self.group.size
        if self.ring:
            return {"hot_reduce": ring_bytes(height * (values.shape[1] + 1), values.itemsize, world)}
        if self.through_nodes:
            stages = node_bytes(height, (values.shape[1] + 1) * values.itemsize, world, self.group.ranks_per_node)
        else:
            stages = touched_bytes(height, values.shape[1], values.dtype, world)
        return {f"hot_reduce.{stage}": bytes_ for stage, bytes_ in stages.items()}


class HotReduce:
    """Hot rows that any rank touched, and the sum of their gradients: what the phase `hot_reduce` runs. In three steps,
    so that the sum can share a message with others.

    `mine(*values)` gives this rank's touched copies and their gradients. Travels in the tables' dtype.
    """

    def __init__(self, hot: Copies, mine: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.hot, self.mine = hot, mine

    def __call__(self, *values: Any) -> tuple[Tensor, Tensor]:
        """By a message of its own."""
        hot, (copies, sums) = self.hot, self.mine(*values)
        label, height = f"{hot.label}.hot_reduce", len(hot.shards.hot_keys)
        return all_reduce_touched(
            hot.group, copies, sums, height, label, ring=hot.ring, through_nodes=hot.through_nodes
        )

    def pack(self, *values: Any) -> Tensor:
        """What is to be summed over ranks, flat."""
        copies, sums = self.mine(*values)
        return touched_buffer(copies, sums, len(self.hot.shards.hot_keys)).flatten()

    def unpack(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Of that sum."""
        return touched_rows(total.view(-1, self.hot.store.values.shape[1] + 1))
