"""Wrong arguments and backends that cannot run raise an error that says what was expected and what to do."""

import pytest
import torch

import kernels
from kernels import _backend

TABLE = torch.zeros(4, 3)
IDS, OFFSETS = torch.tensor([0, 1]), torch.tensor([0, 2])


def lookup(**changes):
    return kernels.pooled_lookup(**{"table": TABLE, "ids": IDS, "offsets": OFFSETS, "backend": "torch", **changes})


def update(**changes):
    arguments = {"table": TABLE.clone(), "states": (), "rows": IDS, "grad_out": torch.ones(2, 3)}
    arguments |= {"offsets": torch.arange(3), "weights": None, "pooling": "sum", "order": torch.arange(2)}
    arguments |= {"starts": torch.arange(3), "optimizer": kernels.Optimizer("sgd"), "lr": 0.1, "backend": "torch"}
    return kernels.sparse_update(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "median"}, "choose one of sum, mean"),
        ({"table": torch.zeros(4, 3, dtype=torch.int64)}, "table: expected .* float32, .* given torch.int64"),
        ({"table": torch.zeros(3, 4).t()}, "table: expected a contiguous"),
        ({"ids": IDS.short()}, "ids: expected .* int32 or int64"),
        ({"offsets": OFFSETS.int()}, "offsets: expected .* int64"),
        ({"weights": torch.ones(2), "pooling": "mean"}, "weights: expected none with pooling 'mean'"),
        ({"weights": torch.ones(3)}, r"weights: expected contiguous torch.float32 \(2,\)"),
        ({"weights": torch.ones(2), "pooling": "max"}, "weights: expected none with pooling 'max'"),
        (
            {"weights": torch.ones(2).half(), "table": TABLE.half()},
            "expected contiguous torch.float32 .* torch.float16 table",
        ),
        ({"table": TABLE.byte()}, r"scale_bias: expected contiguous torch.float32 \(4, 2\) for a uint8 .* given None"),
        ({"scale_bias": torch.ones(4, 2)}, "scale_bias: expected None for a torch.float32 table"),
        ({"out_dtype": torch.float64}, "out_dtype: expected one of float32, float16, bfloat16 .* given torch.float64"),
    ],
)
def test_pooled_lookup_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        lookup(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": kernels.Optimizer("adam")},
            r"states: expected contiguous torch.float32 \[\(4, 3\), \(4, 3\)\] for adam, given \[\]",
        ),
        ({"states": (torch.zeros(4),)}, r"states: expected contiguous torch.float32 \[\] for sgd"),
        (
            {"optimizer": kernels.Optimizer(), "states": (torch.zeros(4, dtype=torch.float64),)},
            r"states: expected .* torch.float32 \[\(4,\)\] for rowwise_adagrad, given \['torch.float64 \(4,\)'\]",
        ),
        (
            {"optimizer": kernels.Optimizer("rowwise_adam"), "states": (TABLE, torch.zeros(4)), "step": 0},
            "step: expected >= 1 for rowwise_adam .*, given 0",
        ),
        (
            {"table": TABLE.double()},
            "grad_out: expected torch.float64 for a table of torch.float64",
        ),
        ({"table": TABLE.int()}, "table: expected contiguous .*, given torch.int32"),
        ({"table": torch.zeros(3, 4).t()}, "table: expected contiguous"),
        ({"row_keys": IDS.int()}, r"row_keys: expected int64 \[2\], given torch.int32"),
        ({"rows": torch.tensor([0])}, r"rows: expected int32 or int64 \[2\]"),
        ({"grad_out": torch.ones(1, 3)}, r"offsets: expected 2 numbers \(bags \+ 1\), given 3"),
        ({"order": torch.arange(2).int()}, "order: expected a contiguous 1-D int64"),
    ],
)
def test_sparse_update_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        update(**changes)


@pytest.mark.parametrize(
    ("pooling", "winner", "message"),
    [
        ("max", None, r"winner: expected contiguous torch.int64 \(2, 3\) with pooling 'max'.*given None"),
        ("sum", torch.zeros(2, 3, dtype=torch.int64), "winner: expected None with pooling 'sum'"),
    ],
)
def test_segment_grads_wants_a_winner_with_max_only(pooling, winner, message):
    index = (torch.arange(3), None, pooling, torch.arange(2), torch.arange(3))
    with pytest.raises(ValueError, match=message):
        kernels.segment_grads(torch.ones(2, 3), *index, backend="torch", winner=winner)


def test_bucketize_refuses_shards_of_another_number_of_tables():
    shards = kernels.RowShards(*(torch.zeros(2, dtype=torch.int64) for _ in range(5)))
    with pytest.raises(ValueError, match="parts, span and first of 1 tables, given 2"):
        kernels.bucketize(IDS, OFFSETS, shards, world=2, backend="torch")


def test_unique_ids_refuses_ids_that_are_not_contiguous():
    with pytest.raises(ValueError, match="ids: expected a contiguous 1-D"):
        kernels.unique_ids(torch.arange(6)[::2], backend="torch")


def test_an_unknown_backend_names_the_choices(monkeypatch):
    with pytest.raises(ValueError, match="unknown backend 'cuda': choose one of torch, triton, numba, cpu"):
        lookup(backend="cuda")
    monkeypatch.setenv("KERNELS_BACKEND", "cuda")
    with pytest.raises(ValueError, match="choose one of torch, triton, numba, cpu"):
        lookup(backend=None)


@pytest.mark.parametrize(("backend", "switch"), [("triton", "TRITON_INTERPRET"), ("numba", "NUMBA_ENABLE_CUDASIM")])
def test_a_gpu_backend_without_a_gpu_says_what_it_needs(monkeypatch, backend, switch):
    monkeypatch.delenv(switch)
    with pytest.raises(RuntimeError, match=f"backend '{backend}' cannot run on cpu tensors here.*{switch}=1"):
        lookup(backend=backend)


def test_the_cpu_backend_does_not_take_gpu_tensors():
    assert "CPU tensors only" in _backend.missing("cpu", torch.device("cuda"))


def test_the_default_backend_follows_the_device_and_the_environment(monkeypatch):
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    assert _backend.default(torch.device("cuda")) == "triton"
    assert _backend.default(torch.device("cpu")) == "cpu"
    monkeypatch.setenv("KERNELS_BACKEND", "torch")
    assert _backend.default(torch.device("cuda")) == "torch"
