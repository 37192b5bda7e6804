"""What kernels/peers compares: the same work by backend `cpu`, by torch and, where it can be imported, by FBGEMM.

All arms of a measurement read and write one table and one set of states, so they share its pages and its place.
"""

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels

EPS = 1e-8
LR = 0.01
STEP = 10
"""Every timed step calls itself the tenth: Adam's bias correction is the same for all arms, whatever was run before."""
OURS = "cpu"
FBGEMM = "fbgemm-gpu-cpu"


@dataclass(frozen=True)
class Batch:
    """`ids` [N] int64 rows of the (stacked) table, `offsets` [bags + 1], the gradient of the bags [bags, dim].

    `local` [N]: rows within each table; `parts`: (ids, offsets) of every table alone. Of one table these are the same.
    """

    ids: Tensor
    offsets: Tensor
    grad_out: Tensor
    local: Tensor
    parts: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Arm:
    """`call` does the work; `bags` turns what it returns into [bags, dim], table by table."""

    call: Callable[[Batch], Any]
    bags: Callable[[Any], Tensor] = lambda out: out


def fbgemm_version() -> str:
    """Version of FBGEMM's package for the CPU, `none` where it cannot be imported."""
    return importlib.metadata.version(FBGEMM) if importlib.util.find_spec("fbgemm_gpu") else "none"


def forward_arms(table: Tensor) -> dict[str, Arm]:
    """Sum pooling of a float32 table."""
    arms = {
        OURS: Arm(lambda b: kernels.pooled_lookup(table, b.ids, b.offsets, backend=OURS)),
        "torch": Arm(lambda b: F.embedding_bag(b.ids, table, b.offsets, mode="sum", include_last_offset=True)),
    }
    if fbgemm_version() != "none":
        tbe = fbgemm_tables([len(table)], table, (), "sgd")
        arms["fbgemm"] = Arm(lambda b: tbe(b.ids, b.offsets).detach())
    return arms


def byte_arms(table: Tensor, scale_bias: Tensor, packed: Tensor) -> dict[str, Arm]:
    """Sum pooling of rows of bytes; `packed` [rows, dim + 8] holds scale and bias behind each row."""
    bag = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
    return {
        OURS: Arm(lambda b: kernels.pooled_lookup(table, b.ids, b.offsets, backend=OURS, scale_bias=scale_bias)),
        "torch": Arm(lambda b: bag(packed, b.ids, b.offsets, include_last_offset=True)),
    }


def tables_arms(rows: Sequence[int], table: Tensor) -> dict[str, Arm]:
    """Sum pooling of several tables, stacked in `table`: one call here, a call a table in torch.

    `collection` is the module: it also checks every id and writes the bags of a sample side by side.
    """
    dim = table.shape[1]
    views = table.split(list(rows))
    specs = [kernels.TableSpec(f"t{i}", n, dim) for i, n in enumerate(rows)]
    module = kernels.EmbeddingBagCollection(specs, device="meta", backend=OURS)
    module.stack_0 = torch.nn.Parameter(table, requires_grad=False)

    def by_table(out: Tensor) -> Tensor:
        """[B, T * dim] as [T * B, dim]."""
        return out.view(len(out), len(rows), dim).transpose(0, 1).reshape(-1, dim)

    def calls(b: Batch) -> list[Tensor]:
        return [
            F.embedding_bag(ids, view, offsets, mode="sum", include_last_offset=True)
            for view, (ids, offsets) in zip(views, b.parts, strict=True)
        ]

    arms = {
        OURS: Arm(lambda b: kernels.pooled_lookup(table, b.ids, b.offsets, backend=OURS)),
        "collection": Arm(lambda b: module(kernels.Bags(b.local, b.offsets)), by_table),
        "torch": Arm(calls, torch.cat),
    }
    if fbgemm_version() != "none":
        tbe = fbgemm_tables(rows, table, (), "sgd")
        arms["fbgemm"] = Arm(lambda b: tbe(b.local, b.offsets).detach(), by_table)
    return arms


def step_arms(table: Tensor, states: tuple[Tensor, ...], optimizer: str) -> dict[str, Arm]:
    """Forward, backward and update in place: fused here and in FBGEMM, sparse gradient and torch.optim in torch.

    Of `rowwise_adagrad` torch has none, of `adam` FBGEMM has none on the CPU.
    """
    rule = kernels.Optimizer(optimizer, eps=EPS)

    def ours(b: Batch) -> Tensor:
        out = kernels.pooled_lookup(table, b.ids, b.offsets, backend=OURS)
        unique = kernels.unique_ids(b.ids, backend=OURS)
        index = (b.offsets, None, "sum", unique.order, unique.starts)
        kernels.sparse_update(table, states, unique.rows, b.grad_out, *index, rule, LR, STEP, backend=OURS)
        return out

    arms = {OURS: Arm(ours)}
    if optimizer != "rowwise_adagrad":
        arms["torch"] = Arm(torch_step(table, states, optimizer))
    if optimizer != "adam" and fbgemm_version() != "none":
        tbe = fbgemm_tables([len(table)], table, states, optimizer)

        def fused(b: Batch) -> Tensor:
            out = tbe(b.ids, b.offsets)
            out.backward(b.grad_out)
            return out.detach()

        arms["fbgemm"] = Arm(fused)
    return arms


def torch_step(table: Tensor, states: tuple[Tensor, ...], optimizer: str) -> Callable[[Batch], Tensor]:
    """F.embedding_bag, its sparse gradient, and SGD, Adagrad or SparseAdam of torch.optim on `states`."""
    weight = table.detach().requires_grad_()
    if optimizer == "sgd":
        rule = torch.optim.SGD([weight], lr=LR)
    elif optimizer == "adagrad":
        rule = torch.optim.Adagrad([weight], lr=LR, eps=EPS)
        rule.state[weight]["sum"] = states[0]
    else:
        rule = torch.optim.SparseAdam([weight], lr=LR, eps=EPS)
        rule.state[weight].update(step=0, exp_avg=states[0], exp_avg_sq=states[1])

    def call(b: Batch) -> Tensor:
        if optimizer == "adam":
            rule.state[weight]["step"] = STEP - 1
        rule.zero_grad()
        out = F.embedding_bag(b.ids, weight, b.offsets, mode="sum", sparse=True, include_last_offset=True)
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # the default, said aloud: else torch warns
            out.backward(b.grad_out)
            rule.step()
        return out.detach()

    return call


def fbgemm_tables(rows: Sequence[int], table: Tensor, states: tuple[Tensor, ...], optimizer: str) -> Any:
    """FBGEMM's table-batched embedding on the host over the memory of `table` and `states`, its bounds check off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that this build leaves out
        training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        rules = importlib.import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
        where = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        tbe = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(n, table.shape[1], *where) for n in rows],
            optimizer={
                "sgd": rules.EXACT_SGD,
                "adagrad": rules.EXACT_ADAGRAD,
                "rowwise_adagrad": rules.EXACT_ROWWISE_ADAGRAD,
            }[optimizer],
            learning_rate=LR,
            eps=EPS,
            pooling_mode=common.PoolingMode.SUM,
            bounds_check_mode=common.BoundsCheckMode.NONE,
            device=torch.device("cpu"),
        )
    tbe.weights_host.data = table.flatten()
    if states:
        tbe.momentum1_host.data = states[0].flatten()
    return tbe
