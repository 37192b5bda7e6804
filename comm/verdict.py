"""Yes or no for each key, from the owner back to who asked: `flags` bits a key, whole bytes a rank."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .group import Group


def send_flags(group: Group, flags: Tensor, asked: Sequence[int], asking: Sequence[int], label: str) -> Tensor:
    """`flags` [N, k] bool about the keys that others asked for, `asked[r]` of them rank r's, to who asked; returns
    [M, k] about this rank's own keys, `asking[r]` of which went to rank r.
    """
    count = flags.shape[1]
    sizes = [flag_bytes(n, count) for n in asked], [flag_bytes(n, count) for n in asking]
    bits = np.zeros(8 * sum(sizes[0]), dtype=np.uint8)
    bits[_places(asked, sizes[0], count)] = flags.flatten().numpy()
    arrived = group.all_to_all(torch.from_numpy(np.packbits(bits)), *sizes, label)
    found = np.unpackbits(arrived.numpy())[_places(asking, sizes[1], count)]
    return torch.from_numpy(found.astype(bool)).view(-1, count)


def flag_bytes(keys: int, flags: int) -> int:
    """Bytes that `flags` bits of `keys` keys take."""
    return -(-keys * flags // 8)


def _places(keys: Sequence[int], sizes: Sequence[int], flags: int) -> np.ndarray:
    """Where the bits of each key lie, each rank's from a whole byte on."""
    bits = np.array(keys) * flags
    shift = 8 * np.concatenate([[0], np.cumsum(sizes)[:-1]]) - np.concatenate([[0], np.cumsum(bits)[:-1]])
    return np.arange(bits.sum()) + np.repeat(shift, bits)
