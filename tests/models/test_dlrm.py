import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

from kernels.bags import Bags, TableSpec
from models.dcn import DLRMDCNv2
from models.dlrm import DLRM
from models.initialise import init_rows, row_scale

BATCH = 6


class OneProcessEmbedding(nn.Module):
    """Stand-in for the sharded embedding: one dense parameter a table, torch's embedding_bag."""

    def __init__(self, dims, rows=20):
        super().__init__()
        self.tables = tuple(TableSpec(f"t{i}", rows, dim) for i, dim in enumerate(dims))
        self.weights = nn.ParameterList(
            init_rows(t.name, torch.arange(t.rows), t.dim, 0, torch.float32, row_scale(t.rows)) for t in self.tables
        )

    def forward(self, bags):
        batch = len(bags) // len(self.tables)
        pooled = []
        for t, weight in enumerate(self.weights):
            offsets = bags.offsets[t * batch : (t + 1) * batch + 1]
            ids = bags.ids[offsets[0] : offsets[-1]]
            pooled.append(embedding_bag(ids, weight, offsets[:-1] - offsets[0], mode="sum"))
        return torch.cat(pooled, dim=1)


def inputs(tables, dtype=torch.float32, batch=BATCH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (tables * batch,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(0, 20, (int(offsets[-1]),), generator=generator)
    return torch.rand(batch, 13, generator=generator).to(dtype), Bags(ids, offsets)


def dlrm(**options):
    return DLRM(OneProcessEmbedding([8, 8, 8]), bottom=(16, 8), top=(16, 1), **options)


def dcn(**options):
    return DLRMDCNv2(OneProcessEmbedding([8, 3, 16]), bottom=(16, 8), top=(16, 1), cross_rank=4, **options)


MODELS = pytest.mark.parametrize("make", [dlrm, dcn])


@MODELS
def test_forward_is_dense_of_the_embedding(make):
    model = make()
    dense, bags = inputs(3)
    logits = model(dense, bags)
    assert logits.shape == (BATCH,)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, model.dense(dense, model.embedding(bags)))


@MODELS
def test_an_empty_batch_gives_no_logits(make):
    assert make()(*inputs(3, batch=0)).shape == (0,)


def test_dlrm_is_the_written_out_formula():
    model = dlrm().double()
    dense, bags = inputs(3, torch.float64)
    pooled = model.embedding(bags)
    z = model.bottom(dense)
    for b in range(BATCH):
        vectors = [z[b], *pooled[b].split(8)]
        dots = [(vectors[i] * vectors[j]).sum() for i in range(4) for j in range(i)]
        expected = model.top(torch.cat([z[b], torch.stack(dots)]))
        # Sums of at most 16 terms of magnitude below 2**3 in five stages: 80 roundings of half an ulp, on both sides.
        torch.testing.assert_close(model.dense(dense, pooled)[b], expected[0], rtol=0, atol=2 * 80 * 2**3 * 2.0**-53)


def test_dcn_crosses_the_bottom_and_the_pooled_rows():
    model = dcn().double()
    dense, bags = inputs(3, torch.float64)
    pooled = model.embedding(bags)
    expected = model.top(model.cross(torch.cat([model.bottom(dense), pooled], dim=1)))
    assert torch.equal(model.dense(dense, pooled), expected[:, 0])
    assert model.cross.V[0].weight.shape == (4, 8 + 27)


@MODELS
def test_gradients_reach_every_parameter_and_agree_with_differences(make):
    model = make().double()
    dense, bags = inputs(3, torch.float64)
    pooled = model.embedding(bags).detach()[:2].requires_grad_()
    assert torch.autograd.gradcheck(lambda p: model.dense(dense[:2], p), pooled)
    model(dense, bags).square().sum().backward()
    assert all(p.grad is not None and torch.count_nonzero(p.grad) for p in model.parameters())


@MODELS
def test_initial_weights_depend_on_seed_and_name_alone(make):
    first = make().state_dict()
    torch.manual_seed(99)
    nn.Linear(3, 3)
    again = make().state_dict()
    assert first.keys() == again.keys()
    assert all(torch.equal(first[k], again[k]) for k in first)
    other = make(seed=1).state_dict()
    dense_matrices = [k for k, v in first.items() if not k.startswith("embedding.") and v.ndim == 2]
    assert dense_matrices
    assert not any(torch.equal(first[k], other[k]) for k in dense_matrices)


def test_shared_names_have_the_same_bits_in_both_models():
    assert torch.equal(dlrm().bottom[0].weight, dcn().bottom[0].weight)


@MODELS
def test_bf16_runs_the_matrices_in_bf16_and_keeps_the_edges_fp32(make):
    model, full = make(dense_dtype=torch.bfloat16), make()
    seen = []
    model.top[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    dense, bags = inputs(3)
    pooled = model.embedding(bags).detach().requires_grad_()
    logits = model.dense(dense, pooled)
    binary_cross_entropy_with_logits(logits, torch.ones(BATCH)).backward()
    assert seen == [torch.bfloat16]
    assert logits.dtype == pooled.grad.dtype == model.top[0].weight.grad.dtype == torch.float32
    exact = full.dense(dense, pooled)
    assert not torch.equal(logits, exact)
    # bf16 rounds to 2**-9 relative; at most 10 stages in a row, each result and its two operands rounded once, all
    # below 1 in magnitude.
    torch.testing.assert_close(logits, exact, rtol=0, atol=3 * 10 * 2.0**-9)


@MODELS
def test_a_few_steps_of_sgd_lower_the_loss(make):
    model = make()
    dense, bags = inputs(3)
    labels = torch.tensor([0.0, 1.0] * (BATCH // 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        loss = binary_cross_entropy_with_logits(model(dense, bags), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_dlrm_refuses_dims_other_than_the_bottoms():
    with pytest.raises(ValueError, match=r"bottom\[-1\] = 8, given dim 4 of table 't1' \(1 of 2 tables"):
        DLRM(OneProcessEmbedding([8, 4]), bottom=(16, 8), top=(16, 1))


@MODELS
def test_bad_arguments_are_named(make):
    model = make()
    dense, bags = inputs(3)
    pooled = model.embedding(bags)
    with pytest.raises(ValueError, match=r"dense: expected \[B, 13\], given \(6, 12\)"):
        model.dense(dense[:, :12], pooled)
    with pytest.raises(ValueError, match=r"pooled: expected \[6, \d+\] .* given \(5, "):
        model.dense(dense, pooled[:5])
    with pytest.raises(ValueError, match=r"one dtype, torch\.float32 or torch\.float64, given dense torch\.float64"):
        model.dense(dense.double(), pooled)
    with pytest.raises(
        ValueError, match=r"dense_dtype: expected torch\.float32 or torch\.bfloat16, given torch\.float16"
    ):
        make(dense_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"one dtype, torch\.float32, given .*float64"):
        make(dense_dtype=torch.bfloat16).double()(*inputs(3, torch.float64))


def test_the_top_ends_in_one_logit_and_there_are_tables():
    with pytest.raises(ValueError, match=r"end in 1 \(the logit\), given \(16, 2\)"):
        DLRM(OneProcessEmbedding([8]), bottom=(8,), top=(16, 2))
    with pytest.raises(ValueError, match="at least one table"):
        DLRMDCNv2(OneProcessEmbedding([]))
    with pytest.raises(ValueError, match="dense_features: expected >= 1, given 0"):
        DLRM(OneProcessEmbedding([8]), dense_features=0)
