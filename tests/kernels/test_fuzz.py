"""A million drawn bags: no kernel reads or writes outside its tensors, whatever the ids that callers had dropped."""

import pytest
import torch

from kernels import Bags, Optimizer, TableSpec, check_ids, pooled_lookup, sparse_update, unique_ids

ROUNDS = {"cpu": (20, 50_000), "torch": (20, 50_000), "triton": (20, 50_000), "numba": (20, 100)}
"""Rounds and bags a round: a million in all, 2,000 in the CUDA simulator."""


def guarded(rows: int, dim: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A table [rows, dim] with a row of NaN on either side in memory, and the whole of that memory."""
    memory = torch.full(((rows + 2) * dim,), torch.nan)
    table = memory[dim:-dim].view(rows, dim)
    table.copy_(torch.randn(rows, dim, generator=generator))
    return table, memory


def draw(rows: int, bags: int, generator: torch.Generator) -> tuple[Bags, int]:
    """Bags of 0 to 3 ids of which some are out of range; and how many those are."""
    lengths = torch.randint(0, 4, (bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(0, rows, (int(offsets[-1]),), generator=generator)
    wild = torch.rand(len(ids), generator=generator) < 0.01
    wild[0] = True
    far = torch.tensor([-1, -(2**40), rows, 2**40])[torch.randint(0, 4, (len(ids),), generator=generator)]
    return Bags(torch.where(wild, far, ids), offsets), int(wild.sum())


def check_round(backend: str, seed: int, bags: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, dim = int(torch.randint(1, 5000, (), generator=generator)), [1, 3, 16, 33][seed % 4]
    table, memory = guarded(rows, dim, generator)
    drawn, wild = draw(rows, bags, generator)
    with pytest.raises(ValueError, match="out of range"):
        check_ids(drawn, [TableSpec("t", rows, dim)])
    kept, dropped = check_ids(drawn, [TableSpec("t", rows, dim)], "drop")
    assert dropped == wild > 0
    out = pooled_lookup(table, kept.ids, kept.offsets, backend=backend)
    exact = pooled_lookup(table.double(), kept.ids, kept.offsets, backend="torch")
    size = pooled_lookup(table.double().abs(), kept.ids, kept.offsets, backend="torch")
    # recursive summation of at most 3 terms: (n + 1) * eps of the sum of their sizes
    assert ((out.double() - exact).abs() <= 4 * 2.0**-24 * size).all()
    index, before = unique_ids(kept.ids, backend), table.clone()
    sparse_update(
        table, (), index.rows, out, kept.offsets, None, "sum", index.order, index.starts, Optimizer("sgd"), 0.5,
        backend=backend,
    )  # fmt: skip
    untouched = torch.ones(rows, dtype=torch.bool)
    untouched[kept.ids] = False
    assert torch.equal(table[untouched], before[untouched])
    assert table.isfinite().all()
    assert memory[:dim].isnan().all()
    assert memory[-dim:].isnan().all()


@pytest.mark.parametrize("backend", ["cpu", "torch", "triton", "numba"])
def test_a_few_drawn_bags_stay_inside(backend):
    check_round(backend, 1, 40)


@pytest.mark.slow
@pytest.mark.parametrize("backend", list(ROUNDS))
def test_a_million_drawn_bags_stay_inside(backend):
    rounds, bags = ROUNDS[backend]
    for seed in range(rounds):
        check_round(backend, seed, bags)
