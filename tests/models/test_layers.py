import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from models.initialise import init_dense
from models.layers import MLP, DotInteraction, LowRankCross

EPS = torch.finfo(torch.float64).eps


def values(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ready(layer):
    """The layer in fp64 with seeded weights, biases too (zero ones would hide a missing b)."""
    init_dense(layer, 1, "layer")
    layer = layer.double()
    for i, parameter in enumerate(p for p in layer.parameters() if p.ndim == 1):
        parameter.data = values(len(parameter), seed=i)
    return layer


def matrix(layer):
    return layer.weight.detach().tolist()


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("last_relu", [True, False])
def test_mlp_is_the_written_out_formula(last_relu):
    mlp = ready(MLP(3, (5, 4), last_relu))
    first, second = (m for m in mlp if isinstance(m, nn.Linear))
    for row, out in zip(values(7, 3).tolist(), mlp(values(7, 3)).tolist(), strict=True):
        hidden = [max(0.0, dot(w, row) + b) for w, b in zip(matrix(first), first.bias.tolist(), strict=True)]
        expected = [dot(w, hidden) + b for w, b in zip(matrix(second), second.bias.tolist(), strict=True)]
        expected = [max(0.0, e) for e in expected] if last_relu else expected
        # Two sums of at most 6 terms of magnitude below 2**4 here: 12 roundings of half an ulp each, on both sides.
        assert out == pytest.approx(expected, rel=0, abs=2 * 12 * 2**4 * EPS)


def test_mlp_has_a_relu_after_every_layer_but_perhaps_the_last():
    kinds = [type(m) for m in MLP(3, (5, 4, 1), last_relu=False)]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(m) for m in MLP(3, (5,), last_relu=True)] == [nn.Linear, nn.ReLU]


def test_dots_are_the_lower_triangle_by_rows():
    x = torch.randint(-8, 8, (4, 5, 3), generator=torch.Generator().manual_seed(0)).double()  # exact sums
    expected = [[dot(s[i], s[j]) for i in range(5) for j in range(i)] for s in x.tolist()]
    assert DotInteraction(5)(x).tolist() == expected


def test_dots_of_one_vector_are_none():
    assert DotInteraction(1)(values(2, 1, 4)).shape == (2, 0)


def test_dots_gradient():
    assert gradcheck(DotInteraction(4), values(2, 4, 3).requires_grad_())


def test_dots_have_no_state_to_save():
    assert DotInteraction(3).state_dict() == {}


def test_cross_is_the_written_out_formula():
    cross = ready(LowRankCross(4, layers=2, rank=3))
    x0 = values(6, 4)
    for row, out in zip(x0.tolist(), cross(x0).tolist(), strict=True):
        x = row
        for v, u in zip(cross.V, cross.U, strict=True):
            low = [dot(w, x) for w in matrix(v)]
            full = [dot(w, low) + b for w, b in zip(matrix(u), u.bias.tolist(), strict=True)]
            x = [a * f + c for a, f, c in zip(row, full, x, strict=True)]
        # Per layer 4 + 4 + 2 roundings, terms of magnitude below 2**7 here; on both sides.
        assert out == pytest.approx(x, rel=0, abs=2 * 20 * 2**7 * EPS)


def test_cross_gradients_of_input_and_parameters():
    cross = ready(LowRankCross(3, layers=2, rank=2))
    names, parameters = zip(*cross.named_parameters(), strict=True)

    def run(x, *tensors):
        return torch.func.functional_call(cross, dict(zip(names, tensors, strict=True)), (x,))

    leaves = [p.detach().clone().requires_grad_() for p in parameters]
    assert gradcheck(run, (values(2, 3).requires_grad_(), *leaves))


def test_cross_of_zero_weights_is_the_identity():
    cross = LowRankCross(4, layers=3, rank=2).double()
    for parameter in cross.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(cross(values(5, 4)), values(5, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(3, (), last_relu=True), "one or more widths"),
        (lambda: MLP(3, (4, 0), last_relu=True), r"widths=\(4, 0\)"),
        (lambda: LowRankCross(4, layers=0, rank=2), "layers=0"),
    ],
)
def test_bad_sizes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
