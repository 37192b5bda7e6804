import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from experiments.data import tsv
from experiments.data.criteo import CriteoLog, count_ids
from experiments.data.ids import Hashed
from experiments.data.tsv import NAMES

HASHED = Hashed.uniform(1000)


def line(i, label=None, **fields):
    row = {"label": str(i % 2 if label is None else label)}
    row |= {f"I{k}": "" if (i + k) % 5 == 0 else str(i * k - 2) for k in range(1, 14)}
    row |= {f"C{k}": "" if (i + k) % 7 == 0 else f"{(i * 2654435761 + k) % 2**32:08x}" for k in range(1, 27)}
    row |= fields
    return "\t".join(row[name] for name in NAMES)


def write(path, lines, end="\n", bom=False, last=True):
    data = (b"\xef\xbb\xbf" if bom else b"") + end.join(lines).encode() + (end.encode() if last else b"")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path, lines, text=True):
    fields = [row.split("\t") for row in lines]
    columns = {}
    for f, name in enumerate(NAMES):
        cells = [row[f] or None for row in fields]
        if name.startswith("C"):
            columns[name] = pa.array(cells if text else [None if c is None else int(c, 16) for c in cells])
        else:
            columns[name] = pa.array([None if c is None else int(c) for c in cells], pa.int32())
    pq.write_table(pa.table(columns), path, row_group_size=70)
    return path


def read(log, batch=64, **kwargs):
    batches = list(log.batches(batch, **kwargs))
    ids = torch.cat([b.bags.ids.view(26, -1) for b in batches], 1)
    return torch.cat([b.label for b in batches]), torch.cat([b.dense for b in batches]), ids


