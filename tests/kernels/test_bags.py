"""Bags and check_ids hold their input to the contract, and say where it is wrong."""

import pytest
import torch

from kernels import Bags, TableSpec, check_ids

USERS = TableSpec("users", rows=10, dim=4)
ITEMS = TableSpec("items", rows=5, dim=4)


def bags(ids, offsets, weights=None):
    return Bags(torch.tensor(ids, dtype=torch.int64), torch.tensor(offsets, dtype=torch.int64), weights)


def test_length_and_lengths():
    held = bags([1, 2, 3], [0, 2, 2, 3])
    assert len(held) == 3
    assert held.lengths.tolist() == [2, 0, 1]
    assert len(bags([], [0])) == 0


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([1, 2, 3], [0, 2, 1, 3], "given 2 then 1 at bag 1"),
        ([1, 2, 3], [0, 2, 4], r"last 3 \(the number of ids\), given 0 and 4"),
        ([1, 2, 3], [1, 3], "given 1 and 3"),
    ],
    ids=["decreasing", "overrun", "start"],
)
def test_bad_offsets_name_the_place(ids, offsets, message):
    with pytest.raises(ValueError, match=message):
        bags(ids, offsets)


def test_offsets_of_another_type_are_refused():
    with pytest.raises(ValueError, match="1-D int64 tensor of bags \\+ 1 numbers"):
        Bags(torch.tensor([1]), torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="1-D int32 or int64"):
        Bags(torch.tensor([1.0]), torch.tensor([0, 1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_name_the_position(bad):
    with pytest.raises(ValueError, match="at position 2"):
        bags([1, 2, 3], [0, 3], torch.tensor([1.0, 2.0, bad]))


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected floating \(3,\)"):
        bags([1, 2, 3], [0, 3], torch.tensor([1.0]))


@pytest.mark.parametrize("bad", [5, -1])
def test_an_id_out_of_range_names_table_position_id_and_bound(bad):
    held = bags([9, 0, 4, bad], [0, 1, 2, 3, 4])  # two samples: bags 0, 1 of users, 2, 3 of items
    with pytest.raises(ValueError, match=rf"table 'items': id {bad} at position 3 .* expected 0 <= id < 5"):
        check_ids(held, [USERS, ITEMS])


def test_good_ids_pass_unchanged():
    held = bags([9, 0, 4], [0, 1, 2, 2, 3])
    assert check_ids(held, [USERS, ITEMS]) == (held, 0)
    empty = bags([], [0])
    assert check_ids(empty, [USERS, ITEMS]) == (empty, 0)


def test_drop_takes_bad_ids_out_of_their_bags_and_counts_them():
    held = bags([9, 10, 7, 4], [0, 2, 2, 3, 4], torch.tensor([1.0, 2.0, 3.0, 4.0]))
    kept, dropped = check_ids(held, [USERS, ITEMS], on_bad_id="drop")
    assert dropped == 2
    assert kept.ids.tolist() == [9, 4]
    assert kept.offsets.tolist() == [0, 1, 1, 1, 2]
    assert kept.weights.tolist() == [1.0, 4.0]


def test_an_unknown_mode_names_the_choices_whether_or_not_an_id_is_bad():
    for ids in ([10], [1]):
        with pytest.raises(ValueError, match="choose one of raise, drop"):
            check_ids(bags(ids, [0, 1]), [USERS], on_bad_id="ignore")


def test_bags_that_do_not_divide_into_tables_are_refused():
    with pytest.raises(ValueError, match="multiple of 2 tables, given 3 bags"):
        check_ids(bags([1, 2, 3], [0, 1, 2, 3]), [USERS, ITEMS])


def test_a_table_without_rows_or_with_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match=r"'users'.*rows=0"):
        TableSpec("users", rows=0, dim=4)
    with pytest.raises(ValueError, match="choose one of sum, mean"):
        TableSpec("users", rows=1, dim=4, pooling="median")
