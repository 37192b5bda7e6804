"""The pairwise covering array covers every allowed pair, in few rows."""

from itertools import combinations, product

import torch

from kernels._cases import covering, draw_ids, draw_offsets, generator

OPTIONS = {"a": (1, 2, 3), "b": (True, False), "c": ("x", "y", "z"), "d": (0, 1)}


def allowed(row):
    return not (row["b"] and row["c"] == "z")


def pairs(row):
    return set(combinations(row.items(), 2))


def test_every_allowed_pair_occurs_and_no_forbidden_row():
    rows = covering(OPTIONS, allowed)
    full = [r for values in product(*OPTIONS.values()) if allowed(r := dict(zip(OPTIONS, values, strict=True)))]
    assert set().union(*map(pairs, rows)) == set().union(*map(pairs, full))
    assert all(map(allowed, rows))
    assert len(rows) < len(full) / 2
    assert rows == covering(OPTIONS, allowed)


def test_drawn_ids_are_in_range_and_a_zipf_has_popular_rows():
    for spread in ("uniform", "same", "zipf"):
        ids = draw_ids(2000, 50, spread, torch.int32, generator(1))
        assert ids.dtype == torch.int32
        assert 0 <= ids.min() <= ids.max() < 50
    counts = torch.bincount(ids, minlength=50).sort(descending=True).values
    # Rank 1 of 50 has mass 1 / sum k^-1.05 = 0.241: 483 of 2000 ids, standard deviation 19; six of them either side.
    assert 369 < counts[0] < 597


def test_ragged_offsets_start_with_an_empty_bag():
    offsets = draw_offsets(5, 3, ragged=True, random=generator(1))
    assert offsets[:2].tolist() == [0, 0]
    assert draw_offsets(2, 3, ragged=False, random=generator(1)).tolist() == [0, 3, 6]
