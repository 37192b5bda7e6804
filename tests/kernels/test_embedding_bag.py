"""The drop-in modules give what torch.nn.EmbeddingBag gives: results, gradients, state, errors."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import kernels
from kernels import Bags, EmbeddingBag, EmbeddingBagCollection, TableSpec

ROWS, DIM = 11, 5
IDS = torch.tensor([3, 3, 0, 7, 10, 3, 7, 3, 1, 1, 10, 2])
OFFSETS = torch.tensor([0, 3, 3, 8])  # bags of 3, 0, 5 and 4 ids
MODES = ("sum", "mean", "max")


def pair(mode, **options):
    """Torch's module and ours, in float64 over the same weights."""
    theirs = nn.EmbeddingBag(ROWS, DIM, mode=mode, dtype=torch.float64, **options)
    ours = EmbeddingBag(ROWS, DIM, mode=mode, dtype=torch.float64, backend="cpu", **options)
    ours.load_state_dict(theirs.state_dict())
    assert str(ours).startswith("EmbeddingBag(11, 5")
    return theirs, ours


def results(module, *inputs, **named):
    """The result and the gradients of a drawn linear loss in the weight, dense."""
    out = module(*inputs, **named)
    leaves = [module.weight, *(value for value in named.values() if value.requires_grad)]
    factor = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return out.detach(), *(grad.to_dense() for grad in torch.autograd.grad(out, leaves, factor))


def assert_same(theirs, ours, *inputs, **named):
    # At most 5 terms in float64 of size below 10: a few hundred units of round-off, were every order another.
    for expected, given in zip(results(theirs, *inputs, **named), results(ours, *inputs, **named), strict=True):
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding_idx", [None, 3, -1])
@pytest.mark.parametrize("sparse", [False, True])
def test_equals_torchs_module(mode, padding_idx, sparse):
    if mode == "max" and sparse:
        with pytest.raises(ValueError, match="max mode does not support sparse weights"):
            pair(mode, sparse=True)[0](IDS, OFFSETS)
        sparse = False
    theirs, ours = pair(mode, padding_idx=padding_idx, sparse=sparse)
    assert_same(theirs, ours, IDS, OFFSETS)
    assert_same(theirs, ours, IDS.view(3, 4))
    assert_same(theirs, ours, IDS.int().view(4, 3))
    assert_same(theirs, ours, torch.full((2, 3), 10))  # with padding_idx -1, bags of padding only
    theirs, ours = pair(mode, padding_idx=padding_idx, sparse=sparse, include_last_offset=True)
    assert_same(theirs, ours, IDS, torch.cat([OFFSETS, torch.tensor([12])]))


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_per_sample_weights_and_their_gradient(padding_idx):
    weights = torch.randn(12, dtype=torch.float64, requires_grad=True)
    theirs, ours = pair("sum", padding_idx=padding_idx)
    assert_same(theirs, ours, IDS, OFFSETS, per_sample_weights=weights)
    grid = weights.detach().view(3, 4).requires_grad_()
    assert_same(theirs, ours, IDS.view(3, 4), per_sample_weights=grid)
    with pytest.raises(ValueError, match="weights: expected none with pooling 'mean'"):
        pair("mean")[1](IDS, OFFSETS, weights)
    with pytest.raises(ValueError, match=r"per_sample_weights: expected the input's shape \(12,\), given \(11,\)"):
        ours(IDS, OFFSETS, weights[1:])


def test_a_sparse_gradient_holds_the_touched_rows_once():
    ours = EmbeddingBag(ROWS, DIM, mode="sum", sparse=True, backend="cpu")
    ours(IDS, OFFSETS).sum().backward()
    grad = ours.weight.grad
    assert grad.is_sparse
    assert grad._indices().tolist() == [[0, 1, 2, 3, 7, 10]]
    before = ours.weight.detach().clone()
    torch.optim.SGD(ours.parameters(), lr=0.5).step()
    assert torch.equal(ours.weight.detach(), before - 0.5 * grad.to_dense())


