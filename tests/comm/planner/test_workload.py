from dataclasses import replace

import pytest
import torch

from comm.cost import loads
from comm.planner.workload import DenseLoad, TableLoad, Workload, measured
from comm.presets import h100x8
from comm.topology import Topology
from kernels import Bags, Optimizer, TableSpec

TABLE = TableSpec("user", 100, 8)
LOAD = TableLoad(TABLE, 2.0, lambda n: n / 2, 3, 0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hotness": None}, "table 'user': expected hotness, given None"),
        ({"distinct": None}, "table 'user': expected distinct, given None"),
        ({"hot_share": None}, "table 'user': expected hot_share, given None"),
        ({"hotness": 0.0}, "table 'user': expected hotness > 0 ids a bag, given 0.0"),
        ({"hot_share": 1.5}, "expected 0 <= hot_share <= 1, given 1.5"),
        ({"hot_id": 100}, "expected hot_id from 0 to 99, given 100"),
    ],
)
def test_a_load_without_its_numbers_is_an_error_that_names_the_table(change, message):
    with pytest.raises(ValueError, match=message):
        replace(LOAD, **change)


def test_more_distinct_ids_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="table 'user': expected 0 < distinct <= 10 among 10 ids"):
        replace(LOAD, distinct=lambda n: 2 * n).unique(10)


def test_a_measured_workload_says_what_was_in_the_batches():
    offsets = torch.arange(5) * 2  # two tables, two samples a rank, two ids a bag
    batches = [
        Bags(torch.tensor([1, 1, 1, 2, 0, 1, 2, 3]), offsets),
        Bags(torch.tensor([1, 3, 1, 4, 4, 5, 6, 7]), offsets),
    ]
    workload = measured("tiny", (TABLE, TableSpec("item", 8, 8)), batches, Optimizer("sgd"), DenseLoad.none())
    user, item = workload.tables
    assert (workload.batch, workload.hotness) == (4, (2.0, 2.0))
    assert (user.hot_id, user.hot_share) == (1, 5 / 8)
    assert [user.unique(4), user.unique(8), item.unique(8)] == pytest.approx([2, 4, 8])
    assert 2 < user.unique(6) < 4
    assert workload.without_skew().tables[0].hot_share == 0


def test_a_workload_is_not_empty():
    with pytest.raises(ValueError, match="workload 'none': expected tables and batch >= 1, given 0 tables and 8"):
        Workload("none", (), 8, Optimizer("sgd"), DenseLoad.none())


def test_a_table_that_nobody_looks_up_cannot_be_measured():
    empty = [Bags(torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))]
    with pytest.raises(ValueError, match="table 'user': expected ids in the batch to measure"):
        measured("x", (TABLE,), empty, Optimizer(), DenseLoad.none())


def test_a_node_with_several_nics_has_each_carry_its_own_ranks():
    bytes_ = torch.zeros(4, 4, dtype=torch.int64)
    bytes_[0, 2], bytes_[1, 2], bytes_[0, 1] = 5, 7, 100
    assert loads(bytes_, 2) == {"intra": 100, "nic": 12}
    assert loads(bytes_, 2, nics=2) == {"intra": 100, "nic": 12}  # what comes in at rank 2
    bytes_[1] = 0
    assert loads(bytes_, 2, nics=2)["nic"] == 5


def test_a_topology_keeps_its_nics(tmp_path):
    h100x8(2).save(tmp_path / "h100.json")
    assert Topology.load(tmp_path / "h100.json") == h100x8(2)
    with pytest.raises(ValueError, match="expected nics that divide 8 ranks of a node, given 3"):
        replace(h100x8(2), nics=3)
