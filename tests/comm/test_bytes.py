"""The bytes that a strategy says it sends are the bytes that are sent, phase by phase and rank by rank."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comm.group import SimGroup, simulate
from comm.plan import STRATEGIES, Plan, Split
from comm.schedule import Schedule
from comm.strategy import INPUTS
from comm.wire import Wire
from kernels import Bags, Optimizer, TableSpec
from models.cost import counts_of
from models.embedding import ShardedEmbedding
from models.executor import Executor

DIM = 4


class Lookups(NamedTuple):
    """`rows` of each table; `ids[rank][table][sample]` of one global batch."""

    rows: list[int]
    ids: list[list[list[list[int]]]]
    weighted: bool
    split: Split


def lookups(world: int) -> st.SearchStrategy[Lookups]:
    """Ragged batches of any size, none and none at all included."""

    def batches(rows: list[int]) -> st.SearchStrategy:
        def rank(batch: int) -> st.SearchStrategy:
            bag = [st.lists(st.integers(0, n - 1), max_size=3) for n in rows]
            return st.tuples(*(st.lists(one, min_size=batch, max_size=batch) for one in bag)).map(list)

        ids = st.lists(st.integers(0, 3).flatmap(rank), min_size=world, max_size=world)
        return st.builds(Lookups, st.just(rows), ids, st.booleans(), st.sampled_from(["modulo", "range"]))

    return st.lists(st.integers(1, 9), min_size=1, max_size=4).flatmap(batches)


def bags_of(ids: list[list[list[int]]], weighted: bool) -> Bags:
    bags = [bag for table in ids for bag in table]
    flat = torch.tensor([row for bag in bags for row in bag], dtype=torch.int64)
    offsets = torch.tensor([0] + [len(bag) for bag in bags]).cumsum(0)
    return Bags(flat, offsets, torch.ones(len(flat)) if weighted else None)


def tables_of(rows: list[int]) -> tuple[TableSpec, ...]:
    return tuple(TableSpec(f"t{i}", n, DIM) for i, n in enumerate(rows))


def step(group: SimGroup, plan: Plan, bags: Bags, optimizer: str) -> dict[str, torch.Tensor]:
    """One step of the embedding alone; what the strategy says this batch sends is compared by the caller."""
    embedding = ShardedEmbedding(plan, group, Optimizer(optimizer), backend="cpu")
    schedule = Schedule(embedding.forward_phases() + embedding.backward_phases(), (*INPUTS, "bags", "pooled_grad"))
    batch = len(bags) // len(plan.tables)
    grad = torch.ones(batch, DIM * len(plan.tables))
    frame = {"step": 0, "lr": 0.1, "training": True, "bags": bags, "pooled_grad": grad}
    Executor().run(schedule, frame)
    return dict(group.sent)


def check(
    world: int,
    strategy: str,
    drawn: Lookups,
    ranks_per_node: int | None = None,
    wire: Wire = "table",
    optimizer: str = "sgd",
) -> None:
    plan = Plan.uniform(tables_of(drawn.rows), strategy, world, drawn.split, wire)
    batches = [bags_of(ids, drawn.weighted) for ids in drawn.ids]
    sent = simulate(world, lambda group: step(group, plan, batches[group.rank], optimizer), ranks_per_node)

    def predict(group: SimGroup) -> dict[str, torch.Tensor]:
        embedding = ShardedEmbedding(plan, group, Optimizer(optimizer), backend="cpu")
        counts, team = counts_of(embedding, batches), embedding.teams[0]
        phases = team.strategy.sent(counts[team.label])
        return {f"{team.label}.{phase}": bytes_ for phase, bytes_ in phases.items()}

    predicted = simulate(world, predict, ranks_per_node)[0]
    counted = {label: torch.stack([of_rank[label] for of_rank in sent]) for label in sent[0]}
    assert predicted.keys() == counted.keys()
    for label, bytes_ in predicted.items():
        assert bytes_.tolist() == counted[label].tolist(), label


NASTY = {
    world: Lookups(
        rows=[1, 2, 5],  # fewer rows than ranks: some shards are empty; nobody looks table 1 up
        ids=[[[], [], []] if rank == 1 else [[[0, 0], []], [[], []], [[4, 1, 4], [rank % 5]]] for rank in range(world)],
        weighted=world != 2,
        split="range",
    )
    for world in (1, 2, 4, 8)
}


@pytest.mark.parametrize("world", [1, 2, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_sent_are_those_predicted(strategy, world):
    @settings(max_examples=5)
    @given(lookups(world))
    @example(NASTY[world])
    @example(NASTY[world]._replace(split="modulo", weighted=world == 2))
    def holds(drawn):
        check(world, strategy, drawn)
        if world > 1:
            check(world, strategy, drawn, 2 if world > 2 else 1, "int8", "rowwise_adagrad")

    holds()


COLD = {"keys": (8 + 4, 8), "send": (0, 16), "grad_send": (16, 0)}
"""Rank 0 wants row 1 of rank 1; rank 1 wants its own row 3."""
COLUMNS = {"keys": (16 + 4 + 3 * 4, 16 + 2 * 4 + 3 * 4), "send": (2 * 8, 8), "grad_send": (8, 2 * 8)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_are_those_written_out_by_hand(strategy):
    # Two ranks, one table of 4 rows by modulo (tablewise: all on rank 0), dim 4 float32 = 16 B a row, ids of 4 B.
    # Rank 0 looks up [0, 1, 1] in one bag; rank 1 looks up [3] and [2, 3] in two.
    drawn = Lookups([4], [[[[0, 1, 1]]], [[[3], [2, 3]]]], False, "modulo")
    plan = Plan.uniform(tables_of(drawn.rows), strategy, 2, drawn.split)
    batches = [bags_of(ids, drawn.weighted) for ids in drawn.ids]
    sent = simulate(2, lambda group: step(group, plan, batches[group.rank], "sgd"))
    expected = {  # what rank 0 sends to rank 1, and rank 1 to rank 0
        # keys: two sizes of 8 B, a length of 4 B a bag, the ids; then a sum a bag, back and forth
        "rowwise": {"keys": (16 + 4 + 2 * 4, 16 + 2 * 4 + 1 * 4), "send": (2 * 16, 16), "grad_send": (16, 2 * 16)},
        "tablewise": {"keys": (16, 16 + 2 * 4 + 3 * 4), "send": (2 * 16, 0), "grad_send": (0, 2 * 16)},
        # one node: its ranks add what they hold for each other, nothing crosses; labels say the two stages
        "hierarchical": {
            "keys": (16 + 4 + 2 * 4, 16 + 2 * 4 + 1 * 4),
            "send.node": (2 * 16, 16),
            "send.rail": (0, 0),
            "grad_send.rail": (0, 0),
            "grad_send.node": (16, 2 * 16),
        },
        # two columns on each rank: every id goes to both, half a row comes back
        "columnwise": COLUMNS,
        "gridwise": COLUMNS,
        # keys: a count of 8 B and the distinct ids that the other holds; then a row each
        "unique": {"keys": (8 + 4, 8 + 4), "send": (16, 16), "grad_send": (16, 16)},
        # one node: the place of the owner is asked for, which is the owner; the rail has one rank
        "unique_node": {
            "keys_node": (8 + 4, 8 + 4),
            "keys_rail": (0, 0),
            "send.rail": (0, 0),
            "send.node": (16, 16),
            "grad_node": (16, 16),
            "grad_rail": (0, 0),
        },
        # ids 0 and 2 are hot: 1 and 3 are asked for; two rows and their counts are reduced, one on each rank
        "hot_cold": COLD | {"hot_reduce.scatter": (20, 20), "hot_reduce.gather": (20, 20)},
        "hot_cold_ring": COLD | {"hot_reduce": (2 * 40 - 20 - 20, 2 * 40 - 20 - 20)},
        "hot_cold_node": {
            "keys_node": (8 + 4, 8),
            "keys_rail": (0, 0),
            "send.rail": (0, 0),
            "send.node": (0, 16),
            "grad_node": (16, 0),
            "grad_rail": (0, 0),
            "hot_reduce.scatter": (20, 20),
            "hot_reduce.gather": (20, 20),
        },
        # ids 1, 1 and 3 travel, in the bags that they are in; then a sum a bag, back and forth
        "hot_cold_rowwise": {
            "keys": (16 + 4 + 2 * 4, 16 + 2 * 4),
            "send": (2 * 16, 16),
            "grad_send": (16, 2 * 16),
            "hot_reduce.scatter": (20, 20),
            "hot_reduce.gather": (20, 20),
        },
        "hot_cold_hierarchical": {
            "keys": (16 + 4 + 2 * 4, 16 + 2 * 4),
            "send.node": (2 * 16, 16),
            "send.rail": (0, 0),
            "grad_send.rail": (0, 0),
            "grad_send.node": (16, 2 * 16),
            "hot_reduce.scatter": (20, 20),
            "hot_reduce.gather": (20, 20),
        },
        # as in unique, but rank 0 asks for row 1 twice
        "alltoall": {"keys": (8 + 2 * 4, 8 + 4), "send": (16, 2 * 16), "grad_send": (2 * 16, 16)},
        # two distinct rows each: a count and their numbers, and their gradients
        "allgather": {"keys": (8 + 2 * 4, 8 + 2 * 4), "grad_send": (2 * 16, 2 * 16)},
        # four rows and their counts, touched or not, in two halves
        "replicated_dense": {"grad_send.scatter": (40, 40), "grad_send.gather": (40, 40)},
        # keys: a count and all distinct ids; the union {0, 1, 2, 3} is reduced in two halves
        "replicated": {"keys": (8 + 2 * 4, 8 + 2 * 4), "grad_send.scatter": (32, 32), "grad_send.gather": (32, 32)},
    }
    found = {label.split("float32.")[1]: (int(sent[0][label][1]), int(sent[1][label][0])) for label in sent[0]}
    assert found == expected[strategy]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_collective_calls_do_not_grow_with_the_tables(strategy, monkeypatch):
    calls = []
    all_to_all = SimGroup._all_to_all

    def counted(self, x, send, receive):
        calls.append(self.members[self.rank])
        return all_to_all(self, x, send, receive)

    monkeypatch.setattr(SimGroup, "_all_to_all", counted)
    numbers = []
    for tables in (1, 7):
        calls.clear()
        plan = Plan.uniform(tables_of([5] * tables), strategy, 2)
        bags = bags_of([[[0, 3], [1]]] * tables, False)
        simulate(2, lambda group, plan=plan, bags=bags: step(group, plan, bags, "sgd"))
        assert calls.count(0) == calls.count(1)
        numbers.append(calls.count(0))
    assert numbers[0] == numbers[1] > 0
