"""Finds a plan: for every table a cluster, row parts, blocks of columns and ranks, under a cap on each rank's memory.

Seeds are greedy: every table by its cheapest option under perfect spread, placed by descending load where load is
least; the same within the cheapest set of teams, or without options whose hottest part alone takes long; and every
table in rows over a node. Plans handed in (`seeds`) are seeds too. In the best of them classes of equal tables, then
single tables try their other options; then it is annealed (`_moves.py`), and every table tries once more. Restarts
take the next seeds too. Same arguments, same plan: ties fall by table and rank, random numbers by `seed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comm.plan import Placement, Plan
from comm.topology import Topology
from comm.wire import Wire
from kernels import TableSpec
from kernels.sparse_update.optimizer import STATES

from ._arrays import BUFFER, EVERYWHERE, NODES, Fixed, Floats, Ints, State, empty_state
from ._load import table_bytes
from ._moves import Choice, anneal, greedy, rebuild, worth
from ._sweeps import runners_up, sweep_classes
from .bound import Means, bound, means
from .score import KINDS, OVERLAPS, Overlap, Score, Team, dense_seconds, fix, score, teams_of
from .workload import Workload

MOVES = 30_000
HOT, COLD = 0.3, 0.003
"""Temperature at the start, in an even share of a table in the step, and at the end, over that."""
FEW, RESTARTS = 64, 6
WARMER = 6.0
"""Every second restart begins at so many times that temperature."""
SWEEPS = 3
"""Over classes of equal tables before annealing, and over tables after it, at the most."""
TRIED = 8
"""Options of a table that are tried."""
LONG = 0.5
"""A seed leaves out options whose hottest part alone takes more than this part of the bound."""


@dataclass(frozen=True)
class Options:
    """What the search may use: `clusters` (of `score.KINDS`), row parts, blocks of columns at least `narrowest` wide.

    Without `rows` pooled tables are whole. EMBark's three clusters are the default; `unique_node` and the flat
    `gridwise` are more.
    """

    clusters: tuple[str, ...] = ("replicated_dense", "hierarchical", "unique")
    rows: bool = True
    columns: bool = True
    wire: Wire = "table"
    narrowest: int = 32

    def __post_init__(self) -> None:
        if unknown := [name for name in self.clusters if name not in KINDS]:
            raise ValueError(f"options: unknown cluster {unknown[0]!r}: choose of {', '.join(KINDS)}")
        if not self.clusters:
            raise ValueError(f"options: expected at least one cluster of {', '.join(KINDS)}, given none")


@dataclass(frozen=True)
class Reason:
    """Why a table is where it is: what was `chosen`, the best other option tried and how much longer a step takes
    under it (seconds; None if there was no other).
    """

    table: str
    chosen: str
    runner_up: str
    longer_s: float | None

    def __str__(self) -> str:
        if self.longer_s is None:
            return f"{self.table}: {self.chosen}; nothing else is allowed"
        return f"{self.table}: {self.chosen}; {self.runner_up} takes {1e6 * self.longer_s:+.2f} us a step"


@dataclass(frozen=True)
class Planned:
    """A plan with its score, the seconds that no plan over the same options can beat, and a reason for every table."""

    plan: Plan
    score: Score
    bound_s: float
    reasons: tuple[Reason, ...]
    seed: str
    """Where the search began."""

    @property
    def gap(self) -> float:
        """How far the step is above the bound, as a part of the bound."""
        return self.score.step_s / self.bound_s - 1

    def __str__(self) -> str:
        memory = max(self.score.memory) / 2**30
        head = (
            f"plan {self.plan.hash}: {1e3 * self.score.step_s:.3f} ms a step, at least {1e3 * self.bound_s:.3f} ms "
            f"(gap {100 * self.gap:.0f} %), {memory:.2f} GiB on the fullest rank"
        )
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


def search(
    workload: Workload,
    topology: Topology,
    cap: float,
    overlap: Overlap = "none",
    options: Options | None = None,
    moves: int = MOVES,
    restarts: int | None = None,
    seed: int = 0,
    seeds: Sequence[Plan] = (),
) -> Planned:
    """The best plan found with `moves` tries in each of the `restarts`; `cap` bytes of memory a rank, buffers included.

    By default small models (FEW tables) begin RESTARTS times, from other seeds and temperatures, and others once. With
    no moves there is no annealing: classes and tables try their options from the best seed, and that is all.

    Raises ValueError for a table none of whose options fits on an empty rank, and for a cap that no plan found keeps:
    both name table, bytes and the largest free rank.
    """
    options = options or Options()
    space = Space(workload, topology, options, seeds)
    space.check_cap(cap)
    dense = dense_seconds(workload.dense, workload.batch / topology.world, topology)
    mode = OVERLAPS.index(overlap)
    m = means(space.fixed, space.options, space.allowed & ~space.seeded, mode)
    at_least = bound(m, space.options, dense, mode)
    f, state, back = space.fixed, space.empty(), space.empty()
    own = means(f, space.options, space.allowed, mode) if seeds else m
    starts = _starts(space, own, at_least.teams, seeds, state, cap, dense, mode)
    best: tuple[float, str, Choice] | None = None
    hot = HOT / len(workload.tables)
    turns = restarts or (RESTARTS if len(workload.tables) <= FEW else 1)
    for turn in range(turns):
        rng = np.random.default_rng([seed, turn])
        _, name, start = starts[turn % len(starts)]
        choice = start._replace(option=start.option.copy(), ranks=start.ranks.copy(), load=start.load.copy())
        rebuild(f, state, choice)
        for _ in range(SWEEPS):
            if not sweep_classes(f, state, choice, back, dense, mode, cap, space.classes, rng):
                break
        runners_up(f, state, choice, back, dense, mode, cap, True, False, rng)
        if moves:
            warm = hot * WARMER if turn % 2 else hot
            anneal(f, state, choice, back, dense, mode, cap, moves, warm, COLD * hot, rng)
        for _ in range(SWEEPS if moves else 0):
            if not runners_up(f, state, choice, back, dense, mode, cap, True, True, rng)[2]:
                break
        rebuild(f, state, choice)
        found = worth(state, dense, mode, cap, 1e6)[1]
        if best is None or found < best[0]:
            best = found, name, choice
    assert best is not None
    _, name, choice = best
    rebuild(f, state, choice)
    space.check_fit(state, choice, cap)
    plan = space.plan(choice)
    second, seconds, _ = runners_up(f, state, choice, back, dense, mode, cap, False, True, np.random.default_rng(0))
    scored = score(plan, workload, topology, overlap)
    reasons = tuple(space.reason(choice, t, int(second[t]), seconds[t] - scored.step_s) for t in range(len(f.ids)))
    return Planned(plan, scored, at_least.seconds, reasons, name)


class Space:
    """The options of every table, as arrays: `options` [n, 3] (number of the team, columns, parts; 0: everywhere),
    `keys` the same with the team itself, `allowed` [tables, n], `seeded` those of plans handed in alone, `classes`
    [tables] of equal tables.
    """

    def __init__(self, workload: Workload, topology: Topology, options: Options, seeds: Sequence[Plan]) -> None:
        self.workload, self.world, local = workload, topology.world, topology.ranks_per_node
        parts = sorted({*(1 << i for i in range(self.world.bit_length()) if 1 << i <= self.world), local, self.world})
        whole = "row" in STATES[workload.optimizer.name]  # norms of rows in columns have no price
        found: dict[tuple[Team, int, int], None] = {}
        for spec in {(t.dim, t.dtype): t for t in workload.specs}.values():
            for cluster in options.clusters:
                for columns in (1, 2, 4, 8):
                    narrow = spec.dim % columns or spec.dim // columns < min(options.narrowest, spec.dim)
                    if columns > 1 and (not options.columns or whole or narrow or cluster == "replicated_dense"):
                        continue
                    team = Team(cluster, spec.dim // columns, spec.dtype, options.wire)
                    if cluster == "replicated_dense":
                        found[team, 1, 0] = None
                        continue
                    for p in parts if options.rows or cluster.startswith("unique") else (1,):
                        if columns * p <= self.world and (columns == 1 or not cluster.startswith("unique")):
                            found[team, columns, p] = None
        own = len(found)
        for plan in seeds:
            for team, numbers in teams_of(plan.placements, workload).items():
                for t in numbers:
                    found[team, plan.placements[t].columns, plan.placements[t].parts] = None
        self.teams = list(dict.fromkeys(team for team, _, _ in found))
        self.keys = list(found)
        self.options = np.array([(self.teams.index(team), c, p) for team, c, p in found], np.int64)
        self.allowed = np.array([[self._allows(t, key) for key in found] for t in workload.specs])
        self.allowed[:, own:] = False
        self.seeded = np.zeros_like(self.allowed)
        for plan in seeds:
            for t, o in enumerate(self.options_in(plan)):
                self.seeded[t, o] = not self.allowed[t, o]
        self.allowed |= self.seeded
        self.fixed: Fixed = fix(workload, topology, self.teams)
        like = [(load.table.rows, load.table.dim, load.table.dtype, load.hotness) for load in workload.tables]
        self.classes = np.array([list(dict.fromkeys(like)).index(one) for one in like])
        self.slots = max(1, int((self.options[:, 1] * self.options[:, 2]).max()))

    @staticmethod
    def _allows(table: TableSpec, key: tuple[Team, int, int]) -> bool:
        team, columns, parts = key
        return table.dim == team.width * columns and table.dtype == team.dtype and parts <= table.rows

    def options_in(self, plan: Plan) -> list[int]:
        """The option of every table under `plan`."""
        found = [0] * len(plan.tables)
        for team, numbers in teams_of(plan.placements, self.workload).items():
            for t in numbers:
                found[t] = self.keys.index((team, plan.placements[t].columns, plan.placements[t].parts))
        return found

    def empty(self) -> State:
        """Nothing placed."""
        return empty_state(len(self.teams), self.world, self.world // self.fixed.local)

    def shard_bytes(self, t: int, o: int) -> float:
        """Bytes of the largest shard of table t under option o."""
        k, _, parts = self.options[o]
        rows = self.fixed.rows[t] if parts == 0 else -(-self.fixed.rows[t] // parts)
        return float(table_bytes(self.fixed, t, k, rows))

    def check_cap(self, cap: float) -> None:
        """Refuse a table that fits nowhere, and a cap below what all tables take together."""
        total = 0.0
        for t, load in enumerate(self.workload.tables):
            options = np.flatnonzero(self.allowed[t])
            if not len(options):
                raise ValueError(f"table {load.table.name!r}: expected an option of its width, given none")
            least = min(self.shard_bytes(t, o) for o in options)
            if least > cap:
                raise ValueError(
                    f"table {load.table.name!r}: its smallest shard has {least:,.0f} bytes with optimizer state; "
                    f"the largest free rank has {cap:,.0f}: allow more row parts or raise the cap"
                )
            total += min(
                float(table_bytes(self.fixed, t, self.options[o, 0], load.table.rows))
                * (self.options[o, 1] if self.options[o, 2] else self.world)
                for o in options
            )
        if total > cap * self.world:
            raise ValueError(
                f"cap: expected at least {total / self.world:,.0f} bytes a rank for the tables alone, given "
                f"{cap:,.0f}: {total / self.world - cap:,.0f} too few"
            )

    def check_fit(self, state: State, choice: Choice, cap: float) -> None:
        """Refuse what does not fit, by the largest shard on the fullest rank."""
        memory = state.weights + state.total[BUFFER]
        full, free = int(memory.argmax()), int(memory.argmin())
        if memory[full] <= cap:
            return
        here = [
            (self.shard_bytes(t, o), -t)
            for t, o in enumerate(choice.option)
            if self.options[o, 2] == 0 or full in choice.ranks[t, : self.options[o, 1] * self.options[o, 2]]
        ]
        bytes_, t = max(here)
        raise ValueError(
            f"table {self.workload.tables[-t].table.name!r}: its shard of {bytes_:,.0f} bytes does not fit on rank "
            f"{full}; the largest free rank ({free}) has {max(cap - memory[free], 0):,.0f} bytes left. The best plan "
            f"found needs a cap of {memory[full]:,.0f} bytes a rank: {memory[full] - cap:,.0f} more than given"
        )

    def plan(self, choice: Choice) -> Plan:
        """As a Plan."""
        return self.plan_of([(int(o), choice.ranks[t]) for t, o in enumerate(choice.option)])

    def plan_of(self, chosen: Sequence[tuple[int, Ints]]) -> Plan:
        """The plan of (option, ranks) of every table; of `ranks` as many as the option has shards."""
        placements = []
        for t, (o, held) in enumerate(chosen):
            team, columns, parts = self.keys[o]
            ranks = tuple(int(r) for r in held[: columns * parts])
            placements.append(
                Placement(self.workload.tables[t].table.name, team.strategy, ranks, columns=columns, wire=team.wire)
            )
        return Plan(self.world, self.workload.specs, tuple(placements))

    def words(self, o: int) -> str:
        """An option in words."""
        team, columns, parts = self.keys[o]
        shape = [f"{parts} row parts"] * (parts > 1) + [f"{columns} blocks of columns"] * (columns > 1)
        return f"{team.strategy}" + (f" ({', '.join(shape)})" if shape else "")

    def reason(self, choice: Choice, t: int, second: int, longer: float) -> Reason:
        """Why table t is where it is."""
        name, chosen = self.workload.tables[t].table.name, self.words(int(choice.option[t]))
        return Reason(name, chosen, self.words(second), longer) if second >= 0 else Reason(name, chosen, "", None)


def _starts(
    space: Space,
    own: Means,
    teams: tuple[int, ...],
    seeds: Sequence[Plan],
    state: State,
    cap: float,
    dense: Floats,
    mode: int,
) -> list[tuple[float, str, Choice]]:  # fmt: skip
    """Seeds with their steps, best first."""
    f, tables = space.fixed, len(space.fixed.ids)
    found = []

    def choice_of(option: np.ndarray) -> Choice:
        ranks = np.zeros((tables, space.slots), np.int64)
        owner = np.where(np.isfinite(own.owner), own.owner, 0.0)
        return Choice(option.astype(np.int64), ranks, np.zeros(space.world), space.options, owner, tries)

    def hottest(t: int, o: int) -> float:
        """Seconds that the hottest part puts on its rank beyond an even share, if that is all it does."""
        k, columns, parts = space.options[o]
        if f.kind[k] == EVERYWHERE or f.kind[k] > NODES:
            return 0.0
        share = f.hot_share[t] + (1 - f.hot_share[t]) / parts
        return float(own.owner[t, o]) * f.world / columns * share

    least = own.whole.min(1)
    limit = LONG * least.sum()
    long = np.array([[hottest(t, o) if space.allowed[t, o] else 0.0 for o in range(len(space.options))]
                     for t in range(tables)])  # fmt: skip
    spread = own.whole + long / f.world * 4
    by_node = np.array([key[2] != f.local or key[0].strategy not in ("hierarchical", "gridwise") for key in space.keys])
    tries = _tries(space, spread)
    outside = ~np.isin(space.options[:, 0], teams)
    tried = {
        "cheapest set of teams": np.where(outside[None, :], own.whole + 1.0, spread),
        "cheapest option of each table": own.whole,
        "cheapest option without long parts": np.where(long > limit, own.whole + long, own.whole),
        "cheapest option, hot parts weighed": spread,
        "rows over a node": np.where(by_node[None, :], own.whole + 1.0, own.whole),
    }
    for name, cost in tried.items():
        choice = choice_of(cost.argmin(1))
        load = own.owner[np.arange(tables), choice.option]
        order = np.lexsort((np.arange(tables), -load)).astype(np.int64)
        greedy(f, state, choice, order, cap, np.random.default_rng(0))
        found.append((worth(state, dense, mode, cap, 1e6)[1], name, choice))
    for number, plan in enumerate(seeds):
        choice = choice_of(np.array(space.options_in(plan)))
        for t, placement in enumerate(plan.placements):
            choice.ranks[t, : len(placement.ranks)] = placement.ranks
        rebuild(f, state, choice)
        found.append((worth(state, dense, mode, cap, 1e6)[1], f"plan {number} handed in", choice))
    return sorted(found, key=lambda start: start[0])


def _tries(space: Space, cost: Floats) -> np.ndarray:
    """The TRIED most likely options of every table, at least one of each kind of team, [tables, TRIED], -1 for none."""
    tries = np.full((len(cost), TRIED), -1, np.int64)
    kind = space.fixed.kind[space.options[:, 0]]
    for t in range(len(cost)):
        order = [o for o in np.argsort(cost[t], kind="stable") if space.allowed[t, o]]
        firsts = [next(o for o in order if kind[o] == k) for k in dict.fromkeys(kind[order])]
        rest = [o for o in order if o not in firsts]
        chosen = sorted([*firsts, *rest[: TRIED - len(firsts)]], key=order.index)
        tries[t, : len(chosen)] = chosen
    return tries
