"""Drop-in modules: `EmbeddingBag` for torch.nn.EmbeddingBag, `EmbeddingBagCollection` for several of them at once.

Both check every id against its table (a kernel would read past it), run under autograd and
`torch.compile(fullgraph=True)`, and load and save the state dict of the modules they replace.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from . import _backend
from .bags import POOLINGS, Bags, TableSpec, accumulator, check_ids
from .pooled_lookup import pooled_lookup


class EmbeddingBag(nn.Module):
    """torch.nn.EmbeddingBag on these kernels: the same arguments, the same results, the same `weight`.

    `forward(input, offsets, per_sample_weights)` takes `input` [bags, ids per bag], or [N] with `offsets` [bags] (with
    `include_last_offset` [bags + 1]), int32 or int64, and gives [bags, embedding_dim]. Ids equal to `padding_idx` are
    left out of their bag. With `sparse` the gradient of `weight` is a sparse tensor, an entry a touched row, ascending.
    `per_sample_weights` may be of any floating dtype; sums are float32 (see `kernels.pooled_lookup`).

    Two arguments of torch's are refused: `max_norm`, which writes to the table in the forward pass (a reader of the
    same rows on another rank or in a cache would not see it), and `scale_grad_by_freq`, whose rule no fused optimizer
    here has. Raises ValueError with the expected and the given for a wrong shape, dtype, offset or id.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if max_norm is not None:
            raise ValueError(
                f"max_norm: expected None, given {max_norm}: it rescales rows in place in the forward pass, which "
                "copies of them in a cache or on another rank do not see; rescale the weight after the optimizer's step"
            )
        if scale_grad_by_freq:
            raise ValueError(
                "scale_grad_by_freq: expected False, given True: it divides a row's gradient by its count in the "
                "batch, a rule that no fused optimizer has; choose mode 'mean', or a row-wise adaptive optimizer"
            )
        if mode not in POOLINGS:
            raise ValueError(f"unknown mode {mode!r}: choose one of {', '.join(POOLINGS)}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx: expected within {num_embeddings} rows, given {padding_idx}")
        if _weight is not None and tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ValueError(f"_weight: expected {(num_embeddings, embedding_dim)}, given {tuple(_weight.shape)}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.backend = backend
        if _weight is None:
            self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            self.weight = nn.Parameter(_weight)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        backend: str | None = None,
    ) -> "EmbeddingBag":
        """A module over `embeddings` [rows, dim], frozen unless told otherwise."""
        rows, dim = embeddings.shape
        given = (rows, dim, max_norm, norm_type, scale_grad_by_freq, mode, sparse)
        module = cls(*given, embeddings, include_last_offset, padding_idx, backend=backend)
        module.weight.requires_grad = not freeze
        return module

    def reset_parameters(self) -> None:
        """Standard normal rows, and zeros for `padding_idx`."""
        nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pooled rows [bags, embedding_dim]. See the class's docstring."""
        if per_sample_weights is not None and per_sample_weights.shape != input.shape:
            raise ValueError(
                f"per_sample_weights: expected the input's shape {tuple(input.shape)}, "
                f"given {tuple(per_sample_weights.shape)}"
            )
        ids = input.reshape(-1)
        bounds = self._bounds(input, offsets)
        ids = _global_rows(ids, bounds, [self.num_embeddings], "weight")
        weights = None
        if per_sample_weights is not None:
            weights = per_sample_weights.reshape(-1).to(accumulator(self.weight.dtype))
        if self.padding_idx is not None:
            kept = _positions(ids != self.padding_idx)
            before = nn.functional.pad((ids != self.padding_idx).cumsum(0), (1, 0))
            ids, bounds = ids[kept], before[bounds]
            weights = None if weights is None else weights[kept]
        return pooled_lookup(self.weight, ids, bounds, weights, self.mode, self.backend, sparse_grad=self.sparse)

    def _bounds(self, input: Tensor, offsets: Tensor | None) -> Tensor:
        """Where bags begin and the last one ends, [bags + 1] int64."""
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets: expected None with a 2-D input (each row is a bag), given a tensor")
            return torch.arange(input.shape[0] + 1, device=input.device) * input.shape[1]
        if input.dim() != 1:
            raise ValueError(f"input: expected 1-D or 2-D, given {input.dim()}-D")
        if offsets is None or offsets.dim() != 1 or offsets.dtype not in (torch.int32, torch.int64):
            given = "None" if offsets is None else f"{offsets.dim()}-D {offsets.dtype}"
            raise ValueError(f"offsets: expected 1-D int32 or int64 with a 1-D input, given {given}")
        bounds = offsets.long()
        if self.include_last_offset:
            return bounds
        return torch.cat([bounds, bounds.new_full((1,), input.shape[0])])

    def extra_repr(self) -> str:
        """As torch's: rows, dim and what is not a default."""
        words = [str(self.num_embeddings), str(self.embedding_dim), f"mode={self.mode!r}"]
        if self.padding_idx is not None:
            words.append(f"padding_idx={self.padding_idx}")
        return ", ".join(words)


