"""The one contract test: every op x backend x case gives the truth, forward and gradients.

A new op in OPS, a new backend file or a new case is picked up without an edit here.
"""

import os
import sys
from importlib import import_module
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels._cases import copied, rounded_bound, sum_bound
from kernels.bags import accumulator
from kernels.cache_probe import new_cache
from kernels.pooled_lookup import POOLINGS, TABLES
from kernels.sparse_update.optimizer import numbers_of

ON_GPU = torch.cuda.is_available() and os.environ["TRITON_INTERPRET"] != "1"
DEVICE = "cuda" if ON_GPU else "cpu"
RUNNABLE = tuple(b for b in kernels.BACKENDS if not (ON_GPU and b == "cpu"))  # `cpu` takes CPU tensors only
CASES = {op: import_module(f"kernels.{op}.cases") for op in kernels.OPS}
MUTATED = {"sparse_update": ("table", "states"), "row_copy": ("dst",), "cache_probe": ("stamps",)}

every_case = pytest.mark.parametrize(
    ("op", "case"), [pytest.param(op, case, id=f"{op}-{case.name}") for op in kernels.OPS for case in CASES[op].CASES]
)
every_backend = pytest.mark.parametrize("backend", RUNNABLE)


def arrays(name, value):
    """`value` and its name, or each of a tuple's with its number: what `bound` calls them."""
    return [(f"{name}{n}", part) for n, part in enumerate(value)] if isinstance(value, tuple) else [(name, value)]


def results(op, backend, inputs):
    """Tensors that `op` returns or changes, by name; and nothing else has changed."""
    given_ = copied(inputs)
    out = getattr(kernels, op)(**given_, backend=backend)
    changed = MUTATED.get(op, ())
    for name, value in inputs.items():
        before, after = (x if isinstance(x, tuple) else (x,) for x in (value, given_[name]))
        for b, a in zip(before, after, strict=True):
            assert name in changed or not isinstance(b, torch.Tensor) or torch.equal(b, a), f"{op} changed {name}"
    state = dict(named for name in changed if given_[name] is not None for named in arrays(name, given_[name]))
    if out is None:
        return state
    return state | (out._asdict() if isinstance(out, tuple) else {"out": out})


def hold(got, truth, bound, what):
    assert got.shape == truth.shape, f"{what}: expected shape {tuple(truth.shape)}, given {tuple(got.shape)}"
    if not got.is_floating_point():
        assert got.dtype == truth.dtype
        assert torch.equal(got, truth), f"{what}: expected {truth}, given {got}"
        return
    outside = ~((got.double() - truth).abs() <= bound)  # NaN is outside
    assert not outside.any(), f"{what}: {int(outside.sum())} of {got.numel()} outside the bound: {got} and {truth}"


