import numpy as np
import pytest
import torch

from experiments.embark._generator import bags, hot_id, table_ids
from experiments.embark.workloads import MODELS, unique_ratio, workload

PUBLISHED = {  # tables, rows, parameters, ids a sample, columns, one-hot tables
    "dcnv2": (26, 204_184_588, 26.1e9, 214, 3328, 11),
    "t180": (177, 1.131e9, 66.3e9, 14450, 19200, 0),
    "t200": (200, 0.831e9, 103.9e9, 4550, 24320, 100),
    "t510": (510, 0.895e9, 114.6e9, 2670, 65280, 470),
    "t7": (7, 7.43e9, 446e9, 163, 800, 3),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_are_as_published(name):
    tables, rows, parameters, ids, columns, one_hot = PUBLISHED[name]
    specs, hotness = MODELS[name].specs, MODELS[name].hotness
    assert (len(specs), sum(hotness), sum(s.dim for s in specs), hotness.count(1)) == (tables, ids, columns, one_hot)
    assert sum(s.rows for s in specs) == pytest.approx(rows, rel=0.001)
    assert sum(s.rows * s.dim for s in specs) == pytest.approx(parameters, rel=0.002)


def test_the_dense_part_of_t510_is_mostly_its_cross_layers_and_first_top_layer():
    dense = MODELS["t510"].dense
    assert 3 * 2 * 65408 * 512 + 65408 * 1024 <= dense.weights == pytest.approx(270e6, rel=0.02)
    assert MODELS["dcnv2"].dense.parameters == pytest.approx(16e6, rel=0.03)


# Expected distinct ids over ids, Zipf 1.1, at 512 and 8,192 samples, by (rows, ids a bag).
RATIOS = {
    (100, 1): (0.155, 0.012), (1_000, 1): (0.352, 0.097), (100_000, 1): (0.536, 0.323), (1_000_000, 1): (0.580, 0.382),
    (2_000_000, 1): (0.591, 0.396), (10_000, 100): (0.109, 0.012), (4_000_000, 1): (0.600, 0.409),
    (4_000_000, 10): (0.438, 0.282), (4_000_000, 100): (0.306, 0.180), (4_000_000, 200): (0.272, 0.153),
    (50_000_000, 100): (0.347, 0.227), (500_000_000, 100): (0.374, 0.258),
}  # fmt: skip


@pytest.mark.parametrize("shape", RATIOS)
def test_unique_ratios_are_the_tables(shape):
    rows, hotness = shape
    found = [round(unique_ratio(rows, batch * hotness), 3) for batch in (512, 8192)]
    assert found == pytest.approx(RATIOS[shape], abs=0.0011)  # the table is rounded to 0.001


@pytest.mark.parametrize("shape", [(1_000, 5), (4_000_000, 10), (500_000_000, 100)])
def test_drawn_ids_are_as_distinct_as_expected_and_one_of_them_as_popular(shape):
    rows, hotness = shape
    count = 2048 * hotness
    ids = table_ids(rows, 3, 0, 0, count)
    assert ids.min() >= 0
    assert ids.max() < rows
    expected = unique_ratio(rows, count) * count
    # A variance below the mean (distinct counts are sums of negatively correlated indicators): 5 standard deviations.
    assert abs(len(np.unique(ids)) - expected) < 5 * expected**0.5
    share = workload("t180").tables[-1].hot_share if rows == 500_000_000 else None
    values, counts = np.unique(ids, return_counts=True)
    assert values[counts.argmax()] == hot_id(rows, 3, 0)
    if share:
        assert counts.max() / count == pytest.approx(share, abs=5 * (share / count) ** 0.5)


def test_a_rank_draws_its_slice_of_the_batch():
    specs, hotness = MODELS["dcnv2"].scaled(1e-4), MODELS["dcnv2"].hotness
    whole = bags(specs, hotness, 8, 2, 0, 1)
    parts = [bags(specs, hotness, 8, 2, rank, 2) for rank in range(2)]
    for table in range(len(specs)):
        both = [part.ids[part.offsets[table * 4] : part.offsets[table * 4 + 4]] for part in parts]
        assert torch.equal(torch.cat(both), whole.ids[whole.offsets[table * 8] : whole.offsets[table * 8 + 8]])
    assert torch.equal(whole.ids, bags(specs, hotness, 8, 2, 0, 1).ids)
    assert not torch.equal(whole.ids, bags(specs, hotness, 8, 2, 0, 1, seed=1).ids)
    with pytest.raises(ValueError, match="batch: expected a multiple of 3 ranks, given 8"):
        bags(specs, hotness, 8, 0, 0, 3)


def test_scale_shrinks_rows_and_batch_and_keeps_the_rest():
    small, whole = workload("t200", 1 / 1024), workload("t200")
    assert small.batch == 64
    assert small.hotness == whole.hotness
    assert [s.dim for s in small.specs] == [s.dim for s in whole.specs]
    assert small.specs[-1].rows == round(50_000_000 / 1024)
    assert small.specs[0].rows == 2
    with pytest.raises(ValueError, match="expected 0 < scale <= 1, given 2"):
        workload("t200", 2)
    with pytest.raises(ValueError, match="unknown model 'T200': choose one of dcnv2, t180"):
        workload("T200")
