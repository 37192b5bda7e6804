"""TorchRec's KeyedJaggedTensor in and out: the same ragged ids, feature by feature. TorchRec itself is not required.

A KeyedJaggedTensor holds `values`, `lengths` and perhaps `weights`, all of the first key's samples, then the second's:
table-major, as Bags are. A key is a table's name.
"""

from collections.abc import Sequence
from typing import Any

import torch

from kernels import Bags, TableSpec


def bags_of(features: Any, tables: Sequence[TableSpec]) -> Bags:
    """Table-major bags of `tables` from a KeyedJaggedTensor with a key for each of them, in any order; others are left
    out. Shares memory when the keys are the tables, in order.

    Raises ValueError that names the tables without a key.
    """
    keys, names = list(features.keys()), [table.name for table in tables]
    missing = [name for name in names if name not in keys]
    if missing:
        raise ValueError(f"features: expected a key for every table, given {keys}; missing {missing}")
    weights = features.weights_or_none()
    if keys == names:
        return Bags(features.values(), features.offsets().to(torch.int64), weights)
    batch = len(features.lengths()) // len(keys)
    offsets = features.offsets().to(torch.int64)
    spans = [(keys.index(name) * batch, (keys.index(name) + 1) * batch) for name in names]
    ids = torch.cat([features.values()[offsets[a] : offsets[b]] for a, b in spans])
    lengths = torch.cat([offsets[a : b + 1].diff() for a, b in spans])
    chosen = None if weights is None else torch.cat([weights[offsets[a] : offsets[b]] for a, b in spans])
    return Bags(ids, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), chosen)


def keyed_jagged(bags: Bags, tables: Sequence[TableSpec]) -> Any:
    """The KeyedJaggedTensor of table-major `bags`; shares memory. Needs torchrec."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # pyright: ignore[reportMissingImports]

    names = [table.name for table in tables]
    return KeyedJaggedTensor(names, bags.ids, bags.weights, lengths=bags.lengths.to(torch.int32), offsets=bags.offsets)
