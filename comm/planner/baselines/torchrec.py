"""TorchRec's planner: its plans as a Plan, and its options and cost model under another search.

The plans and options come from TorchRec itself (experiments/embark/_torchrec.py); nothing of its estimates is rebuilt
here. An option is one way to shard one table: where its shards may go, and the milliseconds and bytes of each. Its cost
model is the largest sum of milliseconds over ranks (`NoopPerfModel`, torchrec/distributed/planner/perf_models.py); its
rules for shards are in partitioners.py: `uniform`, shard i on rank i; `host`, `table_row_wise` shard i on the i-th rank
of one node, other shards on any ranks of one node; `device`, any ranks.
"""

# ruff: noqa: NPY002 Numba compiles no other generator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from comm.plan import Placement, Plan
from comm.wire import Wire
from kernels import TableSpec

STRATEGIES = {
    "data_parallel": "replicated_dense",
    "table_wise": "gridwise",
    "row_wise": "gridwise",
    "column_wise": "gridwise",
    "table_column_wise": "gridwise",
    "table_row_wise": "hierarchical",
    "grid_shard": "hierarchical",
}
"""The strategy that moves what TorchRec's sharding type moves: sums meet inside a node where it reduces there."""
KERNELS = ("fused", "dense")
"""Those that keep a table in device memory."""
PLACES = ("uniform", "row_of_host", "host", "device")


def to_plan(chosen: Sequence[Mapping[str, Any]], tables: Sequence[TableSpec], world: int, wire: Wire = "table") -> Plan:
    """TorchRec's `plan` (of a file of `torchrec_plans`) as a Plan.

    Row parts are modulo, where TorchRec takes ranges: ids come in no order, so either part is as busy.
    Raises ValueError for a kernel that keeps rows elsewhere than in device memory, and for an unknown sharding type.
    """

    def place(choice: Mapping[str, Any]) -> Placement:
        name, sharding, kernel = choice["table"], choice["sharding"], choice["kernel"]
        if sharding not in STRATEGIES or kernel not in KERNELS:
            raise ValueError(
                f"table {name!r}: expected sharding {', '.join(STRATEGIES)} and kernel {', '.join(KERNELS)}, given "
                f"{sharding} and {kernel}"
            )
        if sharding == "data_parallel":
            return Placement(name, STRATEGIES[sharding], wire=wire)
        return Placement(name, STRATEGIES[sharding], tuple(choice["ranks"]), columns=choice["columns"], wire=wire)

    return Plan(world, tuple(tables), tuple(place(choice) for choice in chosen))


@dataclass(frozen=True)
class Option:
    """One way to shard a table: `place`, one of PLACES; `ms`, `hbm`, `ddr` [shards] milliseconds and bytes of each."""

    sharding: str
    kernel: str
    place: str
    ms: np.ndarray
    hbm: np.ndarray
    ddr: np.ndarray


@dataclass(frozen=True)
class Choice:
    """Of one table: the number of its option, and the rank of each shard."""

    option: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """The options of every table, and the bytes each rank has for them, `hbm` and `ddr` [world]."""

    options: tuple[tuple[Option, ...], ...]
    hbm: np.ndarray
    ddr: np.ndarray
    ranks_per_node: int

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Space":
        """From a file of `torchrec_plans` with options; runs of equal shards are written once."""

        def option(o: Mapping[str, Any]) -> Option:
            counts, ms, hbm, ddr = (np.array(column) for column in zip(*o["shards"], strict=True))
            place = "row_of_host" if o["sharding"] == "table_row_wise" else o["place"]
            if place not in PLACES:
                raise ValueError(f"option {o['sharding']}: expected a place of {', '.join(PLACES)}, given {place}")
            return Option(o["sharding"], o["kernel"], place, ms.repeat(counts), hbm.repeat(counts), ddr.repeat(counts))

        tables = tuple(tuple(option(o) for o in table) for table in fields["options"])
        hbm, ddr = (np.array(fields[kind], dtype=float) for kind in ("hbm", "ddr"))
        return Space(tables, hbm, ddr, fields["ranks_per_node"])

    def rate(self, choices: Sequence[Choice]) -> float:
        """The cost model: milliseconds of the busiest rank.

        Raises ValueError if a rank has not the bytes, with how many it lacks.
        """
        load, hbm, ddr = np.zeros(len(self.hbm)), self.hbm.copy(), self.ddr.copy()
        for table, choice in zip(self.options, choices, strict=True):
            option = table[choice.option]
            ranks = list(choice.ranks)
            np.add.at(load, ranks, option.ms)
            np.subtract.at(hbm, ranks, option.hbm)
            np.subtract.at(ddr, ranks, option.ddr)
        lacks = -min(hbm.min(), ddr.min())
        if lacks > 0:
            raise ValueError(f"choices: a rank lacks {lacks:.4g} bytes")
        return float(load.max())


