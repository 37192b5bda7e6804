"""What a row-wise optimizer needs of a row whose columns lie on several ranks: the square sum of its whole gradient.

Each holder of a block of columns sums the squares of its own columns, sends one number per distinct row to the holders
of the row's other blocks, and adds what it gets in the order of the columns. All holders of a row have it in the same
place among their distinct rows (same ids, same row part), so no keys travel.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels import Optimizer, segment_grads, update_rows

from .canonical import RowGrads, apply_grads
from .counts import Counts
from .group import Group
from .schedule import Phase
from .shards import Cell, Shards
from .store import Lease, Store


class WholeRows(NamedTuple):
    """Distinct rows of this rank's array, their gradients, and the mean square of each whole row's gradient, [U]."""

    rows: Tensor
    grads: Tensor
    mean_square: Tensor


class RowNorm:
    """The exchange of square sums for the tables of `shards` that are cut into blocks of columns."""

    def __init__(self, shards: Shards, group: Group, backend: str | None) -> None:
        self.shards, self.group, self.backend = shards, group, backend
        self.mine = [cell for cell in shards.cells if cell.rank == group.rank]

    def exchange(self, sums: RowGrads, label: str) -> WholeRows:
        """Complete the canonical sum of `sums` and the square sums of the rows."""
        grads = segment_grads(sums.grads, sums.offsets, sums.weights, "sum", sums.order, sums.starts, self.backend)
        squares = grads.square().sum(1)
        cuts = torch.tensor(
            [cell.base for cell in self.mine] + [self.mine[-1].base + self.mine[-1].rows if self.mine else 0]
        )
        at = torch.searchsorted(sums.rows, cuts).tolist()  # distinct rows of each cell
        span = {self._key(cell): (at[i], at[i + 1]) for i, cell in enumerate(self.mine)}
        size = self.group.size
        outgoing: list[list[Tensor]] = [[] for _ in range(size)]
        incoming: list[list[tuple[Cell, Cell]]] = [[] for _ in range(size)]  # by sender: its cell, and mine
        for cell in self.mine:
            begin, end = span[self._key(cell)]
            for other in self._others(cell):
                outgoing[other.rank].append(squares[begin:end])
                incoming[other.rank].append((other, cell))
        # a sender goes through its cells, and for each through the cells that want it
        expected = [sorted(pairs, key=lambda pair: (*self._key(pair[0]), *self._key(pair[1]))) for pairs in incoming]
        sizes = [[span[self._key(cell)][1] - span[self._key(cell)][0] for _, cell in pairs] for pairs in expected]
        parts = [torch.cat(tensors) if tensors else squares[:0] for tensors in outgoing]
        arrived = self.group.all_to_all(
            torch.cat(parts), [len(part) for part in parts], [sum(of_sender) for of_sender in sizes], label
        )
        blocks = {(cell.table, cell.table, cell.part): squares[slice(*span[self._key(cell)])] for cell in self.mine}
        pieces = torch.split(arrived, [n for of_sender in sizes for n in of_sender])
        for (other, cell), piece in zip((pair for pairs in expected for pair in pairs), pieces, strict=True):
            blocks[cell.table, other.table, cell.part] = piece
        mean = torch.empty_like(squares)
        for cell in self.mine:
            begin, end = span[self._key(cell)]
            numbers = self._blocks(cell)
            total = blocks[cell.table, numbers[0], cell.part].clone()
            for number in numbers[1:]:
                total += blocks[cell.table, number, cell.part]
            mean[begin:end] = total / (len(numbers) * grads.shape[1])
        return WholeRows(sums.rows, grads, mean)

    def sent(self, counts: Counts, itemsize: int) -> Tensor:
        """Bytes from rank to rank, [world, world]."""
        bytes_ = torch.zeros(self.group.size, self.group.size, dtype=torch.int64)
        for cell, rows in zip(self.shards.cells, counts.cell_rows.tolist(), strict=True):
            for other in self._others(cell):
                bytes_[cell.rank, other.rank] += rows * itemsize
        return bytes_

    @staticmethod
    def _key(cell: Cell) -> tuple[int, int]:
        return cell.table, cell.part

    def _blocks(self, cell: Cell) -> tuple[int, ...]:
        """Numbers of the blocks of the cell's table, its own among them."""
        return self.shards.siblings.get(self.shards.tables[cell.table].name, (cell.table,))

    def _others(self, cell: Cell) -> list[Cell]:
        """The cells with the same rows and other columns."""
        numbers = self._blocks(cell)
        return [c for c in self.shards.cells if c.table in numbers and c.table != cell.table and c.part == cell.part]


def row_norm(shards: Shards, group: Group, store: Store, backend: str | None) -> RowNorm | None:
    """The exchange that the store's optimizer needs: none, unless it is row-wise and a table is cut into columns.

    Raises ValueError for a rule that needs more of a whole row than its square sum before the rule.
    """
    rule = store.optimizer
    if not shards.siblings or not (rule.name.startswith("rowwise") or rule.clip_row_norm is not None):
        return None
    if rule != Optimizer("rowwise_adagrad", eps=rule.eps):
        raise ValueError(
            f"columns: expected plain rowwise_adagrad, or a rule that takes every number for itself, given {rule}"
        )
    return RowNorm(shards, group, backend)


class _Owner(Protocol):
    label: str
    store: Store
    backend: str | None


def apply_phases(owner: _Owner, norm: RowNorm | None) -> tuple[Phase, ...]:
    """From `row_grads` and `lease` to the update of the store, with the exchange of `norm` if there is one."""

    def apply(sums: RowGrads, lease: Lease, lr: float, step: int) -> None:
        apply_grads(owner.store, sums, lr, step, owner.backend)
        owner.store.release(lease, dirty=True)

    def apply_whole(whole: WholeRows, lease: Lease, lr: float) -> None:
        apply_whole_rows(owner.store, whole, lr, owner.backend)
        owner.store.release(lease, dirty=True)

    if norm is None:
        return (Phase("apply", apply, ("row_grads", "lease", "lr", "step"), (), "compute"),)

    def exchange(sums: RowGrads) -> WholeRows:
        return norm.exchange(sums, f"{owner.label}.norm")

    return (
        Phase("norm", exchange, ("row_grads",), ("whole_rows",), "network"),
        Phase("apply", apply_whole, ("whole_rows", "lease", "lr"), (), "compute"),
    )


def apply_whole_rows(store: Store, whole: WholeRows, lr: float, backend: str | None) -> None:
    """Row-wise Adagrad with the norms of whole rows: the rule of `kernels.sparse_update`, its square sum given."""
    (state,) = store.states
    state[whole.rows] += whole.mean_square
    rate = lr / (state[whole.rows].sqrt() + store.optimizer.eps)
    update_rows(store.values, (), whole.rows, rate[:, None] * whole.grads, Optimizer("sgd"), 1.0, backend=backend)
