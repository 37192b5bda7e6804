import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.data.generator import generate
from experiments.offload._arms import ABC, DEVICE, PLAIN, Arm, Memory, Sized, lane
from experiments.offload._described import described_tables, published_rows
from experiments.offload._lab import Lab
from experiments.offload._model import Parts, dense_for, step_seconds
from experiments.offload._streams import DRIFT, Stream, distinct_by_batch
from experiments.offload._training import Training, batches_of, two_batches
from models.cache import CachedStore
from models.cache_size import SmallCache
from models.host_tier import HostTier

SMALL = Stream(rows=2000, samples=32, batches=16, dim=8)


@pytest.mark.parametrize("order", ["iid", "meta_low", "meta_medium", "sessions", "drift"])
def test_a_stream_has_its_batches_bags_and_ids_and_is_the_same_again(order):
    stream = Stream(order, rows=2000, samples=32, batches=10)
    bags = stream.bags()
    assert len(bags) == 10
    for batch, again in zip(bags, stream.bags(), strict=True):
        assert len(batch) == 4 * 32
        assert torch.equal(batch.ids, again.ids)
        lengths = batch.offsets.diff()
        assert int(lengths.min()) >= 1
        assert int(lengths.max()) <= 20
        assert 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < 2000


def test_drift_moves_what_is_hot():
    hot = []
    for order in ("iid", "drift"):
        stream = Stream(order, rows=20_000, samples=512, batches=20)
        counts = [np.bincount(batch.ids.numpy(), minlength=20_000) for batch in stream.bags()]
        tops = [set(np.argsort(c)[-DRIFT:].tolist()) for c in (counts[0], counts[-1])]
        hot.append(len(tops[0] & tops[1]))
    assert hot[1] < hot[0] / 4


arms = st.sampled_from([PLAIN, ABC, Arm("no prefetch", prefetch=False), Arm("a", relaxed=True)])
seconds = st.floats(1e-4, 1e-1)


@given(arms, seconds, seconds, seconds, st.sampled_from([0.15, 0.26]))
def test_the_least_dense_part_is_the_one_from_which_on_the_slow_down_is_met(arm, forward, backward, link, target):
    parts = Parts(forward, backward)
    dense = dense_for(arm, parts, link, target)

    def slow(at):
        return step_seconds(arm, parts, at, link) / (parts.embedding + at) - 1

    assert slow(dense) <= target + 1e-9
    if dense > 0:
        assert slow(0.99 * dense) > target - 1e-9


def test_prefetch_hides_the_link_and_the_exclusion_costs_the_backward():
    parts = Parts(1.0, 2.0)
    assert step_seconds(DEVICE, parts, 4.0, 9.0) == 7.0
    assert step_seconds(Arm("n", prefetch=False), parts, 4.0, 5.0) == 12.0
    assert step_seconds(PLAIN, parts, 4.0, 6.0) == 8.0
    assert step_seconds(Arm("a", relaxed=True), parts, 4.0, 6.0) == 7.0


@pytest.mark.parametrize("arm", [Arm("no prefetch", prefetch=False), PLAIN, ABC])
def test_an_arm_begins_in_the_middle_of_its_stream_and_counts_what_a_cache_would(arm):
    """Rows used before are not first touches; the others are."""
    bags = SMALL.bags()
    rows = list(distinct_by_batch(SMALL, bags))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = lane(SMALL, bags, rows, 6, Sized(arm, lines=1024), Memory.of(SMALL))
    for _ in range(5):
        made.step()
    seen = set(np.concatenate(rows[:6]).tolist())
    fresh = []
    for ids in rows[6:]:
        fresh.append(len(set(ids.tolist()) - seen))
        seen |= set(ids.tolist())
    counted = made.moved()
    asked = counted["batches"]
    assert asked == 6 if arm.prefetch else asked == 5
    assert counted["rows"] == sum(map(len, rows[6 : 6 + asked]))
    assert counted["first_touches"] == sum(fresh[:asked])


def test_a_lab_refuses_more_steps_than_its_stream_has():
    lab = Lab(SMALL)
    lab.start([], history=2, warm=2)
    with pytest.raises(ValueError, match="batches left, given 20"):
        lab.timed(20, 0.0, 1.0)
    with pytest.raises(ValueError, match="scale: expected a device of more than"):
        lab.lines(1000.0)


@pytest.mark.parametrize("arm", ["strict", "abc"])
def test_the_small_model_ends_with_the_same_bits_behind_a_cache_with_conflicts(arm):
    clicks = generate(8 * 64, order="meta_medium", max_rows=300, dim=4)
    batches = batches_of(clicks, 64, 8)
    most, two = two_batches(clicks, batches)
    wanted = Training(clicks, "rowwise_adagrad").train(batches)
    relaxed = arm == "abc"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallCache)
        training = Training(
            clicks,
            "rowwise_adagrad",
            lambda spec: CachedStore(
                HostTier(spec), round(two / 2), most, 8, exclusive=not relaxed, keyed=relaxed, backend="cpu"
            ),
            pipelined=True,
        )
    found = training.train(batches)
    assert found.stats["conflicts"] > 0
    assert found.digest == wanted.digest
    assert found.stats["leases"] == 0


def test_tables_are_described_as_published():
    rows = published_rows()
    assert len(rows) == 856
    assert sum(rows) == 2_328_942_965
    assert rows.count(1) == 269
    tables = described_tables(60, batch=100, factor=2.0)
    assert [t.spec.rows for t in tables] == [2 * r if r > 1 else 1 for r in rows[:60]]
    many = [t.lookups for t in described_tables(batch=1000) if t.spec.rows > 1]
    assert np.mean(many) == pytest.approx(12_200)
    assert all(a.spec.name != b.spec.name for a, b in pairwise(tables))
