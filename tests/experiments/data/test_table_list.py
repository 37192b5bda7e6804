import json

import pytest

from experiments.data.table_list import read_tables

ZIPF = {"name": "user", "rows": 1000, "dim": 8, "hotness": 3, "zipf": 1.1, "count": 2}
SEEN = {"name": "item", "rows": 500, "dim": 4, "hotness": 1, "unique": {"100": 0.5, "400": 0.25}, "top_share": 0.1}


def read(tmp_path, *entries):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(entries))
    return read_tables(path, 64, "sgd")


def test_laws_become_loads(tmp_path):
    found = read(tmp_path, ZIPF, SEEN)
    assert [load.table.name for load in found.tables] == ["user.0", "user.1", "item"]
    assert found.tables[0].unique(1) == pytest.approx(1)
    assert found.tables[0].unique(1e6) == pytest.approx(1000, rel=0.01)
    item = found.tables[2]
    assert [item.unique(n) for n in (10, 100, 400)] == pytest.approx([5, 50, 100])
    assert item.unique(200) == pytest.approx((50 * 100) ** 0.5)  # halfway in log-log
    assert item.unique(1600) == pytest.approx(200)
    assert item.unique(1e9) == 500


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({k: v for k, v in ZIPF.items() if k != "hotness"}, r"table 0: .* missing \['hotness'\]"),
        (ZIPF | {"hot": 3}, r"unknown \['hot'\]"),
        ({k: v for k, v in ZIPF.items() if k != "zipf"}, "'user'.*expected the law of its ids"),
        (ZIPF | SEEN, "either zipf, an exponent, or unique"),
        ({k: v for k, v in SEEN.items() if k != "top_share"}, "expected top_share"),
        (SEEN | {"unique": {"100": 1.5}}, r"expected shares in \(0, 1\]"),
        (SEEN | {"dtype": "float31"}, "unknown dtype 'float31'"),
        (3, "expected an object, given 3"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, entry, why):
    with pytest.raises(ValueError, match=why):
        read(tmp_path, entry)


def test_what_is_no_json_says_the_line(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text('[\n{"name": "a",\n}]')
    with pytest.raises(ValueError, match=r"tables.json, line 3: expected JSON"):
        read_tables(path, 64, "sgd")
    path.write_text("{}")
    with pytest.raises(ValueError, match="expected a list of tables, given dict"):
        read_tables(path, 64, "sgd")
