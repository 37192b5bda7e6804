"""Distinct ids, where each came from, and the positions grouped by id: the index every sparse step shares.

    rows     [U]     the distinct ids, ascending, in the dtype of `ids`
    inverse  [N]     ids == rows[inverse]                                        int64
    order    [N]     positions, grouped by id, ascending within an id (stable)   int64
    starts   [U + 1] positions of rows[u] are order[starts[u] : starts[u + 1]]   int64

`segment_grads` and `sparse_update` take `order` and `starts`; de-duplicated exchanges take `rows` and `inverse`. One
sort serves all. Ids must be >= 0. Exact: integers only, every backend gives the same bits.

Bytes: a few passes over N keys and positions (radix sort); bound by memory, or by the cache when N * 16 B fit.
Errors: ValueError with the expected and the given for a wrong shape, dtype or layout.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backend


class Unique(NamedTuple):
    """Distinct ids and the positions of each. See the module's docstring."""

    rows: Tensor
    inverse: Tensor
    order: Tensor
    starts: Tensor


def unique_ids(ids: Tensor, backend: str | None = None) -> Unique:
    """Distinct `ids` [N] (int32 or int64, >= 0). See the module's docstring for the contract."""
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids: expected a contiguous 1-D int32 or int64 tensor, given {ids.dtype} {tuple(ids.shape)}")
    name = _backend.resolve(backend, ids.device)
    if _backend.plain(ids):
        return Unique(*_backend.load("unique_ids", name).unique_ids(ids))
    return Unique(*_unique_ids(ids, name))


@torch.library.custom_op(f"{_backend.NAMESPACE}::unique_ids", mutates_args=())
def _unique_ids(ids: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _backend.load("unique_ids", backend).unique_ids(ids)


@_unique_ids.register_fake
def _(ids: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    distinct = torch.library.get_ctx().new_dynamic_size()
    n = ids.shape[0]
    return (
        ids.new_empty(distinct),
        ids.new_empty(n, dtype=torch.int64),
        ids.new_empty(n, dtype=torch.int64),
        ids.new_empty(distinct + 1, dtype=torch.int64),
    )
