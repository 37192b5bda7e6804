"""DeepFM and Wide & Deep against their formulas, written out sample by sample and pair by pair."""

from itertools import combinations

import pytest
import torch
from torch import nn

from kernels.bags import TableSpec
from models.deepfm import DeepFM
from models.wide_deep import WideDeep

B, F, D = 5, 4, 6
MODELS = pytest.mark.parametrize("kind", [DeepFM, WideDeep])


class Pooled(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.tables = tuple(TableSpec(f"t{i}", 9, dim) for i, dim in enumerate(dims))


def made(kind, dims=(D,) * F, **options):
    model = kind(Pooled(dims), top=(7, 1), **options)
    with torch.no_grad():
        model.linear.bias.fill_(0.3)
    return model


def inputs(seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(B, 13, generator=draw, dtype=dtype), torch.randn(B, F * D, generator=draw, dtype=dtype)


@MODELS
def test_logits_are_the_formula(kind):
    model = made(kind).double()
    dense, pooled = inputs()
    rows = pooled.view(B, F, D)
    expected = []
    for x, r in zip(dense, rows, strict=True):
        vectors = [r[t, 1:] for t in range(F)]
        logit = model.linear(x)[0] + sum(r[t, 0] for t in range(F)) + model.top(torch.cat([x, *vectors]))[0]
        if kind is DeepFM:
            logit = logit + sum(a @ b for a, b in combinations(vectors, 2))
        expected.append(logit)
    # a few dozen additions of numbers near 1 in double
    assert torch.allclose(model.dense(dense, pooled), torch.stack(expected), rtol=1e-12, atol=1e-12)


@MODELS
def test_gradients_are_those_of_differences(kind):
    model = made(kind).double()
    dense, pooled = inputs(1)
    assert torch.autograd.gradcheck(lambda p: model.dense(dense, p), pooled.requires_grad_())


@MODELS
def test_initial_weights_depend_on_the_seed_alone(kind):
    def bits(seed):
        return [p.tolist() for p in kind(Pooled([D] * F), top=(7, 1), seed=seed).parameters()]

    assert bits(3) == bits(3) != bits(4)


@MODELS
def test_bfloat16_keeps_the_outside_in_float32(kind):
    dense, pooled = inputs(dtype=torch.float32)
    logits = made(kind, dense_dtype=torch.bfloat16).dense(dense, pooled)
    assert logits.dtype == torch.float32
    # eight bits of mantissa through sums of about a hundred terms
    assert torch.allclose(logits, made(kind).dense(dense, pooled), rtol=0.1, atol=0.3)


@MODELS
@pytest.mark.parametrize(("dims", "other"), [((6, 6, 4), "'t2' of dim 4"), ((1, 1), "'t0' of dim 1")])
def test_tables_of_several_widths_are_named(kind, dims, other):
    with pytest.raises(ValueError, match=rf"{kind.__name__}: expected tables of one width.*{other}"):
        made(kind, dims)
