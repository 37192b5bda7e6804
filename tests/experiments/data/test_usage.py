import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.commands import profile
from experiments.data import usage
from experiments.data.rows import MISSING_VALUE
from experiments.data.usage import TableUsage
from experiments.record import read
from tests.experiments.data.test_criteo import line, write


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(-1, 9), min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_small_table_is_counted_exactly(blocks):
    table = TableUsage("C1")
    for block in blocks:
        table.add(np.array(block, np.int64))
    values = [value for block in blocks for value in block]
    found = table.result()
    assert found["rows"] == len(set(values))
    assert found["missing"] == values.count(MISSING_VALUE) / len(values)
    assert found["top_share"] == max(values.count(v) for v in values) / len(values)


def test_a_large_table_is_estimated_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(usage, "HELD", 1 << 10)
    table, random = TableUsage("C2"), np.random.default_rng(0)
    for _ in range(20):
        block = random.integers(0, 40_000, 5_000)
        block[:1_500] = 7
        table.add(block)
        assert max(len(table.distinct.held), len(table.popular.values)) <= 1 << 10
    truth = 40_000 * (1 - np.exp(-20 * 3_500 / 40_000))
    assert table.result()["rows"] == pytest.approx(truth, rel=5 * 1.2 / 32)  # five standard errors
    (seven,) = table.popular.counts[table.popular.values == 7]
    assert 20 * 1_500 - table.popular.cut <= seven <= 20 * 1_500 + 20


def test_unique_and_overlap_of_batches(monkeypatch):
    monkeypatch.setattr(usage, "BATCHES", (2, 4))
    table = TableUsage("C3")
    table.add(np.array([1, 1, 2, 3, 3, 4, 5, 6]))  # two batches of four: {1, 2, 3} and {3, 4, 5, 6}
    found = table.result()
    assert found["overlap"] == 1 / 4
    assert found["unique_4"] == (3 + 4) / 8
    assert found["unique_2"] == (1 + 2 + 2 + 2) / 8


def test_misses_are_those_of_the_whole_stream(monkeypatch):
    monkeypatch.setattr(usage, "BATCHES", (2, 4))
    table = TableUsage("C4")
    table.add(np.array([1, 2, 3, 4, 1, 2, 5, 6, 3, 4, 1, 2]))  # rows 1 to 6
    found = table.result()
    assert found["first"] == 6 / 12
    # A cache of 0.2 * 6 rows holds one, no reuse is that near; the first touches miss at any size.
    assert found["miss_20"] == 1.0


def test_a_long_stream_is_followed_in_part(monkeypatch):
    monkeypatch.setattr(usage, "HELD", 1 << 12)
    monkeypatch.setattr(usage, "BATCHES", (16, 256))
    whole, table = TableUsage("C5"), TableUsage("C5")
    monkeypatch.setattr(whole.reuse, "sample", 1.0)
    random = np.random.default_rng(1)
    blocks = [(random.pareto(1.0, 4_096) * 50).astype(np.int64) for _ in range(8)]
    for block in blocks:
        table.add(block)
    assert table.reuse.sample < 1
    assert table.reuse.held <= 1 << 11
    monkeypatch.setattr(usage, "HELD", 1 << 30)
    for block in blocks:
        whole.add(block)
    assert whole.reuse.sample == 1
    for name in ("miss_5", "miss_20", "first"):
        # about 2,000 accesses of some hundred values are followed: three standard errors of a share are below 0.1
        assert table.result()[name] == pytest.approx(whole.result()[name], abs=0.1)


def test_the_command_writes_a_record_a_table(tmp_path, capsys):
    log = write(tmp_path / "log.tsv", [*(line(i) for i in range(700)), "bad"])
    profile.main(log, tmp_path, "skip")
    frame = read(tmp_path / "data/profile.jsonl")
    assert frame["point.table"].tolist() == [f"C{t}" for t in range(1, 27)]
    assert (frame["samples"] == 700).all()
    assert (frame["metrics.rows"] > 500).all()
    assert "700 samples in" in capsys.readouterr().out
    with pytest.raises(ValueError, match="line 701"):
        profile.main(log, tmp_path)
