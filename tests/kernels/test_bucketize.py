"""A table cut into row parts and blocks of columns gives back its rows through bucketize."""

import pytest
import torch

import kernels

ROWS, DIM, BLOCKS, PARTS, WORLD = 11, 6, 2, 3, 4


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("span", [0, -(-ROWS // PARTS)], ids=["modulo", "range"])
def test_a_grid_of_rows_and_columns_gives_back_the_table(span, backend):
    random = torch.Generator().manual_seed(1)
    table = torch.randn(ROWS, DIM, generator=random)
    ids = torch.randint(ROWS, (20,), generator=random)
    width = DIM // BLOCKS
    held = [[] for _ in range(WORLD)]  # each rank's array, cell after cell
    owner, base = [], []
    for block in range(BLOCKS):
        columns = table[:, block * width : (block + 1) * width]
        for part in range(PARTS):
            rank = (block * PARTS + part) % WORLD
            owner.append(rank)
            base.append(sum(map(len, held[rank])))
            held[rank].append(columns[part * span : (part + 1) * span] if span else columns[part::PARTS])
    shards = kernels.RowShards(
        *(torch.tensor(x) for x in ([PARTS] * BLOCKS, [span] * BLOCKS, [b * PARTS for b in range(BLOCKS)], owner, base))
    )
    starts = torch.arange(BLOCKS + 1) * len(ids)
    buckets = kernels.bucketize(ids.repeat(BLOCKS), starts, shards, WORLD, backend)
    out = torch.empty(BLOCKS, len(ids), width)
    for rank, (positions, rows) in enumerate(
        zip(*(x.split(buckets.counts.tolist()) for x in (buckets.order, buckets.rows)), strict=True)
    ):
        out.view(-1, width)[positions] = torch.cat(held[rank])[rows]
    assert torch.equal(torch.cat(out.unbind(), 1), table[ids])