def check(op, backend, inputs):
    got, again = results(op, backend, inputs), results(op, backend, inputs)
    truth = results(op, "torch", copied(inputs, double=True))
    floats = [v.dtype for v in inputs.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    sums = torch.float64 if torch.float64 in floats else torch.float32
    bounds = CASES[op].bound(inputs, torch.finfo(sums).eps)
    before = dict(
        named for name in inputs for named in arrays(name, inputs[name]) if isinstance(named[1], torch.Tensor)
    )
    assert got.keys() == truth.keys()
    for name in truth:
        assert torch.equal(got[name], again[name]), f"{name}: two runs differ"
        hold(got[name], truth[name], bounds.get(name), name)
        wanted = inputs.get("out_dtype") or (floats[0] if floats else None)
        wanted = before[name].dtype if name in before else wanted  # changed in place
        assert wanted is None or not got[name].is_floating_point() or got[name].dtype == wanted
    if op == "sparse_update":
        untouched = torch.ones(len(inputs["table"]), dtype=torch.bool, device=DEVICE)
        untouched[inputs["rows"].long()] = False
        for name, value in got.items():
            assert torch.equal(value[untouched], before[name][untouched]), f"an untouched row of {name} changed"


@every_case
@every_backend
def test_gives_the_truth(op, backend, case):
    check(op, backend, CASES[op].make(case, seed=1, device=DEVICE))


GRADIENTS = [case for i, case in enumerate(CASES["pooled_lookup"].CASES) if i % 3 == 0 or case.name == "many_columns"]


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.name)
@every_backend
def test_gradients_of_pooled_lookup(backend, case):
    inputs = CASES["pooled_lookup"].make(case, seed=2, device=DEVICE)
    plain = import_module("kernels.pooled_lookup._torch").pooled_lookup
    result = plain(**inputs)
    grad_out = torch.randn(result.shape, dtype=torch.float64).to(result)
    names = [name for name in ("table", "weights") if inputs[name] is not None and inputs[name].is_floating_point()]

    def gradients(lookup, inputs, grad_out):
        leaves = [inputs[name].requires_grad_() for name in names]
        out = lookup(**inputs)
        if not out.requires_grad:  # bytes without weights; the maximum of nothing
            return tuple(map(torch.zeros_like, leaves))
        return torch.autograd.grad(out, leaves, grad_out)

    def ours(**given_):
        return kernels.pooled_lookup(**given_, backend=backend)

    def best(**given_):  # magnitudes win elsewhere: every position may have won
        return plain(**{**given_, "pooling": "sum"} if case.pooling == "max" else given_)

    got, again = (gradients(ours, copied(inputs), grad_out) for _ in range(2))
    truth = gradients(plain, copied(inputs, double=True), grad_out.double())
    terms = gradients(best, copied(inputs, double=True, magnitudes=True), grad_out.double().abs())
    counts = {"table": torch.bincount(inputs["ids"].long(), minlength=case.rows)[:, None]}
    counts["weights"] = torch.tensor(case.dim + 2, device=DEVICE)  # two for the scale and bias of a byte
    sums = accumulator(case.dtype)
    for name, *values in zip(names, got, again, truth, terms, strict=True):
        value, repeated, true, magnitude = values
        assert torch.equal(value, repeated), f"gradient of {name}: two runs differ"
        assert value.dtype == inputs[name].dtype
        bound = sum_bound(magnitude, counts[name], torch.finfo(sums).eps)
        if value.dtype != sums:
            bound = rounded_bound(bound, true, value.dtype)
        hold(value, true, bound, f"gradient of {name}")


SUMMED = [case for case in CASES["segment_grads"].CASES if case.bags and case.pooling != "max"][::4]


@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
@every_backend
def test_fused_update_sums_as_segment_grads_does(backend, case):
    inputs = CASES["segment_grads"].make(case, seed=3, device=DEVICE)
    grads = kernels.segment_grads(**inputs, backend=backend)
    table = torch.zeros_like(grads)
    rows = torch.arange(len(grads), device=DEVICE)
    kernels.sparse_update(table, (), rows, **inputs, optimizer=kernels.Optimizer("sgd"), lr=1.0, backend=backend)
    assert torch.equal(table, -grads)


ROWS, DIM = 7, 3
drawn_bags = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), max_size=4)


