from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch

from experiments.data.batch import TABLES
from experiments.data.columns import DERIVED, ENTITY, load_columns
from experiments.data.generator import generate
from experiments.data.hashing import key_of
from experiments.data.marginals import draw, expected_distinct, marginal
from experiments.data.order import HEAVY, ORDERS, REUSE, reorder, session_users
from kernels.bags import check_ids

ROWS = 7200  # as many as the published statistics were taken from


@pytest.fixture(scope="module")
def ids():
    (batch,) = generate(ROWS).batches(ROWS)
    return batch.bags.ids.view(26, ROWS).numpy()


def test_distinct_values_as_published(ids):
    distinct = {name: len(np.unique(column)) for name, column in zip(TABLES, ids, strict=True)}
    # The project's own bound, 4 % of the number published for the first 7,200 rows of the log.
    assert sum(distinct.values()) == pytest.approx(34_443, rel=0.04)
    for column in load_columns(None):
        expected = expected_distinct(column.law, ROWS)
        if expected > 1000:  # in a smaller one the sampling error alone is above 2 %
            assert distinct[column.name] == pytest.approx(expected, rel=0.04), column.name


def test_unique_ratio_in_a_batch_as_fitted(ids):
    for t, column in enumerate(load_columns(None)):
        expected = expected_distinct(column.law, 2048) / 2048
        if expected > 0.25:
            measured = np.mean([len(np.unique(ids[t, k : k + 2048])) / 2048 for k in (0, 2048, 4096)])
            assert measured == pytest.approx(expected, rel=0.05), column.name


def test_entity_determines_its_columns_and_they_are_missing_together(ids):
    entity = ids[TABLES.index(ENTITY)]
    for name in DERIVED:
        pairs = np.unique(np.stack([entity, ids[TABLES.index(name)]]), axis=1)
        assert pairs.shape[1] == len(np.unique(entity)), name
        assert np.array_equal(ids[TABLES.index(name)] == 0, entity == 0), name
    together = [ids[TABLES.index(name)] == 0 for name in ("C19", "C20", "C25", "C26")]
    assert all(np.array_equal(a, b) for a, b in pairwise(together))
    # Five standard errors of a share of 7,200: sqrt(0.0331 * 0.9669 / 7200) = 0.0021 and 0.0059.
    assert (entity == 0).mean() == pytest.approx(0.0331, abs=0.0105)
    assert together[0].mean() == pytest.approx(0.4533, abs=0.0295)


@pytest.mark.parametrize("order", ORDERS)
def test_every_world_size_sees_the_same_samples(order):
    stream = generate(1000, seed=3, order=order, max_rows=1000)
    whole = list(stream.batches(300))
    assert [len(b) for b in whole] == [300, 300, 300, 100]
    for world in (3, 4, 7):
        parts = zip(*(stream.batches(300, rank, world) for rank in range(world)), strict=True)
        for batch, ranks in zip(whole, parts, strict=True):
            assert torch.cat([r.label for r in ranks]).equal(batch.label)
            assert torch.cat([r.dense for r in ranks]).equal(batch.dense)
            ids = torch.cat([r.bags.ids.view(26, -1) for r in ranks], 1)
            assert ids.equal(batch.bags.ids.view(26, -1))
    resumed = next(stream.batches(300, start=2))
    assert resumed.bags.ids.equal(whole[2].bags.ids)
    assert next(generate(1000, 3, order, 1000).batches(300)).bags.ids.equal(whole[0].bags.ids)
    assert not next(generate(1000, 4, order, 1000).batches(300)).bags.ids.equal(whole[0].bags.ids)
    for batch in whole:
        check_ids(batch.bags, stream.tables)


def test_split_keeps_the_last_share_for_evaluation():
    stream = generate(1000, max_rows=100)
    train, evaluation = stream.split(0.2)
    assert (train.samples, evaluation.samples) == (800, 200)
    whole = next(stream.batches(1000))
    assert next(train.batches(800)).dense.equal(whole.dense[:800])
    assert next(evaluation.batches(200)).label.equal(whole.label[800:])
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="leaves samples on both sides"):
            stream.split(share)


def test_labels_have_the_rate_and_the_bayes_auc():
    stream = generate(60_000, max_rows=10_000)
    labels = torch.cat([b.label for b in stream.batches(20_000)])
    # Five standard errors of the rate on 60,000 samples (0.0017) and of its calibration on 32,768 (0.0010): 5 * 0.0020.
    assert float(labels.mean()) == pytest.approx(0.215, abs=0.01)
    assert 0.77 < stream.bayes_auc(60_000) < 0.81


def test_dense_features_are_finite_and_missing_is_zero():
    (batch,) = generate(4000).batches(4000)
    assert batch.dense.shape == (4000, 13)
    assert batch.dense.dtype == torch.float32
    assert torch.isfinite(batch.dense).all()
    assert (batch.dense >= 0).all()
    assert (batch.dense[:, 11] == 0).float().mean() > 0.75


def test_bad_arguments_name_the_choices():
    with pytest.raises(ValueError, match="unknown order 'random': choose one of iid, meta_low, meta_medium, sessions"):
        generate(100, order="random")
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        generate(0)
    with pytest.raises(ValueError, match=r"0 <= rank < world .* rank=4, world=4"):
        next(generate(100).batches(10, 4, 4))


def _lru_hit_rate(keys, lines):
    cache, hits = OrderedDict(), 0
    for key in keys.tolist():
        if key in cache:
            hits += 1
            cache.move_to_end(key)
        else:
            cache[key] = None
            if len(cache) > lines:
                cache.popitem(last=False)
    return hits / len(keys)


def test_tag_reordering_brings_the_published_locality():
    # Meta's medium-reuse file: q = 10,000, s = 1.85 over 500,000 ids; an LRU of 1 % of the keys hits 0.56, i.i.d. 0.03.
    keys = draw(marginal(500_000, 1.85, 10_000, (0.0023,)), key_of(1), 0, 300_000)
    lines = len(np.unique(keys)) // 100
    medium = reorder(keys, *REUSE["meta_medium"], seed=1)
    assert np.array_equal(np.sort(medium), np.sort(keys))
    assert _lru_hit_rate(medium, lines) == pytest.approx(0.56, abs=0.03)
    assert _lru_hit_rate(keys, lines) == pytest.approx(0.03, abs=0.01)
    low = _lru_hit_rate(reorder(keys, *REUSE["meta_low"], seed=1), lines)
    assert 0.1 < low < 0.25


def test_heavy_keys_are_not_clumped():
    keys = np.repeat(np.arange(3), [5000, 4000, 1000])
    shuffled = reorder(keys, 0.9, 40.0, seed=2)
    assert (keys == 2).mean() > HEAVY
    share = (shuffled.reshape(10, 1000) == 0).mean(1)
    # A share of 0.5 in 1,000 look-ups has a standard error of 0.016; five of them.
    np.testing.assert_allclose(share, 0.5, atol=0.08)


def test_sessions_are_contiguous_and_once():
    users = session_users(100_000, 50_000, seed=1)
    starts = np.flatnonzero(np.diff(users)) + 1
    runs = users[np.concatenate([[0], starts])]
    assert len(np.unique(runs)) == len(runs)
    # Log-normal lengths of sigma 1 have a standard deviation of 131: the mean of 1,000 is within 5 * 131 / 32 = 21.
    assert 100_000 / len(runs) == pytest.approx(100, abs=21)
    with pytest.raises(ValueError, match="at least one user per run, given 100 users"):
        session_users(100_000, 100, seed=1)