def test_half_precision_modules_take_weights_of_their_own_dtype():
    ours = EmbeddingBag(ROWS, DIM, mode="sum", dtype=torch.float16, backend="cpu")
    weights = torch.randn(12, dtype=torch.float16, requires_grad=True)
    out = ours(IDS, OFFSETS, weights)
    out.sum().backward()
    assert out.dtype == ours.weight.grad.dtype == weights.grad.dtype == torch.float16


def test_state_goes_both_ways_and_pretrained_rows_are_frozen():
    theirs, ours = pair("sum")
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs.weight, ours.weight)
    frozen = EmbeddingBag.from_pretrained(theirs.weight.detach(), mode="sum", backend="cpu")
    assert not frozen.weight.requires_grad
    torch.testing.assert_close(frozen(IDS, OFFSETS), theirs(IDS, OFFSETS), rtol=0, atol=1e-13)
    padded = EmbeddingBag(ROWS, DIM, padding_idx=-2)
    assert padded.padding_idx == 9
    assert not padded.weight[9].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 1.0}, "max_norm: expected None, given 1.0: it rescales rows in place in the forward pass"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq: expected False, given True: it divides a row's gradient"),
        ({"mode": "median"}, "unknown mode 'median': choose one of sum, mean, max"),
        ({"padding_idx": 11}, "padding_idx: expected within 11 rows, given 11"),
        ({"_weight": torch.zeros(2, 2)}, r"_weight: expected \(11, 5\), given \(2, 2\)"),
    ],
)
def test_refuses_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBag(ROWS, DIM, **options)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IDS,), "offsets: expected 1-D int32 or int64 with a 1-D input, given None"),
        ((IDS.view(3, 4), OFFSETS), "offsets: expected None with a 2-D input"),
        ((IDS.view(3, 2, 2),), "input: expected 1-D or 2-D, given 3-D"),
        ((IDS + 1, OFFSETS), "table 'weight': id 11 at position 4 is out of range: expected 0 <= id < 11"),
        ((IDS, OFFSETS + 1), "offsets: expected first 0 and last 12"),
        ((IDS, OFFSETS.flip(0)), "offsets: expected first 0"),
    ],
)
def test_bad_input_is_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBag(ROWS, DIM, backend="cpu")(*inputs)


TABLES = (
    TableSpec("a", 11, 5, dtype=torch.float64),
    TableSpec("b", 4, 3, "max", torch.float64),
    TableSpec("c", 7, 5, dtype=torch.float64),
    TableSpec("d", 2, 5, "mean", torch.float64),
)


