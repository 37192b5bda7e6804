"""Who asked for a row last, how owners say so, and what follows for counts and bytes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.counts import Counts
from comm.exact_rule import refuse_inexact
from comm.group import simulate
from comm.last_touch import KeySets, Stamps
from comm.plan import Plan
from comm.prefetch import Prefetch, within
from comm.shards import Shards
from comm.travel import Travel
from comm.verdict import flag_bytes, send_flags
from comm.when import When
from kernels import Bags, Optimizer
from models.embedding import ShardedEmbedding
from models.prefetch_step import PrefetchStep
from tests.comm.fec_work import RANKS_PER_NODE, STREAMS, TABLES, Arm, build, frames, stream, training_of

ROWS = 12
batches = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=8), min_size=1, max_size=8)


@settings(max_examples=60)
@given(batches, st.integers(1, 4))
def test_ages_are_those_of_a_plain_search(asked, depth):
    for noted in (Stamps(ROWS, depth), KeySets(depth)):
        for t, rows in enumerate(asked):
            ages = noted.touch(torch.tensor(rows, dtype=torch.int64)).tolist()
            for row, age in zip(rows, ages, strict=True):
                ago = next((k for k in range(1, t + 1) if row in asked[t - k]), depth + 1)
                assert min(age, depth + 1) == min(ago, depth + 1)
            assert noted.in_latest(torch.arange(ROWS)).tolist() == [row in rows for row in range(ROWS)]


@settings(max_examples=40)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n,
                                                    max_size=n)), st.integers(1, 2), st.integers(0, 99))  # fmt: skip
def test_flags_come_back_to_who_asked(keys, count, seed):
    """keys[r][o]: how many keys rank r asked of rank o."""
    world = len(keys)
    generator = torch.Generator().manual_seed(seed)
    flags = [[torch.rand(n, count, generator=generator) < 0.5 for n in of] for of in keys]

    def tells(group):
        asked = [keys[r][group.rank] for r in range(world)]
        told = torch.cat([flags[r][group.rank] for r in range(world)])
        found = send_flags(group, told, asked, keys[group.rank], "x")
        sent = [flag_bytes(n, count) if r != group.rank else 0 for r, n in enumerate(asked)]
        assert group.sent["x"].tolist() == sent
        return torch.equal(found, torch.cat(flags[group.rank]))

    assert all(simulate(world, tells))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20), st.integers(0, 20), st.integers(0, 63))
def test_a_window_is_kept_and_never_cuts_a_row(keys, window, calm_rows):
    rows = torch.tensor([row for row, _ in keys], dtype=torch.int64)
    safe = torch.tensor([flag for _, flag in keys], dtype=torch.bool)
    calm = torch.tensor([bool(calm_rows >> row & 1) for row, _ in keys], dtype=torch.bool)
    early, late = within(window, rows, safe, calm)
    assert int(early.sum() + late.sum()) <= window
    assert not (early & ~safe).any()
    assert not (late & ~calm).any()
    assert all(len(set(late[rows == row].tolist())) <= 1 for row in range(6))
    everything = within(len(keys) * 2, rows, safe, calm)
    assert torch.equal(everything[0], safe)
    assert torch.equal(everything[1], calm)


@pytest.mark.parametrize(
    ("strategy", "when", "stream_name"),
    [
        ("unique", When(deferral=False), "iid"),
        ("unique", When(prefetch=False), "duplicates"),
        ("unique", When(depth=2, parts=2), "empty_rank"),
        ("hot_cold", When(), "all_conflict"),
        *(pytest.param("hot_cold", When(depth=3, parts=2), name, marks=pytest.mark.slow) for name in STREAMS),
    ],
)
def test_bytes_sent_are_those_predicted(strategy, when, stream_name):
    arm, world = Arm(strategy, when, stream=stream_name, steps=7), 4
    steps = [[bags for bags, _, _ in of_ranks] for of_ranks in stream(stream_name, arm.steps, world)]

    def trains(group):
        model, optimizer = build(arm, group)
        exchange = PrefetchStep(model, optimizer, when=when).exchanges[0]
        shards = exchange.exchange.shards
        predicted = {}
        for bags, travel in zip(steps, Travel.of(shards, steps, when), strict=True):
            for name, bytes_ in exchange.sent(Counts.of(shards, bags, group.ranks_per_node), travel).items():
                predicted[f"{exchange.label}.{name}"] = (
                    predicted.get(f"{exchange.label}.{name}", 0) + bytes_[group.rank]
                )
        list(training_of(arm, group, model, optimizer).steps(frames(arm, group)))
        counted = {label: sent.tolist() for label, sent in group.sent.items() if label in predicted}
        assert counted == {label: sent.tolist() for label, sent in predicted.items()}
        assert not [label for label in group.sent if label.startswith(exchange.label) and label not in predicted]
        return sum(int(sent.sum()) for label, sent in predicted.items() if label.endswith(("early_send", "late_send")))

    beside = sum(simulate(world, trains, RANKS_PER_NODE[world]))
    assert beside > 0 or stream_name == "all_conflict"


def test_what_a_small_stream_shares_counted_by_hand():
    """Two ranks, one step of which shares a row with the next: who may send what early and late."""
    shards = Shards(TABLES[:1], Plan.uniform(TABLES[:1], "unique", 2).placements, 2)

    def bags(*ids):
        return Bags(torch.tensor(ids, dtype=torch.int64), torch.tensor([0, len(ids)]))

    steps = [[bags(0, 2), bags(1)], [bags(2, 3), bags(3)], [bags(0), bags(5)]]
    first, second, third = Travel.of(shards, steps, When(depth=1))
    # from who asks to the owner (even ids on rank 0)
    assert first.early.tolist() == [[2, 0], [0, 1]]
    assert first.late.tolist() == [[1, 0], [0, 1]]  # not row 2, which the next batch reads
    assert second.early.tolist() == [[0, 1], [0, 1]]
    assert second.first[0].tolist() == [[1, 0], [0, 0]]
    assert third.early.tolist() == [[1, 0], [0, 1]]
    assert third.late.tolist() == [[0, 0], [0, 0]]
    assert Travel.of(shards, steps, When(depth=2))[2].early.tolist() == [[0, 0], [0, 1]]


def test_stamps_that_do_not_fit_name_the_alternative():
    with pytest.raises(ValueError, match=r"at most 1,000 bytes, needs 4,000: .*noted='key_sets'"):
        When(stamp_bytes=1000).last_touch(1000)
    assert isinstance(When(stamp_bytes=4000).last_touch(1000), Stamps)
    assert isinstance(When(noted="key_sets", stamp_bytes=0).last_touch(1000), KeySets)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, "depth: expected at least 1, given 0"),
        ({"parts": 0}, "parts: expected at least 1, given 0"),
        ({"window": -1}, "window: expected at least 0 or None, given -1"),
        ({"noted": "bitmap"}, "noted: expected 'stamps' or 'key_sets', given 'bitmap'"),
    ],
)
def test_a_when_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        When(**changes)


WEIGHT = [torch.nn.Parameter(torch.zeros(2, 2))]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (torch.optim.SGD(WEIGHT, lr=0.1, momentum=0.9), "momentum=0.9 moves every row at every step"),
        (torch.optim.SGD(WEIGHT, lr=0.1, weight_decay=0.01), "weight_decay=0.01 shrinks every row at every step"),
        (torch.optim.Adagrad(WEIGHT, weight_decay=0.01), "weight_decay=0.01 shrinks every row"),
        (torch.optim.Adam(WEIGHT), "Adam moves every row that has a moment at every step"),
        (torch.optim.AdamW(WEIGHT), "weight_decay=0.01 shrinks every row"),
        ("sgd", "expected a kernels.Optimizer or one of torch.optim, given str"),
    ],
)
def test_rules_that_move_rows_outside_the_batch_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        refuse_inexact(rule, deferral=False)


def test_rules_that_move_the_rows_of_the_batch_alone_are_not():
    for rule in (
        Optimizer("adam", weight_decay=0.1, decoupled=True, clip_row_norm=1.0),
        torch.optim.SparseAdam(WEIGHT),
        torch.optim.SGD(WEIGHT, lr=0.1),
        torch.optim.Adagrad(WEIGHT),
    ):
        refuse_inexact(rule, deferral=True)


def refused(message, **changes):
    def builds(group):
        PrefetchStep(*build(Arm(), group), **changes)

    with pytest.raises(RuntimeError, match=message):
        simulate(1, builds)


def test_clipping_by_the_global_norm_is_refused():
    refused("clip_global_norm=1.0 scales every gradient of a step by the norm of all", clip_global_norm=1.0)
    refused("expected None", clip_global_norm=1.0, when=When(deferral=False))


def test_tables_that_move_in_blocks_of_columns_under_a_row_wise_rule_are_not_deferred():
    def builds(group, when):
        plan = Arm().plan(2)
        placements = tuple(replace(p, columns=2, ranks=(0, 1)) for p in plan.placements)
        Prefetch(build_of(replace(plan, placements=placements), group).teams[0].strategy, when)

    def build_of(plan, group):
        return ShardedEmbedding(plan, group, Optimizer("rowwise_adagrad"), backend="cpu")

    with pytest.raises(RuntimeError, match=r"deferral: .* expected whole rows, or deferral off"):
        simulate(2, lambda group: builds(group, When()))
    simulate(2, lambda group: builds(group, When(deferral=False)))


class Sampled(list):
    """Negatives sampled by the weights of the step before, say."""

    keys_from_weights = True


def test_a_stream_whose_ids_follow_the_weights_is_refused():
    def trains(group, when):
        arm = Arm(when=when, steps=3)
        return list(training_of(arm, group, *build(arm, group)).steps(Sampled(frames(arm, group))))

    with pytest.raises(RuntimeError, match=r"expected ids that do not depend on weights, given a Sampled"):
        simulate(1, lambda group: trains(group, When()))
    assert len(simulate(1, lambda group: trains(group, None))[0]) == 3
