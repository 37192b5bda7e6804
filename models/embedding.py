"""One embedding over a Plan: tables under different strategies behind one module.

Blocks of columns of one strategy, width, dtype and wire form a *team*: one stacked array, one exchange, a fixed number
of collectives however many tables there are. The module gives its phases to a Schedule (training), or runs the forward
ones itself (evaluation).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args

import torch
from einops import rearrange
from torch import Tensor, nn

from comm.group import Group
from comm.plan import Placement, Plan
from comm.schedule import Frame, Phase, Schedule
from comm.shards import Shards
from comm.store import Store
from comm.strategy import INPUTS, Strategy, build
from kernels import Bags, Optimizer, check_ids
from kernels.bags import OnBadId

from .executor import Executor
from .initial_rows import InitialRows
from .initialise import Init, init_rows, zero_rows
from .stores import StoreFactory, device_store
from .tier import StoreSpec


@dataclass(frozen=True)
class Team:
    """Blocks of columns that travel together: table number in the model and block of each, and the strategy."""

    blocks: tuple[tuple[int, int], ...]
    strategy: Strategy

    def select(self, bags: Bags, tables: int) -> Bags:
        """The team's bags, block by block, out of those of all `tables`."""
        return _select(bags, [number for number, _ in self.blocks], tables)

    @property
    def label(self) -> str:
        """Prefix of the names of phases and values."""
        return self.strategy.label


