"""What is special to the `cpu` backend; its results are held to the truth by test_contract.py."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import product

import numba
import numpy as np
import pytest
import torch

import kernels
from kernels import _numba_cpu
from kernels._numba_cpu import cut, cut_evenly, sort_words, threads_for

DIM = 33


@pytest.fixture(autouse=True)
def every_thread_works(monkeypatch):
    """These batches are small: wake threads for them all the same, in the file that decides and those that import."""
    for op in kernels.OPS:
        module = import_module(f"kernels.{op}._cpu")
        for name in {"INDEX_WORK", "ROW_WORK"} & vars(module).keys():
            monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(_numba_cpu, "INDEX_WORK", 1)
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


def draw(seed=0, rows=300, bags=200, weighted=False):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(12, (bags,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    n = int(offsets[-1])
    ids = (torch.rand(n, generator=random) ** 4 * rows).long()  # a few rows take most
    weights = torch.rand(n, generator=random) if weighted else None
    table, grad_out = torch.randn(rows, DIM, generator=random), torch.randn(bags, DIM, generator=random)
    return table, ids, offsets, weights, grad_out


def everything(pooling="sum", **options):
    """Every result of every op but bucketize on one batch."""
    table, ids, offsets, weights, grad_out = draw(**options)
    out = kernels.pooled_lookup(table, ids, offsets, weights, pooling, backend="cpu")
    unique = kernels.unique_ids(ids, backend="cpu")
    index = (grad_out, offsets, weights, pooling, unique.order, unique.starts)
    grads = kernels.segment_grads(*index, backend="cpu")
    changed = []
    for rule in kernels.RULES:
        loaded = kernels.Optimizer(rule, weight_decay=0.1, clip_row_norm=1.0, stochastic_rounding=True)
        for optimizer, dtype in product((kernels.Optimizer(rule), loaded), (torch.float32, torch.float16)):
            updated = table.to(dtype)
            states = kernels.state_like(updated, optimizer)
            kernels.sparse_update(updated, states, unique.rows, *index, optimizer, 0.1, backend="cpu")
            changed += [updated, *states]
    square_sum = kernels.grad_square_sum(*index, backend="cpu")
    return (out, *unique, grads, square_sum, *changed)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("pooling", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
def test_the_thread_count_changes_no_bit(pooling, weighted):
    results = []
    for threads in dict.fromkeys((1, min(2, numba.config.NUMBA_NUM_THREADS), numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        results += [everything(pooling, weighted=weighted) for _ in range(2)]
    assert all(same(results[0], other) for other in results[1:])


@pytest.mark.parametrize("rule", kernels.RULES)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_fused_and_unfused_updates_agree_bit_for_bit(rule, pooling):
    table, ids, offsets, _, grad_out = draw()
    unique = kernels.unique_ids(ids, backend="cpu")
    index = (grad_out, offsets, None, pooling, unique.order, unique.starts)
    fused, unfused = table.clone(), table.clone()
    optimizer = kernels.Optimizer(rule)
    states = [kernels.state_like(table, optimizer) for _ in range(2)]
    kernels.sparse_update(fused, states[0], unique.rows, *index, optimizer, 0.1, backend="cpu")
    grads = kernels.segment_grads(*index, backend="cpu")
    kernels.update_rows(unfused, states[1], unique.rows, grads, optimizer, 0.1, backend="cpu")
    assert torch.equal(fused, unfused)
    assert same(*states)
    assert not torch.equal(fused, table)


def test_python_threads_may_call_kernels_at_once():
    """As the ranks of a SimGroup do, one Numba thread each."""

    def rank(seed):
        numba.set_num_threads(1)
        return [everything(seed=seed) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(rank, range(4)))
    for seed, results in enumerate(found):
        expected = everything(seed=seed)
        assert all(same(expected, result) for result in results)


@pytest.mark.parametrize("top", [1, 2**31, 2**62, 2**63 - 1])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_ids_of_any_size_sort_as_torch_sorts_them(top, n):
    few = torch.randint(top, (n // 3 + 1,), generator=torch.Generator().manual_seed(n))
    ids = few[torch.randint(len(few), (n,), generator=torch.Generator().manual_seed(1))]
    found, truth = (kernels.unique_ids(ids, backend=backend) for backend in ("cpu", "torch"))
    assert same(found, truth)


def test_a_negative_id_is_named():
    with pytest.raises(ValueError, match="expected >= 0, given -7 at position 2"):
        kernels.unique_ids(torch.tensor([3, 1, -7, 2]), backend="cpu")


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_words_sort_stably_by_the_bits_asked_for(threads):
    words = np.random.default_rng(0).integers(0, 2**60, 500)
    key = words >> 9 & (2**23 - 1)
    expected = words[np.argsort(key, kind="stable")]
    assert (sort_words(words.copy(), 9, 23, cut_evenly(len(words), threads)) == expected).all()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_cuts_cover_every_segment_once_and_share_the_work(threads):
    lengths = np.random.default_rng(0).integers(0, 9, 1000)
    starts = np.concatenate([[0], lengths.cumsum()])
    cuts = cut(starts, threads, per_segment=2)
    assert cuts[0] == 0
    assert cuts[-1] == 1000
    assert (np.diff(cuts) >= 0).all()
    work = np.add.reduceat(lengths + 2, cuts[:-1])
    assert np.ptp(work) <= 2 * (lengths.max() + 2)  # each cut is off by less than one segment
    assert cut(np.array([0]), threads, 1).tolist() == [0] * (threads + 1)


def test_small_work_wakes_no_thread_and_the_callers_number_comes_back():
    allowed = numba.get_num_threads()
    with threads_for(work=99, least=100) as threads:
        assert threads == numba.get_num_threads() == 1
    with threads_for(work=10**9, least=100) as threads:
        assert threads == allowed
    assert numba.get_num_threads() == allowed


def test_another_thread_layer_is_refused_with_what_to_do():
    command = [sys.executable, "-c", "import kernels._numba_cpu"]
    environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs Numba's thread layer 'omp' (or 'tbb'), given 'workqueue': unset NUMBA_THREADING_LAYER" in done.stderr
