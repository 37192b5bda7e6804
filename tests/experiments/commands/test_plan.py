import json

import pytest

from comm.plan import Plan
from experiments.commands.plan import bytes_of, main, topology_of

TABLES = [
    {"name": "user", "rows": 3_000_000, "dim": 64, "hotness": 2, "zipf": 1.05},
    {"name": "item", "rows": 200_000, "dim": 64, "hotness": 20, "zipf": 1.1},
    {"name": "day", "rows": 7, "dim": 64, "hotness": 1, "zipf": 0.0},
]


@pytest.mark.slow
def test_a_table_list_becomes_a_plan_with_reasons(tmp_path, capsys):
    (tmp_path / "tables.json").write_text(json.dumps(TABLES))
    main(str(tmp_path / "tables.json"), "1x8xH100", "60GB", moves=500, out=tmp_path / "plan.json",
         torchrec=tmp_path / "torchrec.json")  # fmt: skip
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert plan.world == 8
    assert [table.name for table in plan.tables] == ["user", "item", "day"]
    assert set(json.loads((tmp_path / "torchrec.json").read_text())) == {"user", "item", "day"}
    said = capsys.readouterr().out
    assert all(word in said for word in ("ms a step, at least", "user", "day", "of the step", "planned in"))


def test_tables_that_do_not_fit_are_named(tmp_path):
    (tmp_path / "tables.json").write_text(json.dumps(TABLES))
    with pytest.raises(ValueError, match="user"):
        main(str(tmp_path / "tables.json"), "1x8xH100", "1MB", moves=10, out=tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def test_sizes_and_clusters_in_words():
    assert (bytes_of("60GB"), bytes_of("1.5 GiB")) == (60 * 10**9, 3 * 2**29)
    assert topology_of("16x8xH100").world == 128
    for wrong in ("60", "60XB", "GB"):
        with pytest.raises(ValueError, match="such as 60GB"):
            bytes_of(wrong)
    with pytest.raises(ValueError, match="such as 16x8xH100"):
        topology_of("16x8xA100")
