"""Overlap within a step and between steps: the bits of the plain step and of the oracle."""

import random
from functools import cache
from typing import Any

import numba
import pytest
import torch
from torch import Tensor, nn

from comm.canonical import row_order
from comm.group import Group, TorchGroup, launch, simulate
from comm.pipeline import Pipeline, Staged
from comm.plan import Placement, Plan
from kernels import Optimizer
from models.dlrm import DLRM
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.overlap import OverlappedStep, keys_ahead
from models.pipeline import PipelinedTraining
from models.step import Loss, cross_entropy_sum
from tests.comm import oracle
from tests.comm.test_exact import SUMS, assert_same, exact_rows
from tests.comm.workload import (
    FEATURES,
    LR,
    LinearModel,
    Result,
    Work,
    delayed,
    digest,
    frame_of,
    linear_loss,
    real_model,
    train,
)

MODES = ("step", "steps")
"""Overlap within a step; that, and keys one batch ahead."""
WORK = Work(optimizer="rowwise_adagrad", weighted=True, dims=(8, 4), steps=4)
CLUSTERS = ((1, None), (2, None), (4, 2))


def mixed(world: int, work: Work = WORK) -> Plan:
    """All of EMBark's clusters and de-duplication by node in one plan."""
    ranks = tuple(range(world))
    strategies = (("replicated_dense", ()), ("unique", ranks), ("hierarchical", ranks[::-1]), ("unique_node", ranks))
    placements = (Placement(t.name, *how) for t, how in zip(work.tables, strategies, strict=True))
    return Plan(world, work.tables, tuple(placements))


def flat(world: int, work: Work = WORK) -> Plan:
    """Flat exchanges, columns on ranks of their own among them, and a replicated table whose keys travel."""
    ranks = tuple(range(world))
    columns = Placement("few", "gridwise", ranks, columns=2 if world > 1 else 1)
    placements = (Placement("one", "replicated"), columns, Placement("some", "rowwise", ranks))
    return Plan(world, work.tables, (*placements, Placement("many", "unique", ranks, "range")))


PLANS = {"mixed": mixed, "flat": flat}


def overlapped_train(
    group: Group, work: Work, plan: Plan, mode: str, make=real_model, loss: Loss = cross_entropy_sum,
    threads: bool = True,
) -> Result:  # fmt: skip
    """As `tests.comm.workload.train`, with overlap; phases take random times if `threads` run them."""
    embedding = ShardedEmbedding(plan, group, Optimizer(work.optimizer), backend="cpu")
    model = make(embedding).to(work.dtype)
    schedule = OverlappedStep(model, torch.optim.SGD(list(model.parameters()), lr=LR), loss).schedule()
    if threads:
        schedule = delayed(schedule, random.Random(group.rank))
    executor = Executor(threads, started=lambda: numba.set_num_threads(1))
    frames = [frame_of(work, number, group) for number in range(work.steps)]
    if mode == "step":
        group.open([phase.stream for phase in schedule.phases])
        for frame in frames:
            executor.run(schedule, frame)
    else:
        frames = list(PipelinedTraining(keys_ahead(schedule), executor, group).steps(frames))
    assert all(team.strategy.store.stats()["leases"] == 0 for team in embedding.teams)
    dense = torch.cat([p.detach().flatten() for p in model.parameters()])
    sent = {label: bytes_.tolist() for label, bytes_ in group.sent.items()}
    return Result([frame["loss"] for frame in frames], embedding.gather_tables(), dense, sent)


@cache
def of_oracle(name: str, world: int, ranks_per_node: int | None) -> Result:
    return oracle.train(PLANS[name](world), WORK, ranks_per_node)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS)
def test_overlap_is_the_oracle_with_the_plans_grouping(name, world, ranks_per_node, mode):
    plan = PLANS[name](world)
    ranks = simulate(world, lambda group: overlapped_train(group, WORK, plan, mode), ranks_per_node)
    for result in ranks:
        assert_same(result, of_oracle(name, world, ranks_per_node))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PLANS)
def test_overlap_is_the_plain_step_in_bits_and_bytes(name, mode):
    plan = PLANS[name](4)
    plain = simulate(4, lambda group: train(group, WORK, plan=plan), 2)
    for threads in (False, True):
        ours = simulate(4, lambda group, t=threads: overlapped_train(group, WORK, plan, mode, threads=t), 2)
        for mine, theirs in zip(ours, plain, strict=True):
            assert_same(mine, theirs)
            assert mine.sent == theirs.sent


