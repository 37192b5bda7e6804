"""One embedding over a Plan: tables under different strategies behind one module.

Tables of one strategy, width and dtype form a *team*: one stacked array, one exchange, a fixed number of collectives
however many tables there are. The module gives its phases to a Schedule (training), or runs the forward ones itself
(evaluation).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor, nn

from comm.group import Group
from comm.plan import Placement, Plan
from comm.schedule import Frame, Phase, Schedule
from comm.shards import Shards
from comm.store import SparseOptimizer
from comm.strategy import INPUTS, Strategy, build
from kernels import Bags, TableSpec, check_ids
from kernels.bags import OnBadId

from .executor import Executor
from .initialise import init_rows
from .stores import DeviceStore


@dataclass(frozen=True)
class Team:
    """Tables that travel together: their numbers in the model, and the strategy that carries them."""

    numbers: tuple[int, ...]
    tables: tuple[TableSpec, ...]
    strategy: Strategy

    @property
    def label(self) -> str:
        """Prefix of the names of phases and values."""
        return self.strategy.label


class ShardedEmbedding(nn.Module):
    """The embedding tables of a model, spread over `group` as `plan` says.

    Rows begin as `init_rows` by (seed, table, row, column): the same weights under every plan. `forward(bags)` takes
    table-major bags of the whole model (local batch) to pooled [batch, sum of dims], tables in order. Gradients enter
    by `backward_phases`. An id out of its table's range is a ValueError that names table, position, id and bound
    (a kernel would read and write past the table); with `on_bad_id="drop"` it leaves its bag, and `dropped` counts it.
    """

    def __init__(
        self,
        plan: Plan,
        group: Group,
        optimizer: SparseOptimizer | None = None,
        seed: int = 0,
        backend: str | None = None,
        on_bad_id: OnBadId = "raise",
    ) -> None:
        super().__init__()
        if plan.world != group.size:
            raise ValueError(f"plan: expected one for {group.size} ranks, given one for {plan.world}")
        self.plan, self.group, self.tables = plan, group, plan.tables
        self.on_bad_id: OnBadId = on_bad_id
        self.dropped = 0
        self.optimizer = optimizer or SparseOptimizer()
        self.teams = tuple(self._team(name, numbers, seed, backend) for name, numbers in _teams(plan).items())

    def _team(self, label: str, numbers: tuple[int, ...], seed: int, backend: str | None) -> Team:
        tables = tuple(self.plan.tables[i] for i in numbers)
        placements = tuple(self.plan.placements[i] for i in numbers)
        shards = Shards(tables, placements, self.group.size)
        parts = [init_rows(tables[n].name, ids, tables[n].dim, seed, tables[n].dtype, tables[n].rows ** -0.5)
                 for n, ids in _held(shards, self.group.rank)]  # fmt: skip
        values = torch.cat(parts) if parts else torch.empty(0, tables[0].dim, dtype=tables[0].dtype)
        store = DeviceStore(values, self.optimizer)
        return Team(numbers, tables, build(placements[0].strategy, label, shards, self.group, store, backend))

    def forward(self, bags: Bags) -> Tensor:
        """Pooled rows [batch, sum of dims] for evaluation: no row will be updated."""
        schedule = Schedule(self.forward_phases(), (*INPUTS, "bags"))
        frame: Frame = {"bags": bags, "step": 0, "lr": 0.0, "training": False}
        Executor().run(schedule, frame)
        return frame["pooled"]

    def forward_phases(self) -> tuple[Phase, ...]:
        """From `bags` to `pooled`."""
        inputs = tuple(f"{team.label}.bags" for team in self.teams)
        outputs = tuple(f"{team.label}.pooled" for team in self.teams)
        return (
            Phase("split", self._split, ("bags",), ("checked", *inputs), "compute"),
            *(phase for team in self.teams for phase in team.strategy.forward()),
            Phase("pool", self._pool, ("checked", *outputs), ("pooled",), "compute"),
        )

    def backward_phases(self) -> tuple[Phase, ...]:
        """From `pooled_grad` to the update of every touched row."""
        grads = tuple(f"{team.label}.grad" for team in self.teams)
        return (
            Phase("unpool", self._unpool, ("checked", "pooled_grad"), grads, "compute"),
            *(phase for team in self.teams for phase in team.strategy.backward()),
        )

    def _split(self, bags: Bags) -> tuple[Bags, ...]:
        """The bags with every id within its table, then those of each team."""
        bags, dropped = check_ids(bags, self.tables, self.on_bad_id)
        self.dropped += dropped
        return bags, *(select_tables(bags, team.numbers, len(self.tables)) for team in self.teams)

    def _pool(self, bags: Bags, *pooled: Tensor) -> Tensor:
        """Every table's columns side by side; a mean divides the combined sum by the bag's length, weights or not."""
        columns: list[Tensor] = [torch.empty(0)] * len(self.tables)
        for team, sums in zip(self.teams, pooled, strict=True):
            for number, part in zip(
                team.numbers, rearrange(sums, "(t b) d -> t b d", t=len(team.numbers)), strict=True
            ):
                columns[number] = part / self._divisor(bags, number) if self._is_mean(number) else part
        return torch.cat(columns, dim=1)

    def _unpool(self, bags: Bags, grad: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The gradient of each team's sums, [tables * batch, dim]."""
        columns = list(torch.split(grad, [table.dim for table in self.tables], dim=1))
        for number in range(len(columns)):
            if self._is_mean(number):
                columns[number] = columns[number] / self._divisor(bags, number)
        parts = tuple(torch.cat([columns[number] for number in team.numbers]) for team in self.teams)
        return parts[0] if len(parts) == 1 else parts

    def _is_mean(self, number: int) -> bool:
        return self.tables[number].pooling == "mean"

    def _divisor(self, bags: Bags, number: int) -> Tensor:
        batch = len(bags) // len(self.tables)
        return bags.lengths[number * batch : (number + 1) * batch].clamp(min=1)[:, None]

    def gather_tables(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Every table whole, with its optimizer state, on every rank: for checkpoints of small models and for tests."""
        whole = {}
        for team in self.teams:
            team.strategy.store.flush()
            whole.update(_gather(team, self.group))
        return {table.name: whole[table.name] for table in self.tables}


def _teams(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Numbers of the tables that travel together, by label."""
    teams: dict[str, tuple[int, ...]] = {}
    for number, (table, placement) in enumerate(zip(plan.tables, plan.placements, strict=True)):
        label = f"{placement.strategy}/{table.dim}/{str(table.dtype).removeprefix('torch.')}"
        teams[label] = (*teams.get(label, ()), number)
    return teams


def select_tables(bags: Bags, numbers: Sequence[int], tables: int) -> Bags:
    """The bags of some tables, in order."""
    if len(numbers) == tables:
        return bags
    batch = len(bags) // tables
    spans = [(int(bags.offsets[n * batch]), int(bags.offsets[(n + 1) * batch])) for n in numbers]
    lengths = torch.cat([bags.lengths[n * batch : (n + 1) * batch] for n in numbers])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    weights = None if bags.weights is None else torch.cat([bags.weights[a:b] for a, b in spans])
    return Bags(torch.cat([bags.ids[a:b] for a, b in spans]), offsets, weights)


def _is_replicated(placements: Sequence[Placement]) -> bool:
    return placements[0].strategy == "replicated"


def _held(shards: Shards, rank: int) -> list[tuple[int, Tensor]]:
    """What `rank`'s array holds, in order: table number and ids of each run of rows."""
    if _is_replicated(shards.placements):
        return [(number, torch.arange(table.rows)) for number, table in enumerate(shards.tables)]
    return [(cell.table, cell.ids()) for cell in shards.cells if cell.rank == rank]


def _gather(team: Team, group: Group) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The team's tables whole, from every rank's array."""
    shards, store = team.strategy.shards, team.strategy.store
    arrays = [store.values] if store.state is None else [store.values, store.state]
    if _is_replicated(shards.placements):
        everything, runs = arrays, _held(shards, group.rank)
    else:
        sizes = list(shards.rows_of_rank)
        everything = [group.all_gather(array, sizes, f"{team.label}.whole") for array in arrays]
        runs = [run for rank in range(group.size) for run in _held(shards, rank)]
    whole = [[array.new_empty(table.rows, *array.shape[1:]) for array in everything] for table in shards.tables]
    ends = torch.tensor([0] + [len(ids) for _, ids in runs]).cumsum(0).tolist()
    for (number, ids), (begin, end) in zip(runs, pairwise(ends), strict=True):
        for target, array in zip(whole[number], everything, strict=True):
            target[ids] = array[begin:end]
    return {
        table.name: (parts[0], parts[1] if len(parts) > 1 else None)
        for table, parts in zip(shards.tables, whole, strict=True)
    }
