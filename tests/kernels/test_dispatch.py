"""When an op skips torch's dispatcher, and that nobody can tell."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import kernels
from kernels import _backend

TABLE, IDS, OFFSETS = torch.ones(4, 3), torch.tensor([0, 2]), torch.tensor([0, 1, 2])


class Subclass(torch.Tensor):
    pass


def test_plain_eager_tensors_go_straight_to_their_backend():
    assert _backend.plain(TABLE, IDS, None, torch.nn.Parameter(TABLE, requires_grad=False))
    with torch.no_grad():
        assert _backend.plain(TABLE.clone().requires_grad_())


def test_what_records_traces_or_intercepts_goes_through_the_dispatcher():
    assert not _backend.plain(TABLE.clone().requires_grad_())
    assert not _backend.plain(TABLE, torch.empty(1, device="meta"))
    assert not _backend.plain(TABLE.to_sparse())
    with FakeTensorMode():
        assert not _backend.plain(TABLE)
        fake = (torch.empty(4, 3), torch.empty(2, dtype=torch.int64), torch.empty(3, dtype=torch.int64))
        assert kernels.pooled_lookup(*fake, backend="cpu").shape == (2, 3)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not _backend.plain(TABLE)
    with torch.autograd.forward_ad.dual_level():
        assert not _backend.plain(TABLE)
    seen = []
    torch.vmap(lambda x: (seen.append(_backend.plain(x)), x)[1])(TABLE)
    torch.func.grad(lambda x: (seen.append(_backend.plain(x)), x.sum())[1])(TABLE)
    assert seen == [False, False]
    assert not _backend.plain(FakeTensorMode().from_tensor(TABLE))


@pytest.mark.parametrize("backend", kernels.BACKENDS)
def test_an_update_is_seen_by_autograd(backend):
    """A tensor that backward needs and an update changed in between must be refused, not used."""
    table = torch.ones(4, 3)
    factor = torch.ones(4, 3, requires_grad=True)
    product = (factor * table).sum()
    unique = kernels.unique_ids(IDS, backend=backend)
    segments = (torch.ones(2, 3), OFFSETS, None, "sum", unique.order, unique.starts)
    kernels.sparse_update(table, (), unique.rows, *segments, kernels.Optimizer("sgd"), 0.1, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
