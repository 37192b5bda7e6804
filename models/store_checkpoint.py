"""Checkpoints of stores larger than memory: the rows that were ever written, a chunk at a time.

What a store evicts to is a swap area. A checkpoint is other files, synced, with their checksums, then a manifest that
is renamed into place. Saved and loaded under one plan (`models/checkpoint` changes plans, where memory holds a table).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from comm.group import Group

from .cache import CachedStore
from .manifest import MANIFEST, folder_of, latest, publish, sync_folder

CHUNK_ROWS = 1 << 14
"""Rows that are in memory at once: 8 MiB at 128 float32 columns."""


def save(folder: Path, step: int, stores: Mapping[str, CachedStore], dense: bytes, group: Group, plan: str) -> Path:
    """Write `folder/step-<step>`: every rank its `stores` by name, rank 0 `dense`; returns it once it is whole.

    Between steps. `plan` is the hash of the plan. Raises OSError that names the table and the last complete checkpoint
    if this one cannot be written (a full disk, say); what was complete stays so.
    """
    path = folder_of(folder, step)
    if group.rank == 0:
        shutil.rmtree(path, ignore_errors=True)
    group.barrier()
    own = path / f"rank-{group.rank}"
    own.mkdir(parents=True)
    files = {}
    for number, (name, store) in enumerate(stores.items()):
        target = own / f"{number}.rows"
        try:
            files[name] = {"file": target.name, "blake2b": _write(target, _content(store))}
        except OSError as error:
            table = store.tier.spec.table_of(0)
            raise OSError(
                error.errno,
                f"{target}: could not write step {step} of {name!r} (from table {table!r}): {error.strerror}; the last "
                f"complete checkpoint is {latest(folder)}",
            ) from error
    part = {"stores": files, "dense": _write(own / "dense", [dense])}
    (own / "part.json").write_text(json.dumps(part))
    with (own / "part.json").open() as file:
        os.fsync(file.fileno())
    sync_folder(own)
    group.barrier()  # every rank's part is on disk before the manifest says so
    if group.rank == 0:
        publish(path, {"step": step, "world": group.size, "plan": plan})
    group.barrier()
    return path


def load(path: Path, stores: Mapping[str, CachedStore], group: Group, plan: str) -> tuple[int, bytes]:
    """Set `stores` from the checkpoint at `path`; returns its step and this rank's `dense`.

    Raises ValueError if it is of another plan, world or set of stores, or if a file does not have its checksum: then
    nothing was changed.
    """
    manifest = json.loads((path / MANIFEST).read_text())
    given = {"step": manifest["step"], "world": group.size, "plan": plan}
    if manifest != given:
        raise ValueError(f"{path}: expected world {group.size} and plan {plan}, given {manifest}")
    own = path / f"rank-{group.rank}"
    part = json.loads((own / "part.json").read_text())
    if list(part["stores"]) != list(stores):
        raise ValueError(f"{path}: expected stores {list(stores)}, given {list(part['stores'])}")
    for name, digest in [*((f["file"], f["blake2b"]) for f in part["stores"].values()), ("dense", part["dense"])]:
        with (own / name).open("rb") as file:
            found = hashlib.file_digest(file, _new_hash).hexdigest()
        if found != digest:
            raise ValueError(f"{own / name}: expected checksum {digest}, given {found}: the file is damaged")
    for name, store in stores.items():
        with (own / part["stores"][name]["file"]).open("rb") as file:
            _fill(store, file)
    group.barrier()
    return int(manifest["step"]), (own / "dense").read_bytes()


def _content(store: CachedStore) -> Iterator[bytes]:
    """Which rows were written, a bit a row; then those rows, by chunk: values, states."""
    store.flush()
    written = torch.cat([store.tier.is_written(rows) for rows in torch.arange(store.tier.spec.rows).split(CHUNK_ROWS)])
    yield np.packbits(written.numpy()).tobytes()
    for rows in _chunks(written):
        for array in store.read(rows):
            yield array.contiguous().numpy().tobytes()


def _fill(store: CachedStore, file: BinaryIO) -> None:
    spec = store.tier.spec
    bits = np.frombuffer(file.read(-(-spec.rows // 8)), np.uint8)
    store.clear()
    for rows in _chunks(torch.from_numpy(np.unpackbits(bits, count=spec.rows).astype(bool))):
        values = torch.empty(len(rows), spec.dim, dtype=spec.dtype)
        arrays = [_next(file, like) for like in (values, *spec.states_of(values))]
        store.write(rows, arrays)


def _next(file: BinaryIO, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(file.read(like.nbytes)), dtype=like.dtype).view(like.shape)


def _chunks(written: Tensor) -> Sequence[Tensor]:
    rows = torch.nonzero(written).flatten()
    return rows.split(CHUNK_ROWS) if len(rows) else []


def _write(path: Path, content: Iterator[bytes] | Sequence[bytes]) -> str:
    """Write and sync; returns the checksum."""
    digest = _new_hash()
    with path.open("wb") as file:
        for piece in content:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _new_hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)