def same(a, b):
    return all(x.equal(y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def lines():
    return [line(i) for i in range(200)]


@pytest.fixture
def reference(tmp_path, lines):
    return read(CriteoLog(write(tmp_path / "reference.tsv", lines), HASHED))


def test_fields(tmp_path):
    row = line(1, label=1, I1="", I2="-2", I3="7", C1="", C2="0000000a", C3="A")
    label, dense, ids = read(CriteoLog(write(tmp_path / "a.tsv", [row]), HASHED))
    assert label.tolist() == [1.0]
    assert dense[0, :3].tolist() == [0.0, 0.0, float(np.float32(np.log1p(7)))]
    assert int(ids[0, 0]) == 0
    assert ids.min() >= 0
    assert ids.max() < 1000
    assert ids[1, 0] != ids[2, 0]  # one value in two tables: the hash is keyed by table


@pytest.mark.parametrize(
    "form", [{}, {"end": "\r\n"}, {"bom": True}, {"last": False}, {"end": "\r\n", "bom": True, "last": False}]
)
@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
@pytest.mark.parametrize("chunk", [tsv.CHUNK, 1000])
def test_every_form_of_text_reads_the_same(tmp_path, lines, reference, form, name, chunk, monkeypatch):
    monkeypatch.setattr(tsv, "CHUNK", chunk)
    assert same(read(CriteoLog(write(tmp_path / name, lines, **form), HASHED)), reference)


@pytest.mark.parametrize("text", [True, False])
def test_parquet_reads_the_same(tmp_path, lines, reference, text):
    log = CriteoLog(write_parquet(tmp_path / "a.parquet", lines, text), HASHED)
    assert log.samples == 200
    assert same(read(log), reference)
    train, evaluation = log.split(0.25)
    assert same(read(evaluation, 7), [x[..., 150:] if x.shape[0] == 26 else x[150:] for x in reference])
    assert read(train, 64, start=2)[0].equal(reference[0][128:150])


def test_signed_parquet_values_are_32_bit(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [line(0, C1="ffffffff")], text=False)
    table = pq.read_table(path)
    signed = table.set_column(14, "C1", pa.array([-1], pa.int32()))
    pq.write_table(signed, tmp_path / "b.parquet")
    assert same(read(CriteoLog(tmp_path / "b.parquet", HASHED)), read(CriteoLog(path, HASHED)))


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.parquet"])
def test_ranks_splits_and_starts(tmp_path, lines, reference, name, monkeypatch):
    monkeypatch.setattr(tsv, "CHUNK", 1000)
    path = tmp_path / name
    log = CriteoLog(write_parquet(path, lines) if name.endswith("parquet") else write(path, lines), HASHED)
    parts = zip(*(log.batches(64, rank, 3) for rank in range(3)), strict=True)
    ids = [torch.cat([r.bags.ids.view(26, -1) for r in ranks], 1) for ranks in parts]
    assert [i.shape[1] for i in ids] == [64, 64, 64, 8]
    assert torch.cat(ids, 1).equal(reference[2])
    train, evaluation = log.split(0.1)
    assert (train.samples, evaluation.samples) == (180, 20)
    assert read(evaluation)[0].equal(reference[0][180:])
    assert read(train, 50, start=3)[1].equal(reference[1][150:180])
    assert len(read(log, 8, rank=6, world=7)[0]) == 25 * 2  # samples 6 and 7 of eight


BAD = [
    ("7\t8", r"expected 40 fields separated by tabs \(label, I1..I13, C1..C26\), given 2"),
    ("", r"expected 40 fields separated by tabs .*, given 1"),
    (line(1) + "\t", "expected 40 fields .*, given 41"),
    (line(1, label="2"), "label: expected 0 or 1, given '2'"),
    (line(1, label=""), "label: expected 0 or 1, given ''"),
    (line(1, I3="x1"), "I3: expected an integer of at most 15 digits or nothing, given 'x1'"),
    (line(1, I3="1.5"), "I3: expected an integer .*, given '1.5'"),
    (line(1, I4="-"), "I4: expected an integer .*, given '-'"),
    (line(1, C9="1" * 16), "C9: expected a hexadecimal number of at most 15 digits or nothing"),
    (line(1, C26="xyz"), "C26: expected a hexadecimal number of at most 15 digits or nothing, given 'xyz'"),
]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
@pytest.mark.parametrize(("bad", "why"), BAD)
def test_a_malformed_line_names_file_and_line(tmp_path, lines, bad, why, name, monkeypatch):
    monkeypatch.setattr(tsv, "CHUNK", 1000)  # about five lines: the number must survive the cuts
    path = write(tmp_path / name, [*lines[:123], bad, *lines[124:]], end="\r\n", bom=True)
    with pytest.raises(ValueError, match=rf"{name}, line 124: {why}"):
        read(CriteoLog(path, HASHED))
    with pytest.raises(ValueError, match="line 124: "):
        count_ids(path)


def test_skipped_lines_are_counted_and_keep_their_place(tmp_path, lines, reference):
    path = write(tmp_path / "a.tsv", ["oops", *lines[1:130], "oops", *lines[131:]])
    log = CriteoLog(path, HASHED, on_bad_line="skip")
    assert [len(b) for b in log.batches(64)] == [63, 64, 63, 8]
    assert log.bad_lines == 2
    keep = [i for i in range(200) if i not in (0, 130)]
    assert same(read(log), [reference[0][keep], reference[1][keep], reference[2][:, keep]])
    train, _ = log.split(0.5)
    assert [len(b) for b in train.batches(64, 1, 2)] == [32, 18]
    assert log.bad_lines == 4  # the second rank of the first half holds neither
    with pytest.raises(ValueError, match="unknown on_bad_line 'ignore': choose one of raise, skip"):
        CriteoLog(path, HASHED, on_bad_line="ignore")


def test_bad_parquet(tmp_path, lines):
    path = write_parquet(tmp_path / "a.parquet", lines)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["I5", "C20"]), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b.parquet: expected the columns label, .* missing I5, C20"):
        CriteoLog(tmp_path / "b.parquet", HASHED)
    pq.write_table(table.set_column(1, "I1", pa.array([0.5] * 200)), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"column I1: expected integers, given double"):
        CriteoLog(tmp_path / "c.parquet", HASHED)
    cells = table.column("C2").to_pylist()
    cells[150] = "zz"
    pq.write_table(table.set_column(15, "C2", pa.array(cells)), tmp_path / "d.parquet", row_group_size=70)
    with pytest.raises(ValueError, match=r"d.parquet, line 151: C2: expected a hexadecimal .* given 'zz'"):
        read(CriteoLog(tmp_path / "d.parquet", HASHED))
    skipping = CriteoLog(tmp_path / "d.parquet", HASHED, on_bad_line="skip")
    assert len(read(skipping)[0]) == 199
    assert skipping.bad_lines == 1
    (tmp_path / "e.parquet").write_bytes(b"label\tI1\n")
    with pytest.raises(ValueError, match=r"e.parquet: expected a Parquet file"):
        CriteoLog(tmp_path / "e.parquet", HASHED)


def test_files_that_are_no_log(tmp_path, lines):
    with pytest.raises(FileNotFoundError, match=r"gone.tsv: expected a click log, given no such file"):
        CriteoLog(tmp_path / "gone.tsv", HASHED)
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(FileNotFoundError, match="given a folder"):
        CriteoLog(tmp_path / "folder.tsv", HASHED)
    with pytest.raises(ValueError, match=r"a.csv: expected a click log named \*.tsv, \*.tsv.gz, \*.parquet"):
        CriteoLog(tmp_path / "a.csv", HASHED)
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(ValueError, match=r"empty.tsv: expected at least one line, given an empty file"):
        CriteoLog(tmp_path / "empty.tsv", HASHED)
    (tmp_path / "empty.tsv.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match=r"empty.tsv.gz: expected at least one line, given an empty file"):
        read(CriteoLog(tmp_path / "empty.tsv.gz", HASHED))
    whole = write(tmp_path / "cut.tsv.gz", lines).read_bytes()
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=r"cut.tsv.gz, line 1 or later: expected a whole gzip file, given a broken one"
    ):
        read(CriteoLog(tmp_path / "cut.tsv.gz", HASHED))
    write(tmp_path / "plain.tsv", lines).rename(tmp_path / "plain.tsv.gz")
    with pytest.raises(ValueError, match=r"plain.tsv.gz, line 1 or later: expected a whole gzip file"):
        read(CriteoLog(tmp_path / "plain.tsv.gz", HASHED))
    (tmp_path / "binary.tsv").write_bytes(bytes(range(11, 256)) * 1000)
    with pytest.raises(ValueError, match=r"binary.tsv, line 1: expected at most 65536 bytes a line, given more"):
        read(CriteoLog(tmp_path / "binary.tsv", HASHED))


def test_indexed_ids(tmp_path):
    values = ["b", "b", "b", "a", "a", "c", "", "d"]
    path = write(tmp_path / "a.tsv", [line(i, C1=v) for i, v in enumerate(values)])
    index = count_ids(path, min_count=2, stop=7)  # d is never counted
    _, _, ids = read(CriteoLog(path, index))
    # 0 = missing or unknown, 1 = rare, then by falling count: b, a.
    assert ids[0].tolist() == [2, 2, 2, 3, 3, 1, 0, 0]
    assert index.rows[0] == 4
    assert CriteoLog(path, index).tables[0].rows == 4


def test_hashed_ids_are_the_same_everywhere():
    values = np.arange(26 * 3).reshape(3, 26)
    assert Hashed.uniform(1_000_000, seed=1).ids(values)[:3].tolist() == KNOWN
    with pytest.raises(ValueError, match="rows: expected 26 numbers of at least 2"):
        Hashed((1000,) * 25)


KNOWN = [[931421, 373071, 634467], [857156, 90017, 938618], [496108, 561632, 18383]]


@pytest.fixture
def sample():
    path = os.environ.get("CRITEO_SAMPLE")
    if not path:
        pytest.skip("set CRITEO_SAMPLE to the first 7,200 rows of the Criteo Kaggle log (.tsv.gz) to run this test")
    return Path(path)


def test_known_answers_of_the_real_log(sample):
    index = count_ids(sample)
    (batch,) = CriteoLog(sample, index).batches(10_000)
    ids = batch.bags.ids.view(26, -1).numpy()
    assert ids.shape == (26, 7200)
    assert float(batch.label.mean()) == pytest.approx(0.215, abs=0.0005)
    distinct = [len(np.unique(column)) for column in ids]
    assert (distinct[2], distinct[9], distinct[25]) == (4137, 2410, 1526)
    assert sum(distinct) == 34_443
    entity = ids[2]
    for t in (3, 11, 15, 20, 23):  # C4, C12, C16, C21, C24
        assert len(np.unique(np.stack([entity, ids[t]]), axis=1).T) == 4137
        assert np.array_equal(ids[t] == 0, entity == 0)
    assert (entity == 0).mean() == pytest.approx(0.033, abs=0.0005)
    for t in (18, 19, 24, 25):  # C19, C20, C25, C26
        assert np.array_equal(ids[t] == 0, ids[18] == 0)
    assert (ids[18] == 0).mean() == pytest.approx(0.453, abs=0.0005)
