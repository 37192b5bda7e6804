"""Keys in one collective of equal parts, sized by what batches before it needed, instead of counts and then keys.

A rank sends every other one a part of `capacity` keys, and before them how many it has. What does not fit follows in a
second collective, for everybody at once: no key is ever left out, and no buffer needs the worst case. The capacity is
`margin` times the most keys that any rank had for any one in the last `window` exchanges, which each rank tells all
others in the same message, so it is the same everywhere without a call of its own. The first exchange has capacity 0.

Equal parts need no counts on the host before keys leave; EMBark's public code sizes such buffers by a fixed ratio
(DENSE_UNIQUE_RATIO, default 1) and has no second exchange.
"""

import math
from collections import deque

import torch
from torch import Tensor

from .group import Group

HEADER = 2
"""Numbers before the keys of a part: how many keys this rank has for that one, and the most that it has for any."""


class PaddedKeys:
    """The exchange of one team. See the module's docstring. `overflows` counts second collectives."""

    def __init__(self, group: Group, margin: float = 1.1, window: int = 16) -> None:
        if margin < 1 or window < 1:
            raise ValueError(f"expected margin >= 1 and window >= 1, given {margin} and {window}")
        self.group, self.margin = group, margin
        self.overflows = 0
        self._most: deque[int] = deque(maxlen=window)

    @property
    def capacity(self) -> int:
        """Keys of a part in the next exchange."""
        return math.ceil(self.margin * max(self._most, default=0))

    def exchange(self, keys: Tensor, counts: list[int], label: str) -> tuple[Tensor, list[int]]:
        """Send `counts[r]` leading `keys` [n] int32 or int64 to each rank r in order; returns what came, rank-major,
        and how many from each. All ranks call it.
        """
        size, capacity = self.group.size, self.capacity
        parts = torch.split(keys, counts)
        outgoing = keys.new_zeros(size, HEADER + capacity)
        outgoing[:, 0], outgoing[:, 1] = torch.tensor(counts), max(counts)
        for rank, part in enumerate(parts):
            first = part[:capacity]
            outgoing[rank, HEADER : HEADER + len(first)] = first
        arrived = self.group.exchange(outgoing, label)
        came, most = arrived[:, 0].tolist(), int(arrived[:, 1].max())
        self._most.append(most)
        found = [part[HEADER : HEADER + min(n, capacity)] for part, n in zip(arrived, came, strict=True)]
        if most > capacity:  # every rank sees the same `most`
            self.overflows += 1
            late = torch.cat([part[capacity:] for part in parts])
            send, receive = ([max(n - capacity, 0) for n in of] for of in (counts, came))
            rest = torch.split(self.group.all_to_all(late, send, receive, label), receive)
            found = [part for pair in zip(found, rest, strict=True) for part in pair]
        return torch.cat(found), came

    def sent(self, keys: Tensor, itemsize: int) -> Tensor:
        """Bytes of the next exchange from rank to rank [world, world], the diagonal too; `keys` [world, world] are
        counts.
        """
        capacity = self.capacity
        late = (keys - capacity).clamp(min=0)  # all zero unless some pair overflows
        return (HEADER + capacity + late) * itemsize