def choices_of(fields: Mapping[str, Any]) -> tuple[Choice, ...]:
    """TorchRec's own plan, of a file with options."""

    def choice(chosen: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> Choice:
        count = len(chosen["ranks"])
        (number,) = (
            i for i, o in enumerate(options)
            if (o["sharding"], o["kernel"]) == (chosen["sharding"], chosen["kernel"])
            and sum(run[0] for run in o["shards"]) == count
        )  # fmt: skip
        return Choice(number, tuple(chosen["ranks"]))

    return tuple(choice(c, o) for c, o in zip(fields["plan"], fields["options"], strict=True))


def search(space: Space, start: Sequence[Choice], moves: int = 200_000, seed: int = 0) -> tuple[Choice, ...]:
    """A choice for every table that is at least as good as `start` under the cost model.

    A move gives one or two tables another option or other ranks, their shards one by one to the least busy rank with
    room, or to any; simulated annealing over the 8-norm of the ranks' milliseconds, which also sees the ranks below the
    busiest one. The best by the cost model itself is kept. Deterministic in `seed`.
    """
    options = [option for table in space.options for option in table]
    first_option = np.cumsum([0] + [len(table) for table in space.options])
    first_shard = np.cumsum([0] + [len(option.ms) for option in options])
    places = np.array([PLACES.index(option.place) for option in options])
    ms, hbm, ddr = (np.concatenate([getattr(o, name) for o in options]).astype(float) for name in ("ms", "hbm", "ddr"))
    chosen = np.array([c.option for c in start]) + first_option[:-1]
    ranks = np.full((len(chosen), max(len(option.ms) for option in options)), -1)
    for table, choice in enumerate(start):
        ranks[table, : len(choice.ranks)] = choice.ranks
    _anneal(first_option, first_shard, places, ms, hbm, ddr, space.hbm, space.ddr, space.ranks_per_node,
            chosen, ranks, moves, seed)  # fmt: skip
    counts = np.diff(first_shard)
    found = tuple(
        Choice(int(option - first_option[table]), tuple(ranks[table, : counts[option]].tolist()))
        for table, option in enumerate(chosen)
    )
    return found if space.rate(found) < space.rate(start) else tuple(start)


HOT, COLD = 0.03, 1e-4
"""Temperatures at the start and the end, in parts of the objective."""
BY_CHANCE = 0.15
"""Of shards that go to any rank, or node."""
PAIRS = 0.3
"""Of moves that take two tables: where memory is tight, one can often move only if another does."""
ANOTHER = 0.7
"""Of tables in a move that get another option, not just other ranks."""


@njit(cache=True)
def _anneal(first_option, first_shard, places, ms, hbm, ddr, hbm_cap, ddr_cap, local, chosen, ranks, moves, seed):  # noqa: ANN001, ANN202
    """Improves `chosen` [tables] and `ranks` [tables, shards] in place."""
    np.random.seed(seed)
    tables = len(chosen)
    load, hbm_left, ddr_left = np.zeros(len(hbm_cap)), hbm_cap.copy(), ddr_cap.copy()
    for t in range(tables):
        _take(first_shard[chosen[t]], first_shard[chosen[t] + 1], ranks[t], 1, ms, hbm, ddr, load, hbm_left, ddr_left)
    best, best_chosen, best_ranks = load.max(), chosen.copy(), ranks.copy()
    score = _norm(load)
    moved, new, kept = np.zeros(2, np.int64), np.zeros(2, np.int64), ranks[:2].copy()
    for move in range(moves):
        temperature = HOT * (COLD / HOT) ** (move / moves)
        moved[0] = np.random.randint(tables)
        moved[1] = np.random.randint(tables)
        count = 2 if moved[1] != moved[0] and np.random.random() < PAIRS else 1
        for i in range(count):
            t = moved[i]
            kept[i] = ranks[t]
            new[i] = chosen[t]
            if np.random.random() < ANOTHER:
                new[i] = first_option[t] + np.random.randint(first_option[t + 1] - first_option[t])
            _take(first_shard[chosen[t]], first_shard[chosen[t] + 1], ranks[t], -1,
                  ms, hbm, ddr, load, hbm_left, ddr_left)  # fmt: skip
        placed = 0
        for i in range(count):
            if not _place(places[new[i]], first_shard[new[i]], first_shard[new[i] + 1], ranks[moved[i]], local,
                          ms, hbm, ddr, load, hbm_left, ddr_left):  # fmt: skip
                break
            placed += 1
        after = _norm(load) if placed == count else np.inf
        if after <= score or np.random.random() < np.exp((score - after) / (temperature * score)):
            score = after
            for i in range(count):
                chosen[moved[i]] = new[i]
            if load.max() < best:
                best = load.max()
                best_chosen[:] = chosen
                best_ranks[:] = ranks
            continue
        for i in range(placed):
            _take(first_shard[new[i]], first_shard[new[i] + 1], ranks[moved[i]], -1,
                  ms, hbm, ddr, load, hbm_left, ddr_left)  # fmt: skip
        for i in range(count):
            t = moved[i]
            ranks[t] = kept[i]
            _take(first_shard[chosen[t]], first_shard[chosen[t] + 1], kept[i], 1,
                  ms, hbm, ddr, load, hbm_left, ddr_left)  # fmt: skip
    chosen[:] = best_chosen
    ranks[:] = best_ranks


@njit(cache=True)
def _norm(load):  # noqa: ANN001, ANN202
    """8-norm."""
    total = 0.0
    for x in load:
        square = x * x
        fourth = square * square
        total += fourth * fourth
    return total**0.125


@njit(cache=True)
def _take(begin, end, at, sign, ms, hbm, ddr, load, hbm_left, ddr_left):  # noqa: ANN001, ANN202
    """Puts shards `begin` to `end` on the ranks `at` (sign 1) or takes them away (-1)."""
    for shard in range(begin, end):
        rank = at[shard - begin]
        load[rank] += sign * ms[shard]
        hbm_left[rank] -= sign * hbm[shard]
        ddr_left[rank] -= sign * ddr[shard]


@njit(cache=True)
def _place(place, begin, end, at, local, ms, hbm, ddr, load, hbm_left, ddr_left):  # noqa: ANN001, ANN202
    """Puts shards `begin` to `end` on ranks, written to `at`; False, with nothing placed, where there is no room."""
    world = len(load)
    first, last = 0, world
    if place == 1 or place == 2:
        first = np.random.randint(world // local) * local
        if np.random.random() >= BY_CHANCE:
            least = np.inf
            for node in range(0, world, local):
                total = load[node : node + local].sum()
                if total < least:
                    least, first = total, node
        last = first + local
    for shard in range(begin, end):
        rank = -1
        if place <= 1:
            rank = first + shard - begin
            if hbm[shard] > hbm_left[rank] or ddr[shard] > ddr_left[rank]:
                rank = -1
        elif np.random.random() < BY_CHANCE:
            rank = np.random.randint(first, last)
            if hbm[shard] > hbm_left[rank] or ddr[shard] > ddr_left[rank]:
                rank = -1
        else:
            for other in range(first, last):
                fits = hbm[shard] <= hbm_left[other] and ddr[shard] <= ddr_left[other]
                if fits and (rank < 0 or load[other] < load[rank]):
                    rank = other
        if rank < 0:
            _take(begin, shard, at, -1, ms, hbm, ddr, load, hbm_left, ddr_left)
            return False
        at[shard - begin] = rank
        load[rank] += ms[shard]
        hbm_left[rank] -= hbm[shard]
        ddr_left[rank] -= ddr[shard]
    return True
