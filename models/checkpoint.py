"""Checkpoints of sharded tables: saved under one plan, loaded under any other, bit for bit.

A checkpoint is a folder `step-<n>` with one torch.distributed.checkpoint a rank and a manifest, which is renamed into
place last: a folder without one is no checkpoint, whatever ended its writer. Ranks share the file system.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader as loader
from torch.distributed.checkpoint import state_dict_saver as saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from comm.plan import Plan
from comm.shards import Shards
from comm.store import Store

from .embedding import ShardedEmbedding, Team, held, rows_held
from .manifest import MANIFEST, folder_of, latest, publish

warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable")  # each rank saves for itself

logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)  # it notes every tensor


@dataclass(frozen=True)
class Piece:
    """A block of a table as one rank saved it: columns from `first`, rows `part` of `parts` (runs of `span`, or by
    modulo if 0).
    """

    table: str
    rank: int
    first: int
    width: int
    part: int
    parts: int
    span: int

    def key(self, array: int) -> str:
        """Name of its values (array 0) or of an optimizer state (1, 2, ...)."""
        return f"{self.table}/{self.first}+{self.width}/{self.part}of{self.parts}by{self.span}/{array}"

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of `ids` it holds, as positions in them, and at which of its rows."""
        of = ids // self.span if self.span else ids % self.parts
        positions = torch.nonzero(of == self.part).flatten()
        mine = ids[positions]
        return positions, mine - self.part * self.span if self.span else mine // self.parts


