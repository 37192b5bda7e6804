"""One process that trains what W ranks train, with every sum grouped as the plan groups it. Written to be read.

Whole tables, loops over samples and ids, plain torch additions one after another. Only the optimizer's rule on one
finished gradient per row is the kernel's (the kernels' own tests hold it to its formula).
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from comm.plan import Plan
from kernels import Optimizer, TableSpec, state_like, update_rows
from models import embedding
from models.initialise import row_scale
from tests.comm.workload import CUTS, GLOBAL_BATCH, LR, Result, Work, batch_of, cross_entropy_sum, real_model


class WholeTables(nn.Module):
    """What a model asks of its embedding before it is trained: the tables."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        super().__init__()
        self.tables = tuple(tables)


def in_order(terms: Sequence[Tensor]) -> Tensor:
    """((t0 + t1) + t2) + ..."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def by_node(of_rank: dict[int, Tensor], ranks_per_node: int) -> Tensor:
    """Rank sums added within each node, then the node sums, in order; ranks without a term are left out."""
    nodes = defaultdict(list)
    for rank in sorted(of_rank):
        nodes[rank // ranks_per_node].append(of_rank[rank])
    return in_order([in_order(nodes[node]) for node in sorted(nodes)])


def owner(plan: Plan, number: int, row: int, column: int) -> int:
    """The rank that pools a block of `row` of table `number`; a strategy that brings rows to the sample has one, 0."""
    placement = plan.placements[number]
    parts = placement.parts
    by_row = ("replicated", "allgather", "alltoall", "unique", "hot_cold")
    if placement.strategy.startswith(by_row) and not placement.strategy.endswith(("rowwise", "hierarchical")):
        return 0
    part = row % parts if placement.split == "modulo" else row // -(-plan.tables[number].rows // parts)
    return placement.ranks[column * parts + part]


def update(
    plan: Plan, number: int, values: Tensor, states: Sequence[Tensor], rows: Tensor, grads: Tensor, rule: str, step: int
) -> None:
    """The optimizer's rule; the mean square of a row in blocks is the sum of the blocks' square sums, in order."""
    columns = plan.placements[number].columns
    if columns == 1 or not rule.startswith("rowwise"):
        update_rows(values, states, rows, grads, Optimizer(rule), LR, step + 1, backend="cpu")
        return
    (state,) = states
    state[rows] += in_order([block.square().sum(1) for block in grads.chunk(columns, dim=1)]) / grads.shape[1]
    rate = LR / (state[rows].sqrt() + Optimizer().eps)
    values[rows] -= rate[:, None] * grads


def train(plan: Plan, work: Work, ranks_per_node: int | None, make=real_model, loss=cross_entropy_sum) -> Result:
    """What every rank of `comm` must hold after training `work` under `plan`, bit for bit."""
    world, tables, per_node = plan.world, work.tables, ranks_per_node or plan.world
    values = [embedding.init_rows(t.name, torch.arange(t.rows), t.dim, 0, t.dtype, row_scale(t.rows)) for t in tables]
    states = [state_like(value, Optimizer(work.optimizer)) for value in values]
    model = make(WholeTables(tables)).to(work.dtype)
    parameters = list(model.parameters())
    dense_optimizer = torch.optim.SGD(parameters, lr=LR)
    losses = []
    for step in range(work.steps):
        rank_losses, dense_sums, row_sums = {}, {}, defaultdict(dict)
        for rank in range(world):
            begin, end = CUTS[world][rank : rank + 2]
            bags, dense, label = batch_of(work, step, begin, end)
            batch = end - begin
            bag = [_bag(bags, number * batch + b) for number in range(len(tables)) for b in range(batch)]
            columns = []
            for number, table in enumerate(tables):
                mine = bag[number * batch : (number + 1) * batch]
                pooled = [_pool(plan, number, values[number], ids, weights, per_node) for ids, weights in mine]
                columns.append(torch.stack(pooled) if pooled else torch.empty(0, table.dim, dtype=table.dtype))
            whole = torch.cat(columns, dim=1).requires_grad_()
            shares, dense_grads, sums_of_parts = [], [], defaultdict(list)
            for first, last in pairwise(_cuts(batch, max(work.parts, 1))):
                share = loss(model.dense(dense[first:last], whole[first:last]), label[first:last]) / GLOBAL_BATCH
                grads = torch.autograd.grad(share, [whole, *parameters])
                shares.append(share.detach())
                dense_grads.append(torch.cat([grad.flatten() for grad in grads[1:]]))
                terms = defaultdict(list)
                for number, part in enumerate(grads[0].split([t.dim for t in tables], dim=1)):
                    for b, (ids, weights) in enumerate(bag[number * batch : (number + 1) * batch]):
                        if not first <= b < last:
                            continue
                        grad = part[b] / max(len(ids), 1) if tables[number].pooling == "mean" else part[b]
                        for row, weight in zip(ids, weights, strict=True):
                            terms[number, row].append(grad * weight)
                for key, rows in terms.items():
                    sums_of_parts[key].append(in_order(rows))
            rank_losses[rank] = in_order(shares).double()
            dense_sums[rank] = in_order(dense_grads)
            for key, parts in sums_of_parts.items():
                row_sums[key][rank] = in_order(parts)
        for number in range(len(tables)):
            touched = {row: by_node(ranks, per_node) for (table, row), ranks in row_sums.items() if table == number}
            if touched:
                rows, row_grads = torch.tensor(list(touched)), torch.stack(list(touched.values()))
                update(plan, number, values[number], states[number], rows, row_grads, work.optimizer, step)
        losses.append(float(by_node(rank_losses, per_node)))
        total = by_node(dense_sums, per_node)
        for parameter, part in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        dense_optimizer.step()
    whole_tables = {t.name: (value, *state) for t, value, state in zip(tables, values, states, strict=True)}
    return Result(losses, whole_tables, torch.cat([p.detach().flatten() for p in parameters]), {})


def _cuts(batch: int, parts: int) -> list[int]:
    """Where the parts of a local batch begin, and its end: the first ones take one more."""
    return [0, *accumulate(batch // parts + (part < batch % parts) for part in range(parts))]


def _bag(bags, number: int) -> tuple[list[int], Tensor]:
    """Ids and weights of one bag."""
    begin, end = int(bags.offsets[number]), int(bags.offsets[number + 1])
    weights = torch.ones(end - begin) if bags.weights is None else bags.weights[begin:end]
    return bags.ids[begin:end].tolist(), weights


def _pool(plan: Plan, number: int, values: Tensor, ids: list[int], weights: Tensor, per_node: int) -> Tensor:
    """One pooled bag: partial sums by owner, added by node; a mean divides the whole by the bag's length."""
    if not ids:
        return values.new_zeros(values.shape[1])
    blocks = []
    for column, block in enumerate(values.chunk(plan.placements[number].columns, dim=1)):
        parts, hot = defaultdict(list), []
        for row, weight in zip(ids, weights, strict=True):
            if row in _apart(plan, number):
                hot.append(block[row] * weight)
            else:
                parts[owner(plan, number, row, column)].append(block[row] * weight)
        cold = by_node({rank: in_order(terms) for rank, terms in parts.items()}, per_node) if parts else None
        sums = [part for part in (cold, in_order(hot) if hot else None) if part is not None]
        blocks.append(in_order(sums))
    total = torch.cat(blocks)
    return total / len(ids) if plan.tables[number].pooling == "mean" else total


def _apart(plan: Plan, number: int) -> tuple[int, ...]:
    """Hot rows that are added to what the owners of the others pooled."""
    placement = plan.placements[number]
    return placement.hot if placement.strategy.endswith(("rowwise", "hierarchical")) else ()