class LinearParts(LinearModel):
    """`LinearModel` in two parts."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__(embedding)
        self.bottom = nn.Linear(FEATURES, 1, bias=False)
        nn.init.zeros_(self.bottom.weight)

    def dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return self.second_part(self.first_part(dense), pooled)

    def first_part(self, dense: Tensor) -> Tensor:
        return self.bottom(dense)

    def second_part(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        return bottom[:, 0] + pooled @ (torch.arange(pooled.shape[1]).to(pooled.dtype) % 3 - 1)


@pytest.mark.parametrize("mode", MODES)
def test_exactly_representable_models_are_those_of_one_rank(monkeypatch, mode):
    for where in ("models.embedding", "models.initial_rows"):
        monkeypatch.setattr(f"{where}.init_rows", exact_rows, raising=False)
    work = Work(dims=(8, 4), **SUMS)
    one = simulate(1, lambda group: train(group, work, LinearParts, linear_loss))[0]
    for name in PLANS:
        plan = PLANS[name](4, work)
        many = simulate(4, lambda group, p=plan: overlapped_train(group, work, p, mode, LinearParts, linear_loss), 2)
        assert_same(many[0], one)
    start = exact_rows("many", torch.arange(100), 4, 0, torch.float32, 1.0)
    assert not torch.equal(one.tables["many"][0], start)


@pytest.mark.parametrize("dense_dtype", [torch.float32, torch.bfloat16])
def test_a_bottom_that_is_read_twice(dense_dtype):
    def make(embedding):
        return DLRM(embedding, FEATURES, bottom=(8, 8), top=(8, 1), dense_dtype=dense_dtype)

    work = Work(steps=3)
    plain = simulate(2, lambda group: train(group, work, make))
    ours = simulate(2, lambda group: overlapped_train(group, work, work.plan(2), "steps", make))
    assert_same(ours[0], plain[0])


def over_gloo(group: TorchGroup) -> list[str]:
    plans = [plan(group.size) for plan in PLANS.values()]
    return [digest(overlapped_train(TorchGroup(), WORK, plan, mode)) for plan in plans for mode in MODES]


@pytest.mark.dist
def test_processes_give_the_bits_of_threads():
    expected = [
        digest(simulate(2, lambda group, p=plan: train(group, WORK, plan=p(2)))[0])
        for plan in PLANS.values()
        for _ in MODES
    ]
    assert launch(2, over_gloo) == [expected] * 2


def test_a_model_in_one_part_is_refused():
    def build(group):
        model: Any = LinearModel(ShardedEmbedding(WORK.plan(1), group, backend="cpu"))
        OverlappedStep(model, None)

    with pytest.raises(RuntimeError, match=r"expected one in two parts .* LinearModel, which lacks first_part"):
        simulate(1, build)


# Each mutation breaks one rule of the overlap; the comparison that guards it must see that.


def differs(mode: str = "steps") -> bool:
    plan = mixed(2)
    ours = simulate(2, lambda group: overlapped_train(group, WORK, plan, mode, threads=False))[0]
    return digest(ours) != digest(of_oracle("mixed", 2, None))


def test_mutation_rows_read_one_batch_ahead(monkeypatch):
    """Keys may run ahead, values may not: the update of the batch between would be missing."""
    assert not differs()

    def too_early(schedule, depth=1):
        known, early, late = {"bags", "step", "training"}, [], []
        for phase in schedule.phases:
            is_early = known.issuperset(phase.needs) and phase.name.endswith((".gather", "dedup", "keys", "split"))
            known.update(phase.gives if is_early else ())
            (early if is_early else late).append(Staged(depth if is_early else 0, phase))
        return Pipeline((*early, *late), schedule.inputs)

    monkeypatch.setitem(globals(), "keys_ahead", too_early)
    assert differs()


def test_mutation_index_without_the_node_level(monkeypatch):
    work = Work(optimizer="sgd", weighted=True, dims=(8, 4), steps=4)
    expected = oracle.train(mixed(4, work), work, 2)

    def one_level(rows, source, group, summed, backend):
        return row_order(rows, torch.zeros_like(source), group, True, backend)

    def run() -> Result:
        return simulate(4, lambda group: overlapped_train(group, work, mixed(4, work), "step", threads=False), 2)[0]

    assert digest(run()) == digest(expected)
    monkeypatch.setattr("comm._pooled.row_order", one_level)
    assert digest(run()) != digest(expected)


@pytest.mark.parametrize("part", ["bottom_grad", "top_grads"])
def test_mutation_a_part_of_the_dense_gradient_lost(monkeypatch, part):
    backward = OverlappedStep._bottom_backward

    def lose(self, bottom, grad, top_grads):
        if part == "bottom_grad":
            return backward(self, bottom, torch.zeros_like(grad), top_grads)
        return backward(self, bottom, grad, [torch.zeros_like(g) for g in top_grads])

    monkeypatch.setattr(OverlappedStep, "_bottom_backward", lose)
    assert differs("step")