class EmbeddingBagCollection(nn.Module):
    """Several tables behind one call: those of one (dim, dtype, pooling) are stacked, and looked up in one launch.

    `forward(bags)` takes table-major `Bags` (bag t * B + b is sample b of table t) and gives [B, sum of dims], tables
    in order; mixed dtypes are promoted as torch.cat does. Parameters are `stack_0`, `stack_1` ..., one per stack; the
    state dict has `<table>.weight` [rows, dim] for every table instead, as a ModuleDict of torch.nn.EmbeddingBag has,
    so either loads the other's. `rows_of(name)` is the view of one table.

    Rows begin standard normal, as torch's. With `sparse` gradients are sparse tensors of the rows touched.
    Raises ValueError for two tables of a name, a number of bags that is no multiple of the tables', an id out of range
    (named with its table), weights for a table of `mean` or `max`.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        sparse: bool = False,
        device: torch.device | str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        names = [table.name for table in tables]
        if not tables or len(set(names)) < len(names):
            raise ValueError(f"tables: expected at least one, each of its own name, given {names}")
        self.tables, self.sparse, self.backend = tuple(tables), sparse, backend
        stacks: dict[tuple, list[int]] = {}
        for number, table in enumerate(tables):
            stacks.setdefault((table.dim, table.dtype, table.pooling), []).append(number)
        self.stacks = tuple(map(tuple, stacks.values()))
        for i, numbers in enumerate(self.stacks):
            first = tables[numbers[0]]
            rows = sum(tables[n].rows for n in numbers)
            weight = nn.Parameter(torch.empty(rows, first.dim, device=device, dtype=first.dtype))
            self.register_parameter(f"stack_{i}", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Standard normal rows."""
        for weight in self.parameters():
            nn.init.normal_(weight)

    def rows_of(self, name: str) -> Tensor:
        """Weights of one table, [rows, dim]: a view of its stack, without gradient."""
        for i, numbers in enumerate(self.stacks):
            rows = [self.tables[n].rows for n in numbers]
            for n, first in zip(numbers, accumulate(rows, initial=0), strict=False):
                if self.tables[n].name == name:
                    return self.get_parameter(f"stack_{i}").detach()[first : first + self.tables[n].rows]
        raise ValueError(f"unknown table {name!r}: choose one of {', '.join(table.name for table in self.tables)}")

    def forward(self, bags: Bags) -> Tensor:
        """Pooled rows [B, sum of dims]. See the class's docstring."""
        ids, offsets, weights = bags.ids, bags.offsets, bags.weights
        count = len(self.tables)
        if (offsets.shape[0] - 1) % count:
            raise ValueError(f"bags: expected a multiple of {count} tables, given {offsets.shape[0] - 1} bags")
        batch = (offsets.shape[0] - 1) // count
        columns: list[Tensor] = [ids] * count
        for i, numbers in enumerate(self.stacks):
            specs = [self.tables[n] for n in numbers]
            some, bounds, factors = ids, offsets, weights
            if len(self.stacks) > 1:
                lengths = offsets.diff().view(count, batch)
                bounds = nn.functional.pad(lengths[list(numbers)].reshape(-1).cumsum(0), (1, 0))
                position = _positions_of_tables(offsets, list(numbers), count)
                some, factors = ids[position], None if weights is None else weights[position]
            some = _global_rows(some, bounds, [spec.rows for spec in specs], "\n".join(spec.name for spec in specs))
            weight = self.get_parameter(f"stack_{i}")
            if factors is not None:
                factors = factors.to(accumulator(weight.dtype))
            out = pooled_lookup(weight, some, bounds, factors, specs[0].pooling, self.backend, sparse_grad=self.sparse)
            for n, column in zip(numbers, out.view(len(numbers), batch, specs[0].dim).unbind(0), strict=True):
                columns[n] = column
        return torch.cat(columns, dim=1)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for table in self.tables:
            destination[f"{prefix}{table.name}.weight"] = self.rows_of(table.name)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        expected = {f"{prefix}{table.name}.weight": table for table in self.tables}
        for key, table in expected.items():
            if key not in state_dict:
                missing_keys.append(key)
            elif tuple(state_dict[key].shape) != (table.rows, table.dim):
                given = tuple(state_dict[key].shape)
                error_msgs.append(f"{key}: expected shape {(table.rows, table.dim)}, given {given}")
            else:
                self.rows_of(table.name).copy_(state_dict[key])
        if strict:
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in expected]


