"""What one device computes: every op as a folder of interchangeable implementations.

    kernels/<op>/__init__.py   the contract        kernels/<op>/_torch.py   the truth
    kernels/<op>/_triton.py    the fast one        kernels/<op>/_numba.py   its readable twin (Numba CUDA)
    kernels/<op>/_cpu.py       what runs without a GPU     kernels/<op>/cases.py   inputs and costs for tests and
    benchmarks

The folder uses relative imports only: copy it under any name and import it there.
"""

from ._backend import BACKENDS
from .bags import Bags, TableSpec, check_ids
from .bucketize import Buckets, RowShards, bucketize
from .cache_probe import Admitted, cache_admit, cache_lock, cache_probe, cache_unlock, new_cache
from .embedding_bag import EmbeddingBag, EmbeddingBagCollection
from .pooled_lookup import PooledMax, pooled_lookup, pooled_max
from .row_copy import new_rows, row_copy
from .segment_grads import segment_grads
from .sparse_update import RULES, Optimizer, clip_scale, grad_square_sum, sparse_update, state_like, update_rows
from .unique_ids import Unique, unique_ids

OPS = ("pooled_lookup", "unique_ids", "bucketize", "segment_grads", "sparse_update", "row_copy", "cache_probe")
"""The only list of ops: tests, benchmarks and the ahead-of-time compile check walk it."""

__all__ = [
    "BACKENDS",
    "OPS",
    "RULES",
    "Admitted",
    "Bags",
    "Buckets",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Optimizer",
    "PooledMax",
    "RowShards",
    "TableSpec",
    "Unique",
    "bucketize",
    "cache_admit",
    "cache_lock",
    "cache_probe",
    "cache_unlock",
    "check_ids",
    "clip_scale",
    "grad_square_sum",
    "new_cache",
    "new_rows",
    "pooled_lookup",
    "pooled_max",
    "row_copy",
    "segment_grads",
    "sparse_update",
    "state_like",
    "unique_ids",
    "update_rows",
]
