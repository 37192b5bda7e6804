"""Each collective against its definition, on threads; test_gloo.py runs the same over processes."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.canonical import canonical_all_reduce, canonical_sum, chunk_sizes
from comm.group import SimGroup, TorchGroup, simulate


@settings(max_examples=25)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    st.sampled_from([torch.int32, torch.int64, torch.float32, torch.float64]),
    st.sampled_from([(), (3,), (2, 2)]),
)
def test_all_to_all_is_its_definition(splits, dtype, shape):
    """`splits[a][b]` entries go from rank a to rank b; each entry says whence, whither and which."""
    world, entry = len(splits), torch.ones(shape, dtype=dtype)

    def message(a: int, b: int) -> torch.Tensor:
        parts = [entry * (100 * a + 10 * b + i) for i in range(splits[a][b])]
        return torch.stack(parts) if parts else torch.empty(0, *shape, dtype=dtype)

    def exchange(group: SimGroup):
        me = group.rank
        x = torch.cat([message(me, b) for b in range(world)])
        return group.all_to_all(x, splits[me], [splits[a][me] for a in range(world)], "x"), group.sent["x"]

    for b, (arrived, sent) in enumerate(simulate(world, exchange)):
        expected = torch.cat([message(a, b) for a in range(world)])
        assert arrived.dtype == dtype
        assert torch.equal(arrived, expected)
        size = entry.numel() * dtype.itemsize
        assert sent.tolist() == [0 if other == b else splits[b][other] * size for other in range(world)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_exchange_is_a_transpose(world):
    table = torch.arange(world * world * 2).view(world, world, 2)
    arrived = simulate(world, lambda group: group.exchange(table[group.rank], "x"))
    assert torch.equal(torch.stack(arrived), table.transpose(0, 1))


@pytest.mark.parametrize("sizes", [[3], [0, 2], [1, 0, 0, 4]])
def test_all_gather_is_every_ranks_entries_in_rank_order(sizes):
    parts = [torch.full((n, 2), float(rank)) for rank, n in enumerate(sizes)]

    def gather(group: SimGroup):
        return group.all_gather(parts[group.rank], sizes, "g"), group.sent["g"].tolist()

    for rank, (whole, sent) in enumerate(simulate(len(sizes), gather)):
        assert torch.equal(whole, torch.cat(parts))
        assert sent == [0 if other == rank else sizes[rank] * 2 * 4 for other in range(len(sizes))]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("entries", [0, 1, 8, 9])
def test_all_reduce_and_canonical_all_reduce_sum_over_ranks(world, entries):
    parts = torch.arange(world * entries * 2).view(world, entries, 2).float()  # small integers: every order is exact

    def reduce(group: SimGroup):
        ring, canonical = group.all_reduce(parts[group.rank], "r"), canonical_all_reduce(group, parts[group.rank], "c")
        return ring, canonical, {label: int(sent.sum()) for label, sent in group.sent.items()}

    results = simulate(world, reduce)
    for ring, canonical, _ in results:
        assert torch.equal(ring, parts.sum(0))
        assert torch.equal(canonical, parts.sum(0))
    of_all = sum(sent["r"] for *_, sent in results)
    assert of_all == 2 * (world - 1) * entries * 2 * 4  # a ring passes each chunk world - 1 times, twice over
    assert of_all == sum(sent["c.scatter"] + sent["c.gather"] for *_, sent in results)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_reduce_scatter_gives_each_rank_its_row_of_the_sum(world):
    parts = torch.arange(world * world * 3).view(world, world, 3).float()

    def reduce(group: SimGroup):
        return group.reduce_scatter(parts[group.rank], "s"), group.sent["s"].tolist()

    for rank, (row, sent) in enumerate(simulate(world, reduce)):
        assert torch.equal(row, parts.sum(0)[rank])
        assert sum(sent) == (world - 1) * 3 * 4
        assert sent[rank] == 0


def test_canonical_sum_adds_ranks_within_nodes_and_then_nodes():
    # Half an ulp of 1 is lost when added to 1, and two of them together are not: the order shows.
    half = 2.0**-24
    parts = [torch.tensor([x]) for x in (1.0, half, half, half)]
    assert canonical_sum(parts, 4).item() == 1.0  # ((1 + h) + h) + h
    assert canonical_sum(parts, 2).item() == 1.0 + 2 * half  # (1 + h) + (h + h)
    assert canonical_sum(parts[::-1], 4).item() == 1.0 + 4 * half  # ((h + h) + h) + 1 = 1 + 3h, to even
    assert parts[0].item() == 1.0


def test_chunks_cover_everything_and_differ_by_one():
    assert chunk_sizes(7, 4) == [2, 2, 2, 1]
    assert chunk_sizes(2, 4) == [1, 1, 0, 0]


def test_ranks_are_node_major():
    def places(group: SimGroup):
        return group.nodes, group.ranks_per_node, [group.node_of(rank) for rank in range(4)]

    assert simulate(4, places, 2)[0] == (2, 2, [0, 0, 1, 1])
    assert simulate(4, places)[0] == (1, 4, [0, 0, 0, 0])


@pytest.mark.parametrize("ranks_per_node", [3, 0, -2])
def test_nodes_of_unequal_size_are_refused(ranks_per_node):
    with pytest.raises(RuntimeError, match=f"ranks_per_node: expected a divisor of 4 ranks, given {ranks_per_node}"):
        simulate(4, lambda group: None, ranks_per_node)


@pytest.mark.parametrize(
    ("send", "receive"), [([2, 2], [1, 1]), ([3], [1, 1]), ([1, 2], [1, 1, 1]), ([4, -1], [1, 1])], ids=str
)
def test_splits_that_do_not_fit_are_refused(send, receive):
    with pytest.raises(
        RuntimeError, match=r"rank . of 2 failed: ValueError: keys: expected 2 splits >= 0 that sum to 3, given"
    ):
        simulate(2, lambda group: group.all_to_all(torch.zeros(3), send, receive, "keys"))


def test_receiving_other_than_what_was_sent_is_refused():
    with pytest.raises(
        RuntimeError, match=r"rank 1 of 2 failed: ValueError: rank 1: expected \[1, 2\] entries, given \[1, 1\]"
    ):
        simulate(2, lambda group: group.all_to_all(torch.zeros(2), [1, 1], [1, 2] if group.rank else [1, 1], "keys"))


def test_a_failing_rank_is_named_and_the_others_end():
    def fails(group: SimGroup):
        if group.rank == 2:
            raise KeyError("lost")
        group.barrier()

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 2 of 4 failed: KeyError: 'lost'") as caught:
        simulate(4, fails)
    assert isinstance(caught.value.__cause__, KeyError)
    assert time.monotonic() - begin < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_rank_that_makes_no_call_is_noticed():
    with pytest.raises(RuntimeError, match=r"rank . of 2 failed: BrokenBarrierError"):
        simulate(2, lambda group: group.barrier() if group.rank else None, timeout_s=0.2)


def test_a_buffer_may_be_reused_once_the_call_returns():
    def reuse(group: SimGroup):
        buffer = torch.full((2,), float(group.rank))
        seen = [group.exchange(buffer.fill_(step), "x") for step in range(20)]
        return torch.stack(seen)[:, 0].tolist()

    assert simulate(2, reuse) == [list(range(20))] * 2


def test_processes_are_started_by_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="expected to be started by torchrun"):
        TorchGroup.start()