class ShardedEmbedding(nn.Module):
    """The embedding tables of a model, spread over `group` as `plan` says.

    Rows begin as `init_rows` by (seed, table, row, column), or with `init="zeros"` as zeros, whose memory is taken when
    a row is first touched: the same weights under every plan. `forward(bags)` takes
    table-major bags of the whole model (local batch) to pooled [batch, sum of dims], tables in order. Gradients enter
    by `backward_phases`. An id out of its table's range is a ValueError that names table, position, id and bound
    (a kernel would read and write past the table); with `on_bad_id="drop"` it leaves its bag, and `dropped` counts it.
    `store` makes the memory of each team of tables, by default all of it on the device.
    """

    def __init__(
        self,
        plan: Plan,
        group: Group,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        backend: str | None = None,
        on_bad_id: OnBadId = "raise",
        init: Init = "uniform",
        store: StoreFactory = device_store,
    ) -> None:
        super().__init__()
        if init not in get_args(Init):
            raise ValueError(f"init: expected one of {', '.join(get_args(Init))}, given {init!r}")
        self.init: Init = init
        if plan.world != group.size:
            raise ValueError(f"plan: expected one for {group.size} ranks, given one for {plan.world}")
        self.plan, self.group, self.tables = plan, group, plan.tables
        self.on_bad_id: OnBadId = on_bad_id
        self.dropped = 0
        self.optimizer = optimizer or Optimizer()
        best = [table.name for table in self.tables if table.pooling == "max"]
        if best:
            raise ValueError(
                f"table {best[0]!r}: expected pooling sum or mean in a sharded embedding (its exchanges add partial "
                "sums), given 'max'; kernels.EmbeddingBagCollection pools maxima on one device"
            )
        narrow = [table.name for table in self.tables if table.dtype not in (torch.float32, torch.float64)]
        if narrow:
            raise ValueError(
                f"table {narrow[0]!r}: expected dtype float32 or float64 in a sharded embedding, whose sums do not "
                "depend on the rank; kernels.sparse_update trains narrower tables"
            )
        self.teams = tuple(self._team(name, blocks, seed, backend, store) for name, blocks in _teams(plan).items())

    def _team(
        self, label: str, blocks: tuple[tuple[int, int], ...], seed: int, backend: str | None, make_store: StoreFactory
    ) -> Team:
        placements = tuple(self.plan.placements[i].block(column) for i, column in blocks)
        tables = tuple(replace(self.tables[i], dim=self._width(i)) for i, _ in blocks)
        shards = Shards(tables, placements, self.group.size)
        store = make_store(self._spec(label, shards, blocks, seed))
        _refuse_moving_rows(store, shards, self.optimizer, label)
        return Team(blocks, build(placements[0].strategy, label, shards, self.group, store, backend))

    def _spec(self, label: str, shards: Shards, blocks: tuple[tuple[int, int], ...], seed: int) -> StoreSpec:
        rows, table = rows_held(shards, self.group.rank), shards.tables[0]
        first_columns = [column * table.dim for _, column in blocks]
        uniform = InitialRows(shards, self.group.rank, first_columns, seed)
        if self.init == "zeros":
            return StoreSpec(
                label, rows, table.dim, table.dtype, self.optimizer,
                initial=lambda some: torch.zeros(len(some), table.dim, dtype=table.dtype),
                whole=lambda: zero_rows(rows, table.dim, table.dtype), table_of=uniform.table_of,
            )  # fmt: skip
        return StoreSpec(
            label, rows, table.dim, table.dtype, self.optimizer,
            initial=uniform, whole=lambda: self._uniform(shards, blocks, seed), table_of=uniform.table_of,
        )  # fmt: skip

    def _uniform(self, shards: Shards, blocks: tuple[tuple[int, int], ...], seed: int) -> Tensor:
        parts = []
        for n, ids in held(shards, self.group.rank):
            table, first = shards.tables[n], blocks[n][1] * shards.tables[n].dim
            parts.append(init_rows(table.name, ids, table.dim, seed, table.dtype, table.rows**-0.5, first))
        return torch.cat(parts) if parts else torch.empty(0, shards.tables[0].dim, dtype=shards.tables[0].dtype)

    def _width(self, number: int) -> int:
        return self.tables[number].dim // self.plan.placements[number].columns

    def forward(self, bags: Bags) -> Tensor:
        """Pooled rows [batch, sum of dims] for evaluation: no row will be updated."""
        schedule = Schedule(self.forward_phases(), (*INPUTS, "bags"))
        frame: Frame = {"bags": bags, "step": 0, "lr": 0.0, "training": False}
        Executor().run(schedule, frame)
        return frame["pooled"]

    def forward_phases(self) -> tuple[Phase, ...]:
        """From `bags` to `pooled`."""
        outputs = tuple(f"{team.label}.pooled" for team in self.teams)
        return (
            self.split_phase(),
            *(phase for team in self.teams for phase in team.strategy.forward()),
            Phase("pool", self.pool, ("checked", *outputs), ("pooled",), "compute"),
        )

    def backward_phases(self) -> tuple[Phase, ...]:
        """From `pooled_grad` to the update of every touched row."""
        grads = tuple(f"{team.label}.grad" for team in self.teams)
        return (
            Phase("unpool", self.unpool, ("checked", "pooled_grad"), grads, "compute"),
            *(phase for team in self.teams for phase in team.strategy.backward()),
        )

    def split_phase(self) -> Phase:
        """From `bags` to `checked`, with every id within its table, and the bags of each team."""
        inputs = tuple(f"{team.label}.bags" for team in self.teams)
        return Phase("split", self._split, ("bags",), ("checked", *inputs), "compute")

    def _split(self, bags: Bags) -> tuple[Bags, ...]:
        """The bags with every id within its table, then those of each team."""
        bags, dropped = check_ids(bags, self.tables, self.on_bad_id)
        self.dropped += dropped
        return bags, *(team.select(bags, len(self.tables)) for team in self.teams)

    def pool(self, bags: Bags, *pooled: Tensor) -> Tensor:
        """Every table's columns side by side; a mean divides the combined sum by the bag's length, weights or not."""
        found: dict[tuple[int, int], Tensor] = {}
        for team, sums in zip(self.teams, pooled, strict=True):
            found.update(zip(team.blocks, rearrange(sums, "(t b) d -> t b d", t=len(team.blocks)), strict=True))
        for (number, _), part in found.items():
            if self._is_mean(number):
                part /= self._divisor(bags, number)
        return torch.cat([found[block] for block in sorted(found)], dim=1)

    def unpool(self, bags: Bags, grad: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The gradient of each team's sums, [blocks * batch, width]."""
        columns = list(torch.split(grad, [table.dim for table in self.tables], dim=1))
        for number in range(len(columns)):
            if self._is_mean(number):
                columns[number] = columns[number] / self._divisor(bags, number)
        pieces = [torch.split(part, self._width(number), dim=1) for number, part in enumerate(columns)]
        parts = tuple(torch.cat([pieces[number][column] for number, column in team.blocks]) for team in self.teams)
        return parts[0] if len(parts) == 1 else parts

    def _is_mean(self, number: int) -> bool:
        return self.tables[number].pooling == "mean"

    def _divisor(self, bags: Bags, number: int) -> Tensor:
        batch = len(bags) // len(self.tables)
        return bags.lengths[number * batch : (number + 1) * batch].clamp(min=1)[:, None]

    def gather_tables(self) -> dict[str, tuple[Tensor, ...]]:
        """Every table whole, then its optimizer's states, on every rank: for checkpoints of small models, and tests."""
        blocks: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        for team in self.teams:
            team.strategy.store.flush()
            blocks.update(zip(team.blocks, _gather(team, self.group), strict=True))
        whole = {}
        for number, table in enumerate(self.tables):
            parts = [blocks[number, column] for column in range(self.plan.placements[number].columns)]
            # a row-wise state is the same number beside every block of columns
            whole[table.name] = tuple(
                torch.cat(arrays, dim=1) if arrays[0].ndim == 2 else arrays[0] for arrays in zip(*parts, strict=True)
            )
        return whole


def _teams(plan: Plan) -> dict[str, tuple[tuple[int, int], ...]]:
    """Table number and column of the blocks that travel together, by label."""
    teams: dict[str, tuple[tuple[int, int], ...]] = {}
    for number, (table, placement) in enumerate(zip(plan.tables, plan.placements, strict=True)):
        width, dtype = table.dim // placement.columns, str(table.dtype).removeprefix("torch.")
        label = f"{placement.strategy}/{width}/{dtype}" + ("" if placement.wire == "table" else f"/{placement.wire}")
        teams[label] = (*teams.get(label, ()), *((number, column) for column in range(placement.columns)))
    return teams


def _select(bags: Bags, numbers: Sequence[int], tables: int) -> Bags:
    """The bags of some tables, in order."""
    if list(numbers) == list(range(tables)):
        return bags
    batch = len(bags) // tables
    spans = [(int(bags.offsets[n * batch]), int(bags.offsets[(n + 1) * batch])) for n in numbers]
    lengths = torch.cat([bags.lengths[n * batch : (n + 1) * batch] for n in numbers])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    weights = None if bags.weights is None else torch.cat([bags.weights[a:b] for a, b in spans])
    return Bags(torch.cat([bags.ids[a:b] for a, b in spans]), offsets, weights)


def _refuse_moving_rows(store: Store, shards: Shards, optimizer: Optimizer, label: str) -> None:
    """Raise ValueError if the strategy finds rows by their number, and the store keeps them elsewhere."""
    if store.slots_are_rows:
        return
    if any(placement.hot for placement in shards.placements):
        raise ValueError(f"{label!r}: expected a store whose slots are its rows (hot copies are read by number)")
    if shards.siblings and optimizer.name.startswith("rowwise"):
        raise ValueError(
            f"{label!r}: expected whole rows, or an optimizer without row-wise state: holders of one row's "
            "columns find each other's square sums by row number, which a cached row is not kept by"
        )


def _is_replicated(placements: Sequence[Placement]) -> bool:
    return not placements[0].ranks


def rows_held(shards: Shards, rank: int) -> int:
    """Rows of `rank`'s array, as many as `held` lists."""
    if _is_replicated(shards.placements):
        return sum(table.rows for table in shards.tables)
    return shards.rows_of_rank[rank] + len(shards.hot_keys)


def held(shards: Shards, rank: int) -> list[tuple[int, Tensor]]:
    """What `rank`'s array holds, in order: table number and ids of each run of rows."""
    if _is_replicated(shards.placements):
        return [(number, torch.arange(table.rows)) for number, table in enumerate(shards.tables)]
    own = [(cell.table, cell.ids()) for cell in shards.cells if cell.rank == rank]
    return own + [(number, torch.tensor(p.hot, dtype=torch.int64)) for number, p in enumerate(shards.placements)]


def _gather(team: Team, group: Group) -> list[tuple[Tensor, ...]]:
    """The team's blocks, all rows and their states, from every rank's array."""
    shards, store = team.strategy.shards, team.strategy.store
    if store.slots_are_rows:
        arrays = [store.values, *store.states]
    else:
        arrays = list(store.read(torch.arange(rows_held(shards, group.rank))))
    if _is_replicated(shards.placements):
        everything, runs = arrays, held(shards, group.rank)
    else:
        sizes = [rows + len(shards.hot_keys) for rows in shards.rows_of_rank]
        everything = [group.all_gather(array, sizes, f"{team.label}.whole") for array in arrays]
        # hot copies come last on every rank, so the last rank's overwrite the owners' dead rows
        runs = [run for rank in range(group.size) for run in held(shards, rank)]
    whole = [[array.new_empty(table.rows, *array.shape[1:]) for array in everything] for table in shards.tables]
    ends = torch.tensor([0] + [len(ids) for _, ids in runs]).cumsum(0).tolist()
    for (number, ids), (begin, end) in zip(runs, pairwise(ends), strict=True):
        for target, array in zip(whole[number], everything, strict=True):
            target[ids] = array[begin:end]
    return [tuple(parts) for parts in whole]
