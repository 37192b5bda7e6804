import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm.group import simulate
from comm.plan import STRATEGIES, Plan
from comm.wire import WIRES, pack, row_bytes, unpack
from kernels import TableSpec
from models.embedding import ShardedEmbedding
from tests.comm.workload import Work, digest, draw_bags, train

EXACT = torch.tensor([[1.0, 5.0, 0.0, 255.0], [0.0, 0.0, 0.0, 0.0], [-127.0, 3.0, 128.0, 1.0]])


def half_step(x: torch.Tensor, wire: str) -> torch.Tensor:
    """The bound of comm/wire.py for one exchange of `x` [n, dim], with the smallest subnormal's half for fp16."""
    if wire == "int8":
        # the bound of kernels/row_copy: half a step of (max - min) / 255, and 9 roundings of the row's largest number
        ends = x.aminmax(dim=1, keepdim=True)
        return ((ends.max - ends.min) / 510 + 9 * 2.0**-24 * x.abs().amax(1, keepdim=True) + 2.0**-142).expand_as(x)
    return {"table": 0.0, "bf16": 2.0**-8, "fp16": 2.0**-11}[wire] * x.abs() + (2.0**-25 if wire == "fp16" else 0.0)


@pytest.mark.parametrize("wire", WIRES)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 1000))
def test_what_comes_back_is_within_half_a_step(wire, rows, dim, seed):
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))
    packed = pack(x, wire)
    assert packed.numel() * packed.itemsize == rows * row_bytes(dim, x.dtype, wire)
    back = unpack(packed, dim, x.dtype, wire)
    assert back.shape == x.shape
    assert ((back - x).abs() <= half_step(x, wire)).all()


@pytest.mark.parametrize("wire", WIRES)
def test_numbers_of_the_format_come_back_as_they_are(wire):
    assert torch.equal(unpack(pack(EXACT, wire), 4, torch.float32, wire), EXACT)


@pytest.mark.parametrize("wire", ["bf16", "fp16", "int8"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_narrow_wire_moves_an_exchange_by_its_format_and_no_more(strategy, wire):
    table = TableSpec("t", 20, 4)
    bags = draw_bags((table,), 6, 3, False, torch.float32)
    plans = [Plan.uniform((table,), strategy, 2, wire=w) for w in ("table", wire)]

    def pooled(plan: Plan) -> torch.Tensor:
        return simulate(2, lambda group: ShardedEmbedding(plan, group, backend="cpu")(bags))[0]

    exact, narrow = map(pooled, plans)
    # At most 3 ids a bag and |row| <= 20^-0.5, so |partial sum| <= 3 * 20^-0.5 on each of at most 4 hops (two ranks,
    # two stages of a node's exchange), each within half a step of the largest; half as much again for sums' order.
    largest = 3 * 20**-0.5 * torch.tensor([[-1.0, 1.0, 1.0, 1.0]])
    assert (exact - narrow).abs().max() <= 4 * 1.5 * half_step(largest, wire).max()
    everywhere = strategy.startswith(("replicated", "allgather"))  # values travel only on the way back
    assert everywhere or not torch.equal(exact, narrow)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_stay_equal_on_a_narrow_wire(strategy):
    work = Work(strategy, optimizer="rowwise_adagrad", steps=3)
    plan = Plan.uniform(work.tables, strategy, 2, wire="int8")
    assert len({digest(result) for result in simulate(2, lambda group: train(group, work, plan=plan))}) == 1
