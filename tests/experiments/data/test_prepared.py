import json

import numpy as np
import pytest
import torch

from experiments.commands import prepare as command
from experiments.data import prepared
from experiments.data.generator import generate
from experiments.data.prepared import MANIFEST, PreparedLog, prepare

CLICKS = generate(1_000, max_rows=64, dim=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("log")
    prepare(CLICKS, out)
    return out


def equal(a, b):
    same = torch.equal(a.label, b.label) and torch.equal(a.dense, b.dense)
    return same and torch.equal(a.bags.ids, b.bags.ids) and torch.equal(a.bags.offsets, b.bags.offsets)


@pytest.mark.parametrize(("batch", "rank", "world", "start"), [(128, 0, 1, 0), (128, 1, 3, 2), (1_000, 0, 1, 0)])
def test_it_gives_the_batches_it_was_made_of(folder, batch, rank, world, start):
    log = PreparedLog(folder, dim=4)
    assert (log.tables, log.samples) == (CLICKS.tables, CLICKS.samples)
    ours, theirs = (list(s.batches(batch, rank, world, start)) for s in (log, CLICKS))
    assert len(ours) == len(theirs)
    assert all(equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_it_splits_where_its_source_does(folder):
    for ours, theirs in zip(PreparedLog(folder, 4).split(0.1), CLICKS.split(0.1), strict=True):
        assert ours.samples == theirs.samples
        assert all(equal(a, b) for a, b in zip(ours.batches(64), theirs.batches(64), strict=True))


def test_large_tables_keep_their_ids(tmp_path, monkeypatch):
    wide = generate(10, max_rows=64, dim=4)
    monkeypatch.setattr(prepared.np, "int32", np.int8)  # 64 rows fit, 2^31 is the bound that counts
    assert json.loads((prepare(wide, tmp_path / "a").path / MANIFEST).read_text())["ids"] == "int8"


def test_a_torn_folder_is_refused(tmp_path, folder):
    (tmp_path / "label.bin").write_bytes(b"\0")
    with pytest.raises(ValueError, match="expected a prepared log with a manifest"):
        PreparedLog(tmp_path)
    with pytest.raises(FileExistsError, match="holds a prepared log: remove it first"):
        prepare(CLICKS, folder)


def test_a_full_disk_says_where_it_stopped(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared.os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write sample 1000 and on \(No space left on device\)"):
        prepare(CLICKS, tmp_path / "a")
    with pytest.raises(ValueError, match="expected a prepared log"):
        PreparedLog(tmp_path / "a")


def test_the_command_prepares_a_text_log(tmp_path, capsys):
    row = "\t".join(["1", *["3"] * 13, *["0a"] * 26])
    log = tmp_path / "clicks.tsv"
    log.write_text(f"{row}\nbad\n{row}\n")
    command.main(log, max_rows=50, on_bad_line="skip")
    assert "2 samples, 1 bad lines skipped" in capsys.readouterr().out
    made = PreparedLog(tmp_path / "clicks.clicks")
    assert (made.samples, made.bad_lines, made.tables[0].rows) == (2, 1, 50)
    with pytest.raises(ValueError, match="prepared already"):
        command.main(made.path)
