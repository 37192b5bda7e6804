import pytest
from rich.console import Console

from experiments.config import load, names
from experiments.record import read
from experiments.run import Job, report, run

# Seconds that `make reproduce` may take on a laptop: everything, and the share of each part.
EVERYTHING = 900.0
SHARES = {
    ("kernels/step", "train/"): 240.0,
    ("kernels/",): 80.0,
    ("comm/",): 80.0,
    ("embark/",): 150.0,
    ("fec/",): 200.0,
    ("offload/",): 150.0,
}


@pytest.mark.parametrize("name", names())
def test_the_tiny_set_runs_and_its_records_read_back(name, tmp_path):
    experiment = load(name)
    outcomes = run([Job(experiment, experiment.sets["tiny"])], tmp_path, console := Console())
    assert report(outcomes, console), outcomes
    frame = read(outcomes[0].path)
    assert len(frame) == outcomes[0].records > 0
    assert set(frame["experiment"]) == {name}


def test_the_laptop_budgets_fit():
    budgets = {name: load(name).budget_s for name in names()}
    assert all(budget > 0 for budget in budgets.values()), budgets
    assert sum(budgets.values()) <= EVERYTHING, budgets
    for prefixes, share in SHARES.items():
        mine = [name for name in budgets if name.startswith(prefixes)]
        assert sum(budgets.pop(name) for name in mine) <= share, mine