def pieces(plan: Plan, table: int) -> list[Piece]:
    """How the ranks of `plan` save table number `table`."""
    spec, placement = plan.tables[table], plan.placements[table]
    if not placement.ranks:
        return [Piece(spec.name, 0, 0, spec.dim, 0, 1, 0)]
    width, parts = spec.dim // placement.columns, placement.parts
    span = -(-spec.rows // parts) if placement.split == "range" else 0
    return [
        Piece(spec.name, placement.ranks[c * parts + p], c * width, width, p, parts, span)
        for c in range(placement.columns)
        for p in range(parts)
    ]


def save(folder: Path, embedding: ShardedEmbedding, step: int, dense: Tensor) -> Path:
    """Write `folder/step-<step>`; returns it once it is whole on every rank. `dense` [bytes] uint8 is rank 0's, and
    comes back from `load` as it is.

    Raises OSError that names the last complete checkpoint if this one cannot be written (a full disk, say).
    """
    path = folder_of(folder, step)
    state = {key: tensor for team in embedding.teams for key, tensor in _mine(embedding, team)}
    if embedding.group.rank == 0:
        shutil.rmtree(path, ignore_errors=True)
        state["dense"] = dense
    embedding.group.barrier()
    own = path / f"rank-{embedding.group.rank}"
    try:
        own.mkdir(parents=True)
        if state:
            saver.save(state, storage_writer=FileSystemWriter(own), no_dist=True)
    except (OSError, CheckpointException) as error:
        before = latest(folder)
        raise OSError(
            f"{own}: could not write step {step} ({error}); the last complete checkpoint is {before}"
        ) from error
    embedding.group.barrier()  # every rank's part is on disk before the manifest says so
    if embedding.group.rank == 0:
        _publish(path, embedding, step)
    embedding.group.barrier()
    return path


def load(path: Path, embedding: ShardedEmbedding) -> tuple[int, Tensor]:
    """Fill the rows and optimizer states of `embedding` from the checkpoint at `path`, whatever plan it was saved
    under; returns its step and its `dense`.

    Raises ValueError if the tables or the optimizer differ.
    """
    manifest = json.loads((path / MANIFEST).read_text())
    saved = Plan.from_json(json.dumps(manifest["plan"]))
    if saved.tables != embedding.tables:
        differ = [a.name for a, b in zip(embedding.tables, saved.tables, strict=False) if a != b] or ["their number"]
        raise ValueError(f"{path}: expected the tables of the model, given others; they differ in {', '.join(differ)}")
    if manifest["optimizer"] != asdict(embedding.optimizer):
        raise ValueError(f"{path}: expected optimizer {embedding.optimizer}, given {manifest['optimizer']}")
    for team in embedding.teams:
        _fill(path, embedding, team, saved)
    dense = _read(path, 0, ["dense"])["dense"]
    embedding.group.barrier()
    return int(manifest["step"]), dense


def _mine(embedding: ShardedEmbedding, team: Team) -> Iterator[tuple[str, Tensor]]:
    """Name and values of what this rank saves of a team. Hot rows are taken from their copies, which are the live
    ones.
    """
    rank, shards, store = embedding.group.rank, team.strategy.shards, team.strategy.store
    arrays = _arrays(store, shards, rank)
    places: dict[tuple[int, int], tuple[int, int]] = {}
    if shards.cells:
        for cell in (cell for cell in shards.cells if cell.rank == rank):
            places[cell.table, cell.part] = cell.base, cell.rows
    elif rank == 0:
        bases = shards.table_base.tolist()
        places = {(n, 0): (bases[n], table.rows) for n, table in enumerate(shards.tables)}
    first_copy, hot_before = shards.rows_of_rank[rank], 0
    for n, (number, column) in enumerate(team.blocks):
        hot = torch.tensor(shards.placements[n].hot, dtype=torch.int64)
        here = [p for p in pieces(embedding.plan, number) if p.first == column * p.width and (n, p.part) in places]
        for piece in here:
            base, rows = places[n, piece.part]
            positions, local = piece.find(hot)
            for i, array in enumerate(arrays if rows else ()):
                block = array[base : base + rows]
                if len(local):
                    block = block.clone()
                    block[local] = array[first_copy + hot_before + positions]
                yield piece.key(i), block
        hot_before += len(hot)


def _fill(path: Path, embedding: ShardedEmbedding, team: Team, saved: Plan) -> None:
    """The rows that this rank holds of a team, one saved piece after another: memory is one piece's."""
    store, shards = team.strategy.store, team.strategy.shards
    arrays, begin = _arrays(store, shards, embedding.group.rank), 0
    for n, ids in held(shards, embedding.group.rank):
        number, column = team.blocks[n]
        width = shards.tables[n].dim
        first = column * width
        for piece in pieces(saved, number):
            low, high = max(first, piece.first), min(first + width, piece.first + piece.width)
            positions, local = piece.find(ids)
            if low >= high or not len(positions):
                continue
            keys = [piece.key(i) for i in range(len(arrays))]
            found = _read(path, piece.rank, keys)
            for array, key in zip(arrays, keys, strict=True):
                source = found[key][local]
                if array.ndim == 2:
                    array[begin + positions, low - first : high - first] = source[
                        :, low - piece.first : high - piece.first
                    ]
                else:  # of whole rows: the same beside every block of columns
                    array[begin + positions] = source
        begin += len(ids)
    if not store.slots_are_rows:
        store.write(torch.arange(begin), arrays)


def _arrays(store: Store, shards: Shards, rank: int) -> list[Tensor]:
    """Values and states of every row of `rank`: the store's own, or copies if it keeps rows elsewhere."""
    store.flush()
    rows = torch.arange(rows_held(shards, rank))
    return [store.values, *store.states] if store.slots_are_rows else list(store.read(rows))


def _read(path: Path, rank: int, keys: list[str]) -> dict[str, Tensor]:
    reader = FileSystemReader(path / f"rank-{rank}")
    saved: dict[str, Any] = reader.read_metadata().state_dict_metadata
    state = {key: torch.empty(saved[key].size, dtype=saved[key].properties.dtype) for key in keys}
    loader.load(state, storage_reader=FileSystemReader(path / f"rank-{rank}"), no_dist=True)
    return state


def _publish(path: Path, embedding: ShardedEmbedding, step: int) -> None:
    """The manifest: from then on it is a checkpoint."""
    manifest = {
        "step": step,
        "ranks_per_node": embedding.group.ranks_per_node,
        "optimizer": asdict(embedding.optimizer),
        "plan": json.loads(embedding.plan.to_json()),
    }
    publish(path, manifest)
