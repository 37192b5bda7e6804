import math

import numpy as np
import pytest
import torch

from experiments.timing import (
    COVERAGE,
    Samples,
    interleaved,
    interleaved_parts,
    median_interval,
    random_row_bandwidth,
    touch_rows,
)


def test_variants_take_turns_and_each_begins_a_round():
    calls = []
    variants = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(variants, pairs=5, warmup=1)
    assert "".join(calls) == "abcbcacababcbcacab"
    assert {name: len(samples.seconds) for name, samples in times.items()} == {"a": 5, "b": 5, "c": 5}


def test_parts_run_in_order_and_add_up_round_by_round():
    calls = []
    times = interleaved_parts({"v": {"one": lambda: calls.append(1), "two": lambda: calls.append(2)}}, 5, 0)
    assert calls == [1, 2] * 5
    whole = times["v"]["one"] + times["v"]["two"]
    assert whole.seconds[3] == times["v"]["one"].seconds[3] + times["v"]["two"].seconds[3]


def test_a_slow_round_does_not_move_a_ratio():
    load = [1, 1, 9, 1, 1, 5, 1]  # a neighbour slows whole rounds
    slow, fast = Samples(tuple(2.0 * x for x in load)), Samples(tuple(1.0 * x for x in load))
    ratio = slow.over(fast)
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("n", [5, 15, 16, 40])
def test_the_interval_is_the_narrowest_pair_that_covers_enough(n):
    interval = median_interval([float(x) for x in range(n)])
    k = int(interval.low) + 1
    assert interval.high == n - k

    def covers(k):
        return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

    assert covers(k) >= COVERAGE > covers(k + 1)


def test_the_interval_covers_the_true_median_of_skewed_samples():
    draws = np.random.default_rng(0).exponential(size=(2000, 15))
    hits = [(i := median_interval(list(row))).low <= math.log(2) <= i.high for row in draws]
    # 2000 trials of probability >= 0.9 fall below 0.88, three standard deviations off, with probability below 0.002
    assert np.mean(hits) >= 0.88


def test_too_few_rounds_are_refused():
    with pytest.raises(ValueError, match="needs 5 values or more, given 4"):
        median_interval([1.0] * 4)


def test_bandwidth_is_positive_and_rows_are_not_changed():
    table = torch.ones(100, 24)
    touch_rows(table, torch.arange(100))
    assert bool((table == 1).all())
    assert random_row_bandwidth(row_bytes=64, table_bytes=1 << 20, reads=1 << 10, rounds=5) > 0
