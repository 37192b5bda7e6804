"""What a training step sends, label by label, before it runs: the strategies' own predictions and the dense part's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from comm.canonical import chunk_sizes, ring_bytes
from comm.cost import Work
from comm.counts import Counts
from comm.strategy import off_diagonal
from kernels import Bags
from kernels.cost import Cost

from .embedding import ShardedEmbedding
from .step import TrainingStep


def counts_of(embedding: ShardedEmbedding, batches: Sequence[Bags]) -> dict[str, Counts]:
    """Counts of each team, by label, for one global batch: `batches` are the table-major bags of every rank."""
    tables, local = len(embedding.tables), embedding.group.ranks_per_node
    return {
        team.label: Counts.of(team.strategy.shards, [team.select(bags, tables) for bags in batches], local)
        for team in embedding.teams
    }


def bytes_sent(step: TrainingStep, counts: dict[str, Counts]) -> dict[str, Tensor]:
    """Bytes of one step from rank to rank [world, world] int64, by label; `counts` by label of team."""
    sent = dense_bytes(step)
    for team in step.embedding.teams:
        predicted = team.strategy.sent(counts[team.label])
        sent |= {f"{team.label}.{name}": bytes_ for name, bytes_ in predicted.items()}
    return sent


def dense_work(step: TrainingStep, batches: Sequence[int]) -> Work:
    """Work of the phase `dense` on each rank for `batches` [world] samples: 6 flops a weight of a matrix and sample,
    2 forward and 4 backward. Interactions of vectors, which have no weights, come on top.
    """
    weights = sum(parameter.numel() for parameter in step.parameters if parameter.ndim == 2)
    return Work("dense", tuple(Cost(flops=6.0 * weights * batch) for batch in batches))


def dense_bytes(step: TrainingStep) -> dict[str, Tensor]:
    """Bytes of loss and dense gradients from rank to rank [world, world] int64, by label."""
    world = step.group.size
    entries = sum(parameter.numel() for parameter in step.parameters)
    item = max((parameter.itemsize for parameter in step.parameters), default=4)
    chunks = torch.tensor(chunk_sizes(entries, world)) * item
    everyone = torch.ones(world, world, dtype=torch.int64)
    sent = {"dense_reduce.loss": off_diagonal(8 * everyone)}
    if step.ring:
        return sent | {"dense_reduce": ring_bytes(entries, item, world)}
    scatter = off_diagonal(everyone * chunks[None, :])
    return sent | {"dense_reduce.scatter": scatter, "dense_reduce.gather": scatter.T}
