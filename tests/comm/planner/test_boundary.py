"""Which rows become hot: the price of a boundary against its definition, and what the choice keeps to."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm.planner.boundary import RowCost, RowUse, Timing, choose, fixed, price
from comm.topology import Link, Topology
from experiments.data.counting import count_bags
from kernels import Bags, TableSpec
from kernels.cost import Device

ROW = RowCost(value=256, key=4, memory=260)


def topology(nodes=2, ranks_per_node=2, alpha=1e-4, beta=25e6):
    links = {"nic/all_to_all": Link(alpha, beta, "made up"), "intra/all_to_all": Link(0.0, 1e12, "made up")}
    return Topology(nodes, ranks_per_node, links, Device("none", 1.0, 1.0, "none"))


def use_of(touches, follows=None, precedes=None, lookups=None, batches=20, world=4):
    columns = [np.asarray(c, np.int64) for c in (touches, follows or touches, precedes or touches)]
    return RowUse(
        np.arange(len(touches)), np.asarray(lookups or touches, np.int64), *columns, world=world, batches=batches
    )


@pytest.mark.parametrize(("timing", "fwd", "bwd"), [
    (Timing(), 1.0, 1.0),
    (Timing(prefetch=True), 0.25, 1.0),
    (Timing(prefetch=True, deferral=True), 0.25, 0.5),
])  # fmt: skip
def test_exposed_seconds_worked_out_by_hand(timing, fwd, bwd):
    # 400 rows, each in 40 of the 80 local batches; a quarter of these follow, half precede (of 76 transitions)
    use = use_of([40] * 400, [int(40 * 0.25 * 76 / 80)] * 400, [int(40 * 0.5 * 76 / 80)] * 400)
    late = {0.25: 9 / 76 / (40 / 80), 0.5: 19 / 76 / (40 / 80), 1.0: 1.0}
    (cold,) = price(use, [0], timing, topology(alpha=0.0), ROW)
    rows = 200  # of a rank and step
    assert cold.cold == pytest.approx(rows)

    def seconds(bytes_):  # two ranks of a node send half of what they send to the other node
        return 2 * bytes_ * 0.5 / 25e6

    expected = seconds(rows * 256 * late[fwd]) + seconds(rows * 256 * late[bwd])
    hidden = seconds(rows * 256 * (1 - late[fwd])) + seconds(rows * 256 * (1 - late[bwd]))
    keys = seconds(rows * 4)
    # no window: what is hidden in principle comes out in the open
    assert cold.exposed_s == pytest.approx(expected + hidden + keys, rel=1e-9)
    wide = price(use, [0], Timing(timing.prefetch, timing.deferral, window_s=1e9), topology(alpha=0.0), ROW)[0]
    assert wide.exposed_s == pytest.approx(expected + (0.0 if timing.prefetch else keys), rel=1e-9)
    (hot,) = price(use, [400], timing, topology(alpha=0.0), ROW)
    # a node sends half of the sums of its rows to the other, which sums them and sends them back; before and after, a
    # rank sends half of them to its neighbour
    assert hot.exposed_s == pytest.approx(2 * 200 * (256 + 4) * (1 / 25e6 + 1 / 1e12), rel=1e-9)


def test_parts_wait_only_for_what_the_first_and_last_of_them_need():
    use = use_of([80, 8], lookups=[80 * 50, 8])
    window = Timing(prefetch=True, deferral=True, window_s=1e9)
    whole = [p.exposed_s for p in price(use, [0, 1], window, topology(alpha=0.0), ROW)]
    parts = [
        p.exposed_s for p in price(use, [0, 1], Timing(True, True, parts=4, window_s=1e9), topology(alpha=0.0), ROW)
    ]
    assert parts[0] < whole[0]
    # a row of 50 look-ups is in every quarter; one of 0.1 in a quarter of them
    light = [whole[1] - parts[1], whole[1]]
    assert whole[0] - parts[0] == pytest.approx(light[0], rel=1e-3)


def test_a_popular_row_is_hot_only_if_its_exchange_is_exposed():
    # read and updated by everybody, always: nothing hides it, so a copy saves a forward and a backward exchange
    popular, rare = [80] * 50, [1] * 2000
    follows, precedes = [76] * 50 + [0] * 2000, [76] * 50 + [0] * 2000
    use = use_of(popular + rare, follows, precedes)
    hidden = choose(use, Timing(True, True, window_s=1.0), topology(2, 4), ROW)
    assert hidden.chosen.rows == 50
    assert hidden.hot.tolist() == list(range(50))


@given(st.lists(st.integers(0, 80), min_size=1, max_size=40), st.integers(0, 20_000), st.booleans(), st.booleans())
def test_the_choice_is_the_best_prefix_within_memory(touches, memory, prefetch, deferral):
    touches = sorted(touches, reverse=True)
    use = use_of([max(1, t) for t in touches], [t // 2 for t in touches], [t // 3 for t in touches])
    timing = Timing(prefetch, deferral, window_s=1e-5)
    found = choose(use, timing, topology(), ROW, memory)
    assert len(found.hot) == found.chosen.rows <= memory // ROW.memory
    everything = price(use, range(min(len(touches), memory // ROW.memory) + 1), timing, topology(), ROW)
    edges = {p.rows for p in found.weighed}
    assert found.chosen.exposed_s == min(p.exposed_s for p in everything if p.rows in edges)
    assert fixed(use, found.chosen.rows, timing, topology(), ROW, memory).chosen == found.chosen


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"expected 2 or more, to see what follows what, given 1"):
        use_of([1], batches=1)
    with pytest.raises(ValueError, match=r"expected a counting pass that saw rows, given an empty one"):
        use_of([])
    use = use_of([3, 2, 1])
    with pytest.raises(ValueError, match=r"expected at most 2 \(260 bytes each.*in 600 bytes of a rank\), given 3"):
        fixed(use, 3, Timing(), topology(), ROW, memory=600)
    with pytest.raises(ValueError, match=r"expected 0 to the 3 that the counting pass saw, given 4"):
        fixed(use, 4, Timing(), topology(), ROW)


def test_hot_keys_become_ids_of_their_tables():
    use = use_of([3, 2, 1])
    found = fixed(use, 3, Timing(), topology(), ROW)
    assert found.of_tables([2, 1, 5]) == [(0, 1), (0,), ()]


TABLES = (TableSpec("a", 5, 1), TableSpec("b", 3, 1))


def bags(a, b):
    lengths = torch.tensor([0, *(len(x) for x in (*a, *b))])
    return Bags(torch.tensor([i for x in (*a, *b) for i in x]), lengths.cumsum(0))


def test_a_counting_pass_worked_out_by_hand():
    batches = [
        [bags([[0, 0], [1]], [[2], []]), bags([[1], []], [[2], [2]])],
        [bags([[1]], [[0]]), bags([[4]], [[2]])],
        [bags([[0]], [[2]]), bags([[]], [[2]])],
    ]
    use = count_bags(TABLES, iter(batches))
    columns = zip(use.lookups, use.touches, use.follows, use.precedes, strict=True)
    rows = {int(key): tuple(map(int, counts)) for key, counts in zip(use.keys, columns, strict=True)}
    # key of table b's row i is 5 + i: (look-ups, touches, followed, precede)
    assert rows == {0: (3, 2, 0, 0), 1: (3, 3, 1, 2), 4: (1, 1, 0, 0), 5: (1, 1, 0, 0), 7: (6, 5, 3, 3)}
    assert use.keys.tolist() == [7, 1, 0, 4, 5]
    assert (use.world, use.batches) == (2, 3)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(2, 5))
def test_a_counting_pass_counts_what_sets_say(seed, world, batches):
    draw = torch.Generator().manual_seed(seed)
    drawn = [
        [[torch.randint(0, t.rows, (4,), generator=draw).tolist() for t in TABLES] for _ in range(world)]
        for _ in range(batches)
    ]
    use = count_bags(TABLES, iter([[bags([[i] for i in a], [[i] for i in b]) for a, b in ranks] for ranks in drawn]))
    sets = [[{*a, *(5 + i for i in b)} for a, b in ranks] for ranks in drawn]
    unions = [set().union(*ranks) for ranks in sets]
    for at, key in enumerate(use.keys.tolist()):
        local = [(t, key in rank) for t, ranks in enumerate(sets) for rank in ranks]
        assert use.touches[at] == sum(there for _, there in local)
        assert use.follows[at] == sum(there and t > 0 and key in unions[t - 1] for t, there in local)
        assert use.precedes[at] == sum(there and t + 1 < batches and key in unions[t + 1] for t, there in local)


def test_an_empty_log_is_an_error():
    with pytest.raises(ValueError, match=r"expected a log of 2 whole batches or more, given fewer"):
        count_bags(TABLES, iter([]))
