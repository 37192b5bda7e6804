"""The rules of sparse_update against torch.optim and plain loops; test_contract.py holds the backends to them."""

import inspect
import math
from importlib import import_module

import pytest
import torch

import kernels
from kernels import Optimizer
from kernels.sparse_update.optimizer import Numbers

ROWS, DIM, STEPS, LR = 5, 3, 5, 0.05
# Five steps of some twenty roundings each, 2^-53 = 1.1e-16 of numbers up to 3: 3e-14, and as much for the other side.
NEAR = {"rtol": 0.0, "atol": 1e-13}
DECAY = 0.1


def draw(seed=0, *shape):
    return torch.randn(*(shape or (ROWS, DIM)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(optimizer, grads, backend="torch", **options):
    """The table and its states after one step with each of `grads`, every row touched."""
    table = draw(99)
    states = kernels.state_like(table, optimizer)
    rows = torch.arange(ROWS)
    for step, grad in enumerate(grads, 1):
        kernels.update_rows(table, states, rows, grad, optimizer, LR, step, backend=backend, **options)
    return table, states


@pytest.mark.parametrize(
    ("optimizer", "theirs"),
    [
        (Optimizer("sgd"), lambda p: torch.optim.SGD(p, LR)),
        (Optimizer("sgd", weight_decay=DECAY), lambda p: torch.optim.SGD(p, LR, weight_decay=DECAY)),
        (Optimizer("adagrad", eps=1e-10), lambda p: torch.optim.Adagrad(p, LR)),
        (Optimizer("adagrad", eps=1e-10, weight_decay=DECAY), lambda p: torch.optim.Adagrad(p, LR, weight_decay=DECAY)),
        (Optimizer("adam"), lambda p: torch.optim.Adam(p, LR)),
        (Optimizer("adam", weight_decay=DECAY), lambda p: torch.optim.Adam(p, LR, weight_decay=DECAY)),
        (
            Optimizer("adam", weight_decay=DECAY, decoupled=True),
            lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY),
        ),
        (
            Optimizer("adam", beta1=0.5, beta2=0.75, eps=0.1),
            lambda p: torch.optim.Adam(p, LR, betas=(0.5, 0.75), eps=0.1),
        ),
    ],
    ids=lambda value: f"{value.name}-{value.decay}-{value.eps}" if isinstance(value, Optimizer) else "",
)
def test_is_the_optimizer_of_torch_where_every_row_is_touched(optimizer, theirs):
    grads = [draw(seed) for seed in range(STEPS)]
    table, _ = run(optimizer, grads)
    weight = draw(99).requires_grad_()
    expected = theirs([weight])
    for grad in grads:
        weight.grad = grad.clone()
        expected.step()
    torch.testing.assert_close(table, weight.detach(), **NEAR)


@pytest.mark.parametrize("decay", ["none", "l2", "decoupled"])
@pytest.mark.parametrize("name", ["rowwise_adagrad", "rowwise_adam"])
def test_row_wise_rules_are_their_formulas(name, decay):
    optimizer = Optimizer(name, weight_decay=0.0 if decay == "none" else DECAY, decoupled=decay == "decoupled")
    grads = [draw(seed) for seed in range(STEPS)]
    table, _ = run(optimizer, grads)
    b1, b2 = optimizer.beta1, optimizer.beta2
    for row, weight in enumerate(draw(99).tolist()):
        state, moment = 0.0, [0.0] * DIM
        for step, grad in enumerate(grads, 1):
            g = grad[row].tolist()
            if decay == "l2":
                g = [x + DECAY * w for x, w in zip(g, weight, strict=True)]
            if decay == "decoupled":
                weight = [w * (1 - LR * DECAY) for w in weight]
            mean = sum(x * x for x in g) / DIM
            if name == "rowwise_adagrad":
                state += mean
                rate = LR / (math.sqrt(state) + optimizer.eps)
            else:
                state = b2 * state + (1 - b2) * mean
                moment = [b1 * m + (1 - b1) * x for m, x in zip(moment, g, strict=True)]
                rate = LR / (1 - b1**step) / (math.sqrt(state / (1 - b2**step)) + optimizer.eps)
                g = moment
            weight = [w - rate * x for w, x in zip(weight, g, strict=True)]
        torch.testing.assert_close(table[row], torch.tensor(weight, dtype=torch.float64), **NEAR)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_adam_corrects_by_the_global_step_however_late_a_row_comes(backend):
    optimizer = Optimizer("adam")
    table, rows = draw(99), torch.tensor([1, 4])
    states = kernels.state_like(table, optimizer)
    grad = draw(1, 2, DIM)
    before = table.clone()
    kernels.update_rows(table, states, rows, grad, optimizer, LR, 10, backend=backend)
    moment, square = 0.1 * grad / (1 - 0.9**10), 0.001 * grad.square() / (1 - 0.999**10)
    torch.testing.assert_close(table[rows], before[rows] - LR * moment / (square.sqrt() + 1e-8), **NEAR)
    untouched = torch.tensor([0, 2, 3])
    assert torch.equal(table[untouched], before[untouched])
    assert all(not state[untouched].any() and state[rows].all() for state in states)


@pytest.mark.parametrize("backend", kernels.BACKENDS)
def test_a_gradient_longer_than_the_clip_is_cut_to_it_and_others_keep_every_bit(backend):
    grad = draw(1)
    norms = grad.norm(dim=1)
    clip = float(norms.sort().values[2]) + 1e-6  # two rows are longer
    table, _ = run(Optimizer("sgd", clip_row_norm=clip), [grad], backend)
    free, _ = run(Optimizer("sgd"), [grad], backend)
    short = norms <= clip
    assert short.sum() == 3
    assert torch.equal(table[short], free[short])
    torch.testing.assert_close(((draw(99) - table) / LR).norm(dim=1)[~short], norms.new_full((2,), clip), **NEAR)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_clipping_by_the_global_norm_is_torchs(backend):
    ids = torch.tensor([3, 1, 3, 0])
    offsets, grad_out = torch.tensor([0, 2, 4]), draw(1, 2, DIM)
    unique = kernels.unique_ids(ids, backend=backend)
    index = (grad_out, offsets, None, "sum", unique.order, unique.starts)
    dense = torch.nn.functional.embedding_bag(ids, weight := draw(99).requires_grad_(), offsets[:-1], mode="sum")
    dense.backward(grad_out)
    torch.nn.utils.clip_grad_norm_([weight], 0.5)
    scale = kernels.clip_scale([kernels.grad_square_sum(*index, backend=backend)], 0.5)
    table = draw(99)
    kernels.sparse_update(table, (), unique.rows, *index, Optimizer("sgd"), LR, grad_scale=scale, backend=backend)
    torch.testing.assert_close(table, draw(99) - LR * weight.grad, **NEAR)
    assert kernels.clip_scale([torch.tensor(0.0)], 0.5) == 1.0
    with pytest.raises(ValueError, match="expected a finite norm, given nan"):
        kernels.clip_scale([torch.tensor(torch.nan)], 0.5)


def test_the_square_sum_of_many_rows_is_exact_to_rounding():
    grads = torch.randn(1001, 4, generator=torch.Generator().manual_seed(0))
    index = torch.arange(1002)
    found = kernels.grad_square_sum(grads, index, None, "sum", index[:-1], index, backend="cpu")
    expected = math.fsum(x * x for x in grads.double().flatten().tolist())
    # 4 terms a row, then a tree of 10 levels: at most 14 roundings of 2^-53 each.
    assert abs(float(found) - expected) <= 14 * 2.0**-53 * expected


def test_new_rates_steps_and_scales_compile_nothing_on_the_cpu():
    compiled = import_module("kernels.sparse_update._cpu")._update
    run(Optimizer("adam"), [draw(0)], "cpu")
    before = len(compiled.signatures)
    run(
        Optimizer("adam", eps=1e-3, beta1=0.5, weight_decay=0.3, clip_row_norm=2.0),
        [draw(0)] * 3,
        "cpu",
        grad_scale=0.5,
    )
    assert len(compiled.signatures) == before


def test_new_rates_steps_and_scales_compile_nothing_in_triton():
    # A launch compiles anew for constants, and integers that are 1 or multiples of 16, never for the value of an fp64.
    kernel = import_module("kernels.sparse_update._triton").sparse_update_kernel
    parameters = inspect.signature(kernel.fn).parameters
    assert {parameters[name].annotation for name in Numbers._fields} == {"fp64"}
    assert "step" not in parameters
    assert "lr" not in parameters


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_states_are_rows_beside_the_tables_rows(dtype):
    table = torch.zeros(ROWS, DIM, dtype=dtype)
    shapes = {rule: [tuple(s.shape) for s in kernels.state_like(table, Optimizer(rule))] for rule in kernels.RULES}
    assert shapes == {
        "sgd": [],
        "adagrad": [(ROWS, DIM)],
        "rowwise_adagrad": [(ROWS,)],
        "adam": [(ROWS, DIM), (ROWS, DIM)],
        "rowwise_adam": [(ROWS, DIM), (ROWS,)],
    }
    kept = {state.dtype for rule in kernels.RULES for state in kernels.state_like(table, Optimizer(rule))}
    assert kept == {torch.float64 if dtype == torch.float64 else torch.float32}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "lamb"}, "unknown optimizer 'lamb': choose one of sgd, adagrad"),
        ({"beta1": 1.0}, "beta1: expected 0 <= beta1 < 1, given 1.0"),
        ({"eps": -1.0}, "eps: expected a finite number >= 0, given -1.0"),
        ({"weight_decay": math.inf}, "weight_decay: expected a finite number"),
        ({"clip_row_norm": 0.0}, "clip_row_norm: expected a finite number > 0 or None, given 0.0"),
    ],
)
def test_an_optimizer_refuses_numbers_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(**options)


def test_max_pooling_updates_the_winners_only():
    table, ids, offsets = draw(99), torch.tensor([0, 2, 2, 4]), torch.tensor([0, 2, 4])
    best = kernels.pooled_max(table, ids, offsets, backend="torch")
    unique = kernels.unique_ids(ids, backend="torch")
    weight = table.clone().requires_grad_()
    grad_out = draw(1, 2, DIM)
    torch.nn.functional.embedding_bag(ids, weight, offsets[:-1], mode="max").backward(grad_out)
    index = (grad_out, offsets, None, "max", unique.order, unique.starts)
    for backend in ("torch", "cpu"):
        updated = table.clone()
        kernels.sparse_update(
            updated, (), unique.rows, *index, Optimizer("sgd"), LR, winner=best.winner, backend=backend
        )
        torch.testing.assert_close(updated, table - LR * weight.grad, **NEAR)