def inputs_from(op, bags, index, weighted, seed):
    """Inputs of any op from drawn bags: a table of ROWS x DIM float32."""
    ids = torch.tensor([id for bag in bags for id in bag], dtype=index, device=DEVICE)
    offsets = torch.tensor([0, *map(len, bags)], device=DEVICE).cumsum(0)
    random = torch.Generator().manual_seed(seed)
    table, grad_out = (torch.randn(n, DIM, generator=random).to(DEVICE) for n in (ROWS, len(bags)))
    weights = torch.randn(len(ids), generator=random).to(DEVICE) if weighted else None
    poolings = ("mean", "sum", "max") if op in ("pooled_lookup", "segment_grads") else ("mean", "sum")
    pooling = "sum" if weighted else poolings[seed % len(poolings)]
    unique = kernels.unique_ids(ids, backend="torch")
    if op == "pooled_lookup":
        return {"table": table, "ids": ids, "offsets": offsets, "weights": weights, "pooling": pooling}
    if op == "unique_ids":
        return {"ids": ids}
    if op == "bucketize":
        parts, world = 1 + seed % 3, 2
        per_part = -(-ROWS // parts)
        shards = (
            [parts] * len(bags),
            [per_part * (t % 2) for t in range(len(bags))],
            [t * parts for t in range(len(bags))],
            [cell % world for cell in range(parts * len(bags))],
            [cell * per_part for cell in range(parts * len(bags))],
        )
        shards = kernels.RowShards(*(torch.tensor(index, dtype=torch.int64, device=DEVICE) for index in shards))
        return {"ids": ids, "table_starts": offsets, "shards": shards, "world": world}  # a table per drawn bag
    if op == "row_copy":
        dst = torch.randn(len(bags), DIM, generator=random).to(DEVICE)
        src_rows = torch.randint(-1, ROWS, (len(bags),), generator=random).to(DEVICE)
        dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
        return {"dst": dst.to(dtype), "src": table, "src_rows": src_rows, "dst_rows": None}
    if op == "cache_probe":
        held = torch.arange(1, ROWS, 2, device=DEVICE)
        tags, stamps, locks = new_cache(1 + seed % 3, 2, DEVICE)
        kernels.cache_admit(held, tags, stamps, locks, "lru", backend="torch")
        policy, step = ("lru", "lfu", "peek")[seed % 3], torch.tensor([5], device=DEVICE)
        return {"rows": unique.rows, "tags": tags, "stamps": stamps, "policy": policy, "step": step}
    if op not in ("segment_grads", "sparse_update"):  # an op that knows nothing of bags: any of its cases
        cases = CASES[op].CASES
        return CASES[op].make(cases[seed % len(cases)], seed, DEVICE)
    sums = {"grad_out": grad_out, "offsets": offsets, "weights": weights, "pooling": pooling}
    sums |= {"order": unique.order, "starts": unique.starts}
    if op == "segment_grads":
        if pooling == "max":
            sums["winner"] = kernels.pooled_max(table, ids, offsets, backend="torch").winner
        return sums
    optimizer = kernels.Optimizer(kernels.RULES[seed % len(kernels.RULES)])
    zeros = kernels.state_like(table, optimizer)
    states = tuple(torch.rand(state.shape, generator=random).to(DEVICE) + 0.01 for state in zeros)
    fused = {"table": table, "states": states, "rows": unique.rows, "optimizer": optimizer, "lr": 0.1}
    fused |= {"step": 1, "grad_scale": 1.0}
    return {**fused, **sums}


@pytest.mark.parametrize("op", kernels.OPS)
@every_backend
@settings(max_examples=8)
@given(
    bags=drawn_bags,
    index=st.sampled_from((torch.int32, torch.int64)),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gives_the_truth_on_drawn_bags(op, backend, bags, index, weighted, seed):
    check(op, backend, inputs_from(op, bags, index, weighted, seed))


@pytest.mark.parametrize("op", kernels.OPS)
def test_is_a_well_formed_custom_op(op):
    bags = [[1, 1, 5], [], [0]]
    inputs = inputs_from(op, bags, torch.int64, weighted=True, seed=1)
    if op == "pooled_lookup":
        inputs["table"].requires_grad_()
        inputs |= {"scale_bias": None, "out_dtype": torch.float32, "sparse_grad": False}
    if op == "segment_grads":
        inputs["winner"] = None
    if op == "bucketize":
        inputs = {
            "ids": inputs["ids"],
            "table_starts": inputs["table_starts"],
            **inputs["shards"]._asdict(),
            "world": 2,
        }
    if op == "sparse_update":
        optimizer = inputs.pop("optimizer")
        inputs |= {"bits": None, "rule": optimizer.name, "decay": optimizer.decay}
        inputs["numbers"] = numbers_of(optimizer, *(inputs.pop(name) for name in ("lr", "step", "grad_scale")))
    private = getattr(sys.modules[f"kernels.{op}"], f"_{op}")  # the package's attribute of that name is the function
    torch.library.opcheck(private, (), {**inputs, "backend": "torch"})


def test_every_op_has_every_backend_and_names_its_cases_once():
    for op in kernels.OPS:
        for backend in kernels.BACKENDS:
            import_module(f"kernels.{op}._{backend}")
        names = [case.name for case in CASES[op].CASES]
        assert len(set(names)) == len(names)


def test_cases_hold_the_edges():
    cases = CASES["pooled_lookup"].CASES
    assert {case.dim for case in cases} >= {1, 3, 16, 33, 128}
    assert {case.index for case in cases} == {torch.int32, torch.int64}
    assert {case.rows for case in cases} >= {1}
    for some in (cases, GRADIENTS):
        assert {case.dtype for case in some} == set(TABLES)
        assert {case.pooling for case in some} == set(POOLINGS)
    assert any(case.weighted and case.dtype == torch.uint8 for case in GRADIENTS)
    made = [CASES["pooled_lookup"].make(case, seed=1, device="cpu") for case in cases]
    offsets = [inputs["offsets"].tolist() for inputs in made]
    assert any(len(o) == 1 for o in offsets), "expected an empty batch"
    assert any(a == b for o in offsets if o[-1] for a, b in pairwise(o)), "expected an empty bag among others"
    assert any(len(set(inputs["ids"].tolist())) < len(inputs["ids"]) for inputs in made), "expected repeated ids"
