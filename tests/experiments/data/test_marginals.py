import numpy as np
import pytest

from experiments.data.columns import DERIVED, ENTITY, load_columns
from experiments.data.hashing import at, key_of, permute_all, uniforms, unit
from experiments.data.marginals import EXACT, draw, expected_distinct, marginal, middle, rank_at
from experiments.data.zipf import zipf_ids, zipf_unique_ratio


@pytest.mark.parametrize("size", [1, 2, 3, 7, 26, 1000, 65_537])
def test_permute_is_a_bijection(size):
    ids = permute_all(np.arange(size), size, key_of(1, size))
    assert np.array_equal(np.sort(ids), np.arange(size))


def test_permute_moves_frequent_rows_apart():
    ids = np.sort(permute_all(np.arange(100), 10**9, key_of(0)))
    # 100 of 1e9 ids at random: the expected number of gaps under 1e4 is 100 * 100 * 1e-5 = 0.1.
    assert np.diff(ids).min() > 100
    assert ids[0] < 2e8
    assert ids[-1] > 8e8


def test_hash_known_answers():
    # The stream of splitmix64 seeded with 0 (its reference code's first outputs), and a key: the same on every machine.
    assert [at(np.uint64(0), i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert key_of(7, "C3", "draw") == 11626767423279436707
    assert key_of(np.int64(7), "C3", "draw") == key_of(7, "C3", "draw")


def test_uniforms_address_positions():
    key = key_of(3)
    whole = uniforms(key, 0, 1000)
    assert np.array_equal(uniforms(key, 400, 100), whole[400:500])
    assert unit(key, 999) == whole[999]
    # mean of n uniforms: standard error sqrt(1 / 12 n) = 0.009; five of them.
    assert abs(whole.mean() - 0.5) < 0.045


@pytest.mark.parametrize("s", [0.0, 0.55, 1.0, 1.1, 2.5])
@pytest.mark.parametrize("rows", [1, 5, 1000, 300_000])
def test_probabilities_sum_to_one_and_match_the_law(rows, s):
    heavy = (0.3, 0.1)
    m = marginal(rows, s, 10.0, heavy)
    j = np.arange(1, rows - 1, dtype=np.float64)
    tail = (j + 10) ** -s
    p = np.concatenate([heavy[:rows], 0.6 * tail / tail.sum()]) if rows > 2 else np.array(heavy[:rows])
    p /= p.sum()
    # The tail's integral is good to 1e-10 (see Marginal); sums of 3e5 float64 to about 3e5 * 1e-16.
    np.testing.assert_allclose(m.p, p[: len(m.p)], rtol=1e-8)
    assert m.cdf[-1] + p[len(m.p) :].sum() == pytest.approx(1.0, abs=1e-8)
    assert expected_distinct(m, 5000) == pytest.approx(-np.expm1(5000 * np.log1p(-p * (1 - 1e-16))).sum(), rel=1e-5)


@pytest.mark.parametrize("s", [0.55, 1.0, 1.1, 2.5])
def test_rank_at_inverts_the_cdf(s):
    m = marginal(50_000_000, s, 2.0, (0.2,))
    ranks = [0, 1, 2, 1000, EXACT - 1, EXACT, EXACT + 1, 10**6, 49_999_998]
    if s < 2:  # past that an interval is narrower than float64 resolves near 1
        assert [rank_at(m, middle(m, r)) for r in ranks] == ranks
    assert rank_at(m, 1 - 2.0**-53) == m.rows - 1 or s == 2.5
    assert 0 <= rank_at(m, 2.0**-54) < m.rows


def test_marginal_refuses_nonsense():
    with pytest.raises(ValueError, match=r"heavy hitters of sum <= 1, given rows=10, q=0.0, s=1.0, heavy sum 1.4000"):
        marginal(10, 1.0, heavy=(0.7, 0.7))
    with pytest.raises(ValueError, match="rows >= 1"):
        marginal(0, 1.0)


# Expected unique ratios of one-hot Zipf 1.1 keys, as derived from EMBark's published workloads.
EMBARK = [(100_000, 512, 0.536), (100_000, 8192, 0.323), (1_000_000, 512, 0.580), (1_000_000, 8192, 0.382)]


@pytest.mark.parametrize(("rows", "keys", "expected"), EMBARK)
def test_zipf_unique_ratios(rows, keys, expected):
    assert zipf_unique_ratio(rows, 1.1, keys) == pytest.approx(expected, rel=0.03)
    batches = 40 if keys == 512 else 8
    ids = zipf_ids(rows, 1.1, batches * keys, seed=0).view(batches, keys)
    measured = np.mean([len(row.unique()) / keys for row in ids])
    assert measured == pytest.approx(expected, rel=0.03)


def test_zipf_ids_address_positions():
    ids = zipf_ids(500_000_000, 1.1, 1000, seed=5)
    assert zipf_ids(500_000_000, 1.1, 100, seed=5, start=700).equal(ids[700:800])
    assert not zipf_ids(500_000_000, 1.1, 1000, seed=6).equal(ids)
    assert ids.min() >= 0
    assert ids.max() < 500_000_000


def test_draws_follow_the_marginal():
    m = load_columns(None)[0].law
    n = 40_000
    share = np.bincount(draw(m, key_of(1), 0, n), minlength=5)[:5] / n
    # Standard error of a share p is sqrt(p (1 - p) / n) <= 0.0025; five of them.
    np.testing.assert_allclose(share, m.p[:5], atol=0.0125)


def test_columns_put_the_missing_value_first():
    columns = {c.name: c for c in load_columns(None)}
    assert columns["C3"].law.rows == 10_131_227
    assert columns["C26"].law.p[0] == pytest.approx(0.4533)
    assert {columns[name].group for name in (ENTITY, *DERIVED)} == {0}
    assert max(c.law.rows for c in load_columns(5000)) == 5000
    with pytest.raises(ValueError, match="max_rows: expected at least 32"):
        load_columns(31)
