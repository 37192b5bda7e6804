"""A run in a process of its own, for tests that limit its memory: `python -m tests.models.offload_child WHAT`."""

import hashlib
import sys
from pathlib import Path

import torch

from kernels import Optimizer, update_rows
from models.cache import CachedStore
from models.file_tier import FileTier
from models.initialise import init_rows
from models.stores import device_store
from models.tier import StoreSpec

ROWS, DIM, BATCH, STEPS = 2_000_000, 240, 8_000, 90


def spec() -> StoreSpec:
    def initial(rows: torch.Tensor) -> torch.Tensor:
        return init_rows("wide", rows, DIM, 0, torch.float32, 1.0)

    optimizer = Optimizer("rowwise_adagrad")
    return StoreSpec("team", ROWS, DIM, torch.float32, optimizer, initial, lambda: initial(torch.arange(ROWS)), str)


def trained(store) -> str:
    """A checksum of the losses' stand-in and of a sample of rows and states, after steps over the whole table."""
    sha = hashlib.sha256()
    for step in range(STEPS):
        rows = (torch.arange(BATCH) * 250 + step * 7919) % ROWS
        lease = store.prepare(rows, step)
        values = store.values[lease.slots]
        sha.update(values[::100].contiguous().numpy().tobytes())
        update_rows(store.values, store.states, lease.slots, values, store.optimizer, 0.1)
        store.release(lease, dirty=True)
    for array in store.read(torch.arange(0, ROWS, 997)):
        sha.update(array.numpy().tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "file":
        kept = CachedStore(FileTier(Path(sys.argv[2]), spec()), lines=20_000, batch_rows=BATCH)
    else:
        kept = device_store(spec())
    sys.stdout.write(trained(kept))
