import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm.plan import Placement
from comm.shards import Shards
from kernels import Bags, TableSpec, bucketize


@st.composite
def sharded(draw) -> Shards:
    """Tables by modulo and by range, over any ranks, with more parts than rows and two parts on a rank among them."""
    world = draw(st.integers(1, 5))
    rows = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    tables = tuple(TableSpec(f"t{i}", n, 2) for i, n in enumerate(rows))
    ranks = st.lists(st.integers(0, world - 1), min_size=1, max_size=6).map(tuple)
    placements = tuple(
        Placement(t.name, "rowwise", draw(ranks), draw(st.sampled_from(["modulo", "range"]))) for t in tables
    )
    return Shards(tables, placements, world)


@settings(max_examples=60)
@given(sharded())
def test_every_id_lies_in_exactly_one_cell(shards):
    for number, (table, placement) in enumerate(zip(shards.tables, shards.placements, strict=True)):
        cells = [cell for cell in shards.cells if cell.table == number]
        assert [cell.rank for cell in cells] == list(placement.ranks)
        assert sorted(torch.cat([cell.ids() for cell in cells]).tolist()) == list(range(table.rows))
        assert all(len(cell.ids()) == cell.rows for cell in cells)


@settings(max_examples=60)
@given(sharded())
def test_a_ranks_array_is_its_cells_one_after_another(shards):
    for rank in range(shards.world):
        filled = 0
        for cell in (cell for cell in shards.cells if cell.rank == rank):
            assert cell.base == filled
            filled += cell.rows
        assert filled == shards.rows_of_rank[rank]
        assert shards.tables_of_rank[rank].tolist() == sorted({c.table for c in shards.cells if c.rank == rank})


@settings(max_examples=60)
@given(sharded())
def test_bucketize_finds_each_id_where_its_cell_holds_it(shards):
    where = {}
    for cell in shards.cells:
        where |= {(cell.table, row): (cell.rank, cell.base + i) for i, row in enumerate(cell.ids().tolist())}
    ids = torch.cat([torch.arange(table.rows) for table in shards.tables])
    table_of = torch.repeat_interleave(torch.tensor([table.rows for table in shards.tables]))
    for backend in ("torch", "cpu"):
        buckets = bucketize(ids, shards.table_base, shards.row_shards, shards.world, backend)
        owners = torch.repeat_interleave(torch.arange(shards.world), buckets.counts)
        for at, rank, row in zip(buckets.order.tolist(), owners.tolist(), buckets.rows.tolist(), strict=True):
            assert where[int(table_of[at]), int(ids[at])] == (rank, row)


@pytest.mark.parametrize("split", ["modulo", "range"])
def test_a_replicated_table_has_no_cell(split):
    shards = Shards((TableSpec("t", 5, 2),), (Placement("t", "replicated", (), split),), 2)
    assert shards.cells == ()
    assert shards.rows_of_rank == (0, 0)


def test_batch_and_table_starts_of_table_major_bags():
    shards = Shards((TableSpec("a", 5, 2), TableSpec("b", 5, 2)), (Placement("a", "replicated"),) * 2, 1)
    bags = Bags(torch.arange(4), torch.tensor([0, 1, 3, 3, 4]))
    assert shards.batch(bags) == 2
    assert shards.table_starts(bags).tolist() == [0, 3, 4]


def test_row_numbers_travel_in_four_bytes_while_they_fit():
    def ids(rows: int) -> torch.dtype:
        return Shards((TableSpec("t", rows, 1),), (Placement("t", "replicated"),), 1).wire_ids

    assert ids(2**31 - 1) == torch.int32
    assert ids(2**31) == torch.int64
