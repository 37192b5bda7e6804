from itertools import pairwise

import pytest
import torch

from comm.group import simulate
from models.link import Link
from tests.models.offload_work import BATCH_ROWS, Run, cached, frames

STEPS = 16
TWO_BATCHES = 424
"""Distinct rows of two batches in a row, about (`test_what_a_batch_has`)."""
SIZES = [0.25, 0.5, 0.75, 1.0, 1.33, 2.0, 4.0]
pytestmark = pytest.mark.filterwarnings("ignore::models.cache_size.SmallCache")


def lines_of(size: float) -> int:
    return int(size * TWO_BATCHES) // 8 * 8


@pytest.fixture(scope="module")
def expected() -> str:
    return simulate(1, lambda group: Run(group).plain(STEPS))[0]


def test_what_a_batch_has():
    rows = [frame["bags"].ids + torch.arange(2).repeat_interleave(128) * 400 for frame in frames(STEPS)]
    assert max(len(batch.unique()) for batch in rows) <= BATCH_ROWS
    two = [len(torch.cat(pair).unique()) for pair in pairwise(rows)]
    assert abs(sum(two) / len(two) - TWO_BATCHES) < 8


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exclusive", [True, False])
def test_pipelined_is_plain_bit_for_bit(size, exclusive, expected):
    def run(group):
        made = Run(group, cached(lines_of(size), exclusive=exclusive))
        return made.pipelined(STEPS), made.store.stats()

    digest, stats = simulate(1, run)[0]
    assert digest == expected
    assert (stats["conflicts"] > 0) == (size < 4)  # else the runs would have nothing to get wrong
    assert stats["leases"] == 0


@pytest.mark.parametrize("size", [0.5, 4.0])
@pytest.mark.parametrize(
    "options",
    [{"keyed": True}, {"policy": "lfu"}, {"policy": "lookahead"}, {"policy": "static", "hot": torch.arange(0, 300)}],
    ids=["keyed", "lfu", "lookahead", "static"],
)
def test_no_policy_and_no_arm_changes_a_bit(size, options, expected):
    def run(group):
        made = Run(group, cached(lines_of(size), exclusive=False, link=Link(1e9, 1e-7, duplex=True), **options))
        return made.pipelined(STEPS, lookahead=3 if "lookahead" in options.values() else 0)

    assert simulate(1, run)[0] == expected


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("size", [0.25, 0.75, 2.0])
def test_threads_change_no_bit(size, exclusive, expected):
    def run(group):
        made = Run(group, cached(lines_of(size), exclusive=exclusive, link=Link(20e6)))
        return made.pipelined(STEPS, overlap=True), made.plain(3), made.store.stats()["leases"]

    overlapped, _, leases = simulate(1, run)[0]
    assert overlapped == expected
    assert leases == 0


@pytest.mark.parametrize("strategy", ["unique", "rowwise", "tablewise"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ranks_and_exchanges(strategy, optimizer):
    def run(group, store, pipelined):
        made = Run(group, store, strategy, optimizer)
        return (made.pipelined if pipelined else made.plain)(6)

    plain = simulate(2, lambda group: run(group, None, False))
    for pipelined in (False, True):
        store = cached(lines_of(0.5))
        assert simulate(2, lambda group, p=pipelined, store=store: run(group, store, p)) == plain