@torch.library.custom_op(f"{_backend.NAMESPACE}::global_rows", mutates_args=())
def _global_rows(ids: Tensor, offsets: Tensor, rows: Sequence[int], names: str) -> Tensor:
    """Row numbers in the stack of tables of `rows` rows, [N] int64: checked, then moved by the rows before the table.

    `names`: one a line. An op, so that a compiled graph keeps the check, which reads the ids.
    """
    specs = [TableSpec(name, n, 1) for name, n in zip(names.split("\n"), rows, strict=True)]
    bags = Bags(ids, offsets)
    check_ids(bags, specs)
    if len(specs) == 1:
        return ids.to(torch.int64, copy=True)
    first = torch.tensor([0, *accumulate(rows)][:-1], device=ids.device)
    ends = offsets[:: len(bags) // len(specs)] if len(bags) else offsets.new_zeros(len(specs) + 1)
    return ids + torch.repeat_interleave(first, ends.diff(), output_size=len(ids))


@_global_rows.register_fake
def _(ids: Tensor, offsets: Tensor, rows: Sequence[int], names: str) -> Tensor:
    return ids.new_empty(ids.shape, dtype=torch.int64)


@torch.library.custom_op(f"{_backend.NAMESPACE}::positions", mutates_args=())
def _positions(chosen: Tensor) -> Tensor:
    """Where `chosen` [N] bool holds, ascending, int64."""
    return torch.nonzero(chosen)[:, 0].contiguous()


@_positions.register_fake
def _(chosen: Tensor) -> Tensor:
    return chosen.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@torch.library.custom_op(f"{_backend.NAMESPACE}::positions_of_tables", mutates_args=())
def _positions_of_tables(offsets: Tensor, numbers: Sequence[int], count: int) -> Tensor:
    """Positions of the ids of tables `numbers`, of `count` table-major ones, in that order, int64."""
    batch = (len(offsets) - 1) // count
    parts = [torch.arange(int(offsets[n * batch]), int(offsets[(n + 1) * batch])) for n in numbers]
    return torch.cat(parts).to(offsets.device)


@_positions_of_tables.register_fake
def _(offsets: Tensor, numbers: Sequence[int], count: int) -> Tensor:
    return offsets.new_empty(torch.library.get_ctx().new_dynamic_size())
