import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm.planner.miss_curve import FIRST, MissCurve, chosen, measure, rate_of_histogram, stack_distances
from comm.planner.zipf_curve import ranks_of, zipf_curve

streams = st.lists(
    st.lists(st.integers(0, 30), max_size=12, unique=True).map(lambda ids: np.array(ids, np.int64)),
    min_size=1,
    max_size=12,
)


def lru(batches, size):
    """The definition: a full cache that looks a whole batch up, then admits it in order. Hits by access."""
    kept, found = [], []  # oldest first
    for ids in batches:
        found += [i in kept for i in ids.tolist()]
        for i in ids.tolist():
            if i in kept:
                kept.remove(i)
            kept.append(i)
        kept = kept[-size:] if size else []
    return found


@given(streams, st.integers(0, 40))
def test_an_access_hits_exactly_in_caches_larger_than_its_distance(batches, size):
    distances = stack_distances(batches)
    assert ((distances != FIRST) & (distances < size)).tolist() == lru(batches, size)


@given(streams, st.integers(0, 40))
def test_the_curve_counts_what_that_cache_misses_at_every_size(batches, size):
    curve = measure(batches)
    hits, accesses, count = sum(lru(batches, size)), sum(map(len, batches)), len(batches)
    new = len(np.unique(np.concatenate(batches)))
    assert curve.at(size) * count == pytest.approx(accesses - hits, abs=1e-9)
    assert curve.at(size, first=False) * count == pytest.approx(accesses - hits - new, abs=1e-9)
    assert curve.first * count == pytest.approx(new)


def test_warm_up_batches_are_not_counted_but_their_rows_are_known():
    stream = [np.arange(10), np.arange(10)]
    assert measure(stream, skip=1).first == 0
    assert measure(stream, skip=1).at(0) == 10
    assert measure(stream).first == 5
    with pytest.raises(ValueError, match="more than 2 batches"):
        measure(stream, skip=2)


def test_a_thinned_curve_stays_on_the_exact_one():
    rng = np.random.default_rng(0)
    stream = [np.unique(rng.zipf(1.2, 3000) % 100_000) for _ in range(30)]
    exact, thin = measure(stream, points=10**9), measure(stream, points=128)
    assert len(thin.sizes) <= 128 < len(exact.sizes)
    assert np.array_equal(thin.at(thin.sizes), exact.at(thin.sizes))


def test_a_sample_by_hash_is_unbiased_within_its_error():
    rng = np.random.default_rng(1)
    stream = [np.unique(rng.integers(0, 20_000, 4000)) for _ in range(30)]
    exact, sampled = measure(stream), measure(stream, sample=0.1)
    sizes = np.array([2000.0, 5000.0, 10_000.0, 20_000.0])
    # each followed row is one of about 2,000: the share that misses has a standard error below 0.5 / sqrt(2000) = 0.011
    assert np.abs(exact.rate(sizes) - sampled.rate(sizes)).max() < 4 * 0.5 / np.sqrt(2000)
    assert sampled.accesses == exact.accesses
    assert chosen(np.arange(100_000), 0.1).mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / 100_000))
    with pytest.raises(ValueError, match="share in"):
        measure(stream, sample=0.0)


def test_published_histograms():
    assert [rate_of_histogram(np.array([99, 98, 97]), 92, c * 92) for c in (0, 0.5, 1)] == [1, 1 - 197 / 294, 0]
    assert [rate_of_histogram(np.array([0, 6, 0, 8]), 4, c) for c in range(5)] == [1, 1, 1 - 6 / 14, 1 - 6 / 14, 0]
    even = [rate_of_histogram(np.ones(10), 100, c) for c in (9, 10, 11, 89, 99, 100)]
    assert even == pytest.approx([0.9, 0.9, 0.8, 0.1, 0, 0])
    assert rate_of_histogram(np.zeros(4), 4, 2) == 0


def test_cacheability_is_the_area_under_the_curve():
    line = MissCurve(np.array([0.0, 100.0]), np.array([10.0, 0.0]), 0.0, 10.0)
    assert line.cacheability(100) == pytest.approx(0.5)
    assert line.part(4).cacheability(25) == pytest.approx(0.5)
    assert line.resized(2).at(100) == 5
    assert line.part(2).at(25) == 2.5


@given(streams)
def test_the_hull_is_convex_and_below(batches):
    curve = measure(batches)
    hull = curve.hull()
    gains = np.diff(hull.misses) / np.diff(hull.sizes)
    assert (np.diff(gains) >= -1e-9).all()
    assert (hull.at(curve.sizes) <= curve.at(curve.sizes) + 1e-9).all()


def test_a_curve_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="ascend from 0"):
        MissCurve(np.array([1.0]), np.array([1.0]), 0, 1)
    with pytest.raises(ValueError, match="fall with size"):
        MissCurve(np.array([0.0, 1.0]), np.array([1.0, 2.0]), 0, 5)
    with pytest.raises(ValueError, match="as many sizes"):
        MissCurve(np.zeros(2), np.zeros(3), 0, 1)


@pytest.mark.parametrize("rows", [1, 64, 65, 1000, 10**9])
def test_bands_of_ranks_hold_every_row_once(rows):
    rank, count = ranks_of(rows)
    assert count.sum() == pytest.approx(rows)
    assert rank[0] == 1
    assert (np.diff(rank) > 0).all()
    assert rank[-1] <= rows


@pytest.mark.parametrize(("alpha", "lookups"), [(1.05, 2000), (0.6, 2000), (0.0, 500)])
def test_a_described_table_misses_what_a_drawn_stream_of_it_does(alpha, lookups):
    rows, rng = 20_000, np.random.default_rng(2)
    p = np.arange(1, rows + 1) ** -alpha
    name = rng.permutation(rows)  # rows of one batch count in the order of their ids: it must not be that of their use
    stream = [np.unique(name[rng.choice(rows, lookups, p=p / p.sum())]) for _ in range(120)]
    drawn, described = measure(stream, skip=60), zipf_curve(rows, alpha, lookups)
    sizes = drawn.accesses * np.array([1.0, 2.0, 4.0, 8.0])
    sizes = sizes[sizes < 0.7 * rows]
    # after 60 batches nearly all that still comes for the first time is rare; both curves count it as a miss
    assert np.abs(drawn.rate(sizes) - described.rate(sizes)).max() < 0.015
    young = zipf_curve(rows, alpha, lookups, batches=60)
    assert young.first <= measure(stream[:61], skip=60).first * 1.15 + 5
    assert young.at(0) == pytest.approx(described.at(0))


def test_a_described_table_never_used_has_no_misses():
    assert zipf_curve(10, 1.0, 0.0).rate(0.0) == 0
    with pytest.raises(ValueError, match="rows >= 1"):
        zipf_curve(0, 1.0, 1.0)
