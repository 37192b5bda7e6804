import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from comm.group import SimGroup, simulate
from kernels import Optimizer
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.initialise import init_rows, row_scale
from models.step import TrainingStep, cross_entropy_sum
from tests.comm.workload import (
    CUTS,
    GLOBAL_BATCH,
    LR,
    LinearModel,
    Result,
    Work,
    batch_of,
    linear_loss,
    real_model,
    slice_of,
    train,
)


class TorchTables(nn.Module):
    """The tables as torch's own: one nn.EmbeddingBag each, with the same initial weights."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.tables = work.tables
        self.bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                init_rows(t.name, torch.arange(t.rows), t.dim, 0, t.dtype, row_scale(t.rows)),
                freeze=False,
                mode=t.pooling,
                include_last_offset=True,
            )
            for t in work.tables
        )

    def forward(self, bags):
        batch = len(bags) // len(self.tables)
        parts = [slice_of(bags, i * batch, (i + 1) * batch) for i in range(len(self.tables))]
        return torch.cat(
            [bag(part.ids, part.offsets, part.weights) for bag, part in zip(self.bags, parts, strict=True)], dim=1
        )


def plain_torch(work: Work) -> Result:
    """The same training as a plain module under autograd and torch.optim.SGD, on the whole batch."""
    model = real_model(TorchTables(work)).to(work.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(work.steps):
        bags, dense, label = batch_of(work, step, 0, GLOBAL_BATCH)
        loss = binary_cross_entropy_with_logits(model(dense, bags), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dense = [p.detach().flatten() for name, p in model.named_parameters() if not name.startswith("embedding.")]
    tables = {t.name: (bag.weight.detach(), None) for t, bag in zip(work.tables, model.embedding.bags, strict=True)}
    return Result(losses, tables, torch.cat(dense), {})


@pytest.mark.parametrize(
    "work", [Work(dtype=torch.float64), Work(poolings=("sum",), weighted=True, dtype=torch.float64)]
)
def test_one_rank_is_the_plain_torch_model(work):
    ours, theirs = simulate(1, lambda group: train(group, work))[0], plain_torch(work)
    # Both sum the same < 1000 terms a number and step in different orders, 10 steps: 10 * 1000 * 2^-53 = 1.1e-12 of the
    # largest number, about 4.
    near = {"rtol": 0, "atol": 4 * 10 * 1000 * 2.0**-53}
    torch.testing.assert_close(torch.tensor(ours.losses), torch.tensor(theirs.losses), **near)
    torch.testing.assert_close(ours.dense, theirs.dense, **near)
    for name, (values, _) in theirs.tables.items():
        torch.testing.assert_close(ours.tables[name][0], values, **near)
        moved = init_rows(name, torch.arange(len(values)), values.shape[1], 0, values.dtype, row_scale(len(values)))
        assert (values - moved).abs().max() > 1e-3  # it is training that agrees


def test_the_loss_is_the_global_batchs_mean_on_every_rank():
    work = Work(steps=1, dtype=torch.float64)
    one = simulate(1, lambda group: train(group, work))[0].losses[0]
    # 16 terms of about 0.7, in two orders.
    assert all(
        result.losses == pytest.approx([one], rel=2 * 16 * 2.0**-53)
        for result in simulate(4, lambda group: train(group, work))
    )


def one_step(group: SimGroup, ring: bool = False, dense_optimizer: bool = True):
    """Dense parameters and tables after a step of the linear model, and the bytes sent."""
    work = Work(poolings=("sum",))
    embedding = ShardedEmbedding(work.plan(group.size), group, Optimizer("sgd"), backend="cpu")
    model = LinearModel(embedding)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR) if dense_optimizer else None
    begin, end = CUTS[group.size][group.rank : group.rank + 2]
    bags, dense, label = batch_of(work, 0, begin, end)
    frame = {"step": 0, "lr": LR, "training": True, "bags": bags, "dense": dense, "label": label}
    schedule = TrainingStep(model, optimizer, linear_loss, ring).schedule()
    Executor().run(schedule, frame | {"global_batch": GLOBAL_BATCH})
    return model.vector.detach().clone(), embedding.gather_tables(), set(group.sent)


def test_a_ring_gives_the_same_sum_where_every_order_is_exact():
    exact, ring = simulate(4, one_step)[0], simulate(4, lambda group: one_step(group, ring=True))[0]
    assert torch.equal(exact[0], ring[0])
    assert torch.count_nonzero(exact[0])
    assert "dense_reduce" in ring[2]
    assert {"dense_reduce.scatter", "dense_reduce.gather"} <= exact[2]


def test_without_a_dense_optimizer_only_the_tables_move():
    vector, tables, _ = simulate(2, lambda group: one_step(group, dense_optimizer=False))[0]
    _, expected, _ = simulate(2, one_step)[0]
    assert torch.count_nonzero(vector) == 0
    assert all(torch.equal(tables[name][0], expected[name][0]) for name in tables)


def test_the_loss_keeps_double_and_widens_bfloat16():
    logits, label = torch.tensor([0.5, -2.0]), torch.tensor([1.0, 0.0])
    expected = -(torch.sigmoid(torch.tensor([0.5, 2.0], dtype=torch.float64))).log().sum()
    double = cross_entropy_sum(logits.double(), label)
    assert double.dtype == torch.float64
    assert double.item() == pytest.approx(expected.item(), rel=8 * 2.0**-53)  # a handful of roundings
    low = cross_entropy_sum(logits.bfloat16(), label)
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(expected.item(), rel=8 * 2.0**-24)  # both logits are exact in bfloat16
    assert cross_entropy_sum(logits, label.int()).dtype == torch.float32


def test_a_model_of_another_embedding_is_refused():
    model = real_model(TorchTables(Work()))
    with pytest.raises(TypeError, match=r"model\.embedding: expected a ShardedEmbedding, given TorchTables"):
        TrainingStep(model, None)