def several(tables, batch=3, seed=0):
    """Table-major bags of 0 to 3 ids."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, (len(tables) * batch,), generator=random)
    per_table = lengths.view(len(tables), batch).sum(1).tolist()
    ids = [torch.randint(table.rows, (n,), generator=random) for table, n in zip(tables, per_table, strict=True)]
    return Bags(torch.cat(ids), nn.functional.pad(lengths.cumsum(0), (1, 0)))


def separate(modules, bags):
    """What a ModuleDict of torch.nn.EmbeddingBag gives."""
    batch = len(bags) // len(modules)
    columns = []
    for first, module in zip(range(0, len(bags), batch), modules.values(), strict=True):
        bounds = bags.offsets[first : first + batch + 1]
        columns.append(module(bags.ids[bounds[0] : bounds[-1]], (bounds - bounds[0])[:-1]))
    return torch.cat(columns, dim=1)


def modules_of(tables):
    of = {t.name: nn.EmbeddingBag(t.rows, t.dim, mode=t.pooling, dtype=t.dtype) for t in tables}
    return nn.ModuleDict(of)


@pytest.mark.parametrize("tables", [TABLES, TABLES[::2]], ids=["three_stacks", "one_stack"])
def test_a_collection_equals_separate_modules(tables):
    modules = modules_of(tables)
    ours = EmbeddingBagCollection(tables, backend="cpu")
    assert len(list(ours.parameters())) == len({(t.dim, t.pooling) for t in tables})
    ours.load_state_dict(modules.state_dict())
    bags = several(tables)
    expected, given = separate(modules, bags), ours(bags)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-13)
    factor = torch.randn(given.shape, dtype=torch.float64)
    (expected * factor).sum().backward()
    (given * factor).sum().backward()
    for weight in ours.parameters():
        weight.data = weight.grad  # so that rows_of cuts the gradients
    for name, module in modules.items():
        torch.testing.assert_close(ours.rows_of(name), module.weight.grad, rtol=0, atol=1e-13)


def test_the_state_of_a_collection_goes_both_ways():
    modules, ours = modules_of(TABLES), EmbeddingBagCollection(TABLES, backend="cpu")
    modules.load_state_dict(ours.state_dict())
    torch.testing.assert_close(separate(modules, several(TABLES)), ours(several(TABLES)), rtol=0, atol=1e-13)
    wrong = {**ours.state_dict(), "b.weight": torch.zeros(4, 4), "e.weight": torch.zeros(1)}
    del wrong["a.weight"]
    with pytest.raises(RuntimeError, match=r"(?s)b.weight: expected shape \(4, 3\), given \(4, 4\)") as error:
        ours.load_state_dict(wrong)
    assert '"a.weight"' in str(error.value)
    assert '"e.weight"' in str(error.value)


def test_a_collection_names_what_is_wrong():
    ours = EmbeddingBagCollection(TABLES, backend="cpu")
    bags = several(TABLES)
    with pytest.raises(ValueError, match=r"table 'd': id 9 at position .* is out of range: expected 0 <= id < 2"):
        ours(Bags(torch.cat([bags.ids[:-1], torch.tensor([9])]), bags.offsets))
    with pytest.raises(ValueError, match="bags: expected a multiple of 4 tables, given 3 bags"):
        ours(several(TABLES[:1]))
    with pytest.raises(ValueError, match="each of its own name, given"):
        EmbeddingBagCollection((TABLES[0], TABLES[0]))
    with pytest.raises(ValueError, match="unknown table 'z': choose one of a, b, c, d"):
        ours.rows_of("z")


def test_an_empty_batch():
    ours = EmbeddingBagCollection(TABLES, backend="cpu")
    assert ours(Bags(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))).shape == (0, 18)
    assert EmbeddingBag(ROWS, DIM, backend="cpu")(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, DIM)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's inductor
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph_holds_the_whole_module(compiler):
    plain = EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=3, backend="cpu")
    whole = torch.compile(plain, fullgraph=True, backend=compiler)
    weights = torch.randn(12, requires_grad=True)
    for expected, given in zip(
        results(plain, IDS, OFFSETS, per_sample_weights=weights),
        results(whole, IDS, OFFSETS, per_sample_weights=weights),
        strict=True,
    ):
        assert torch.equal(given, expected)
    tables = [TableSpec(t.name, t.rows, t.dim, t.pooling) for t in TABLES]
    collection = EmbeddingBagCollection(tables, backend="cpu")
    whole = torch.compile(collection, fullgraph=True, backend=compiler)
    bags = several(tables)
    assert torch.equal(whole(bags), collection(bags))
    whole(bags).square().sum().backward()
    compiled = [weight.grad.clone() for weight in collection.parameters()]
    collection.zero_grad()
    collection(bags).square().sum().backward()
    assert all(torch.equal(weight.grad, grad) for weight, grad in zip(collection.parameters(), compiled, strict=True))


def test_the_modules_ops_are_well_formed():
    offsets = torch.tensor([0, 3, 3, 8, 12])
    check = torch.library.opcheck
    module = kernels.embedding_bag
    check(module._global_rows, (IDS.int(), offsets, [11, 20], "a\nb"))
    check(module._positions, (IDS == 3,))
    check(module._positions_of_tables, (offsets, [1, 0], 2))
    found = module._positions_of_tables(offsets, [1, 0], 2).tolist()
    assert found == [*range(3, 12), *range(3)]
    assert all(a != b for a, b in pairwise(found))
