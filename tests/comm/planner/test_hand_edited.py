"""A plan edited by hand: what is wrong with it is said with its line."""

import pytest

from comm.plan import Placement, Plan
from kernels import TableSpec

PLAN = Plan(
    4,
    (TableSpec("user", 10, 4), TableSpec("item", 7, 8)),
    (Placement("user", "rowwise", (0, 2)), Placement("item", "tablewise", (3,))),
)
TEXT = PLAN.to_json()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ranks": [3]', '"ranks": [9]', r"^line 7: table 'item': expected ranks 0 to 3, given \[9\]"),
        ('"rowwise"', '"rows"', "^line 6: table 'user': unknown strategy 'rows'"),
        ('"ranks": [0, 2], ', "", "^line 6: table 'user': expected 'ranks', given none"),
        ('"wire"', '"wires"', "^line 6: table 'user': .*unexpected keyword argument 'wires'"),
        ('"dim": 8', '"dim": 0', "^line 4: table 'item': expected rows >= 1 and dim >= 1"),
        ('"dtype": "float32"', '"dtype": "float31"', "^line 3: table 'user': unknown dtype 'float31'"),
        ('"columns": 1', '"columns": 3', "^line 6: table 'user': expected columns that divide dim 4"),
        ('"ranks": [3],', '"ranks": [3]', "line 7 column"),
    ],
)
def test_the_line_of_a_mistake_is_named(old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        Plan.from_json(TEXT.replace(old, new, 1))


def test_a_good_edit_is_read():
    edited = Plan.from_json(TEXT.replace('"ranks": [3]', '"ranks": [1]'))
    assert edited.placements[1].ranks == (1,)
    assert edited.placements[0] == PLAN.placements[0]
