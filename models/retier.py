"""Another hot set at a step boundary: values and optimizer states move between copies and owners, and nothing else.

Before: every batch in flight ended (`PipelinedTraining.drain`). A row that is no longer hot goes back to its owner, who
has a copy as everybody does: nothing travels. A row that becomes hot goes from its owner to all ranks. Training goes on
bit for bit as if the sets had always been these, because a copy is what its owner's row would be. Bytes: of the rows
that become hot, with their states, from their owner to every other rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from comm.copies import Copies
from comm.plan import Plan
from comm.shards import Shards
from comm.strategy import build
from kernels import bucketize

from .embedding import ShardedEmbedding, Team
from .stores import DeviceStore


def retier(embedding: ShardedEmbedding, hot: Mapping[str, Sequence[int]]) -> None:
    """Make `hot` (ids, ascending, by table; tables not named keep theirs) the hot sets of `embedding`, on all ranks at
    the same step boundary. Steps and pipelines built before are to be built again.

    Raises ValueError for a table without tiers, for ids that a Plan refuses, and if ranks disagree; RuntimeError while
    rows of a batch in flight are out.
    """
    plan = embedding.plan
    for name in hot:
        strategy = next((p.strategy for p in plan.placements if p.table == name), None)
        if strategy is None or not strategy.startswith("hot_cold"):
            raise ValueError(f"table {name!r}: expected one under hot_cold, given {strategy or 'no such table'}")
    placements = tuple(replace(p, hot=tuple(hot[p.table])) if p.table in hot else p for p in plan.placements)
    plan = Plan(plan.world, plan.tables, placements)
    digest = torch.tensor([int(plan.hash, 16)])
    if len(embedding.group.all_gather(digest, [1] * embedding.group.size, "retier.plan").unique()) > 1:
        raise ValueError("hot: expected the same ids on every rank, given different ones")
    teams = []
    for team in embedding.teams:
        if team.strategy.store.stats()["leases"]:
            raise RuntimeError(
                f"{team.label!r}: expected no batch in flight when the hot set changes, given "
                f"{team.strategy.store.stats()['leases']} leases out: drain the pipeline first"
            )
        teams.append(_moved(embedding, team, plan) if isinstance(team.strategy, Copies) else team)
    embedding.plan, embedding.teams = plan, tuple(teams)


def _moved(embedding: ShardedEmbedding, team: Team, plan: Plan) -> Team:
    """The team with the hot sets of `plan`."""
    strategy, group = team.strategy, embedding.group
    assert isinstance(strategy, Copies)
    before, store = strategy.shards, strategy.store
    after = Shards(before.tables, tuple(plan.placements[number].block(c) for number, c in team.blocks), plan.world)
    assert isinstance(store, DeviceStore)  # an embedding refuses hot copies in any other
    arrays, own = [store.values, *store.states], strategy.first_copy
    back = before.hot_keys[~torch.isin(before.hot_keys, after.hot_keys)]
    owners, rows = owners_of(before, back, strategy.backend)
    mine = owners == group.rank
    copies = own + torch.searchsorted(before.hot_keys, back[mine])
    for array in arrays:
        array[rows[mine]] = array[copies]
    new = after.hot_keys[~torch.isin(after.hot_keys, before.hot_keys)]
    owners, rows = owners_of(before, new, strategy.backend)
    mine, by_owner = owners == group.rank, torch.argsort(owners, stable=True)
    sizes = torch.bincount(owners, minlength=group.size).tolist()
    kept = torch.nonzero(torch.isin(after.hot_keys, before.hot_keys)).flatten()
    at = torch.searchsorted(after.hot_keys, new)[by_owner]
    tables = []
    for array in arrays:
        block = array.new_empty(len(after.hot_keys), *array.shape[1:])
        block[kept] = array[own + torch.searchsorted(before.hot_keys, after.hot_keys[kept])]
        block[at] = group.all_gather(array[rows[mine]], sizes, f"{team.label}.retier")
        tables.append(_with_copies(array, own, block))
    store.values, store.states = tables[0], tuple(tables[1:])
    name = plan.placements[team.blocks[0][0]].strategy
    return Team(team.blocks, build(name, team.label, after, group, store, strategy.backend))


def owners_of(shards: Shards, keys: Tensor, backend: str | None) -> tuple[Tensor, Tensor]:
    """Owner, and row of the owner's array, of each of `keys` [n], ascending, in the key space of all tables."""
    starts = torch.searchsorted(keys, shards.table_base)
    ids = keys - torch.repeat_interleave(shards.table_base[:-1], starts.diff())
    buckets = bucketize(ids, starts, shards.row_shards, shards.world, backend)
    owners, rows = torch.empty_like(keys), torch.empty_like(keys)
    owners[buckets.order] = torch.repeat_interleave(torch.arange(shards.world), buckets.counts)
    rows[buckets.order] = buckets.rows
    return owners, rows


def _with_copies(array: Tensor, own: int, copies: Tensor) -> Tensor:
    """The first `own` rows of `array` and then `copies`: in place while the memory behind it, which is the store's
    alone, reaches, else anew.
    """
    lines = own + len(copies)
    numbers = array.storage_offset() + lines * array.stride(0)
    if numbers * array.itemsize > array.untyped_storage().nbytes():
        return torch.cat([array[:own], copies])
    array = array.as_strided((lines, *array.shape[1:]), array.stride())
    array[own:] = copies
    return array
