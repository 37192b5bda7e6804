"""What the `cases.py` of the ops share: a pairwise covering array of options, and ragged ids drawn from a seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

INDEX_BYTES = 8
"""Bytes of an int64 offset, position or start."""


def covering(
    options: Mapping[str, Sequence[Any]], allowed: Callable[[dict[str, Any]], bool] = lambda choice: True
) -> list[dict[str, Any]]:
    """A short list of choices (option -> value) in which every allowed pair of values of two options occurs.

    Greedy over the full product, the first best choice each time: deterministic. `allowed` rules out choices.
    """
    rows = [row for values in product(*options.values()) if allowed(row := dict(zip(options, values, strict=True)))]
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: sum(pair in missing for pair in _pairs(row)))
        chosen.append(best)
        missing.difference_update(_pairs(best))
    return chosen


def _pairs(row: dict[str, Any]) -> Iterator[tuple]:
    return combinations(row.items(), 2)


def name_of(choice: Mapping[str, Any]) -> str:
    """A test's name from a choice of options: `bags4x3-dim128-int32-...`."""
    words = []
    for option, value in choice.items():
        if isinstance(value, torch.dtype):
            words.append(str(value).removeprefix("torch."))
        elif isinstance(value, bool):
            words.append(option if value else f"no_{option}")
        elif isinstance(value, str):
            words.append(value)
        else:
            words.append(f"{option}{value}")
    return "-".join(words)


def generator(seed: int) -> torch.Generator:
    """A CPU generator: the same numbers whatever the device they are then moved to."""
    return torch.Generator().manual_seed(seed)


def draw_ids(n: int, rows: int, spread: str, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """[n] ids in 0 .. rows - 1: `uniform`, `same` (one row takes all), `zipf` (p ~ rank^-1.05, scattered)."""
    if spread == "same":
        ids = torch.full((n,), rows // 2)
    elif spread == "uniform":
        ids = torch.randint(rows, (n,), generator=random)
    elif spread == "zipf":
        mass = torch.arange(1, rows + 1, dtype=torch.float64).pow(-1.05).cumsum(0)
        rank = torch.searchsorted(mass, torch.rand(n, generator=random, dtype=torch.float64) * mass[-1])
        ids = torch.randperm(rows, generator=random)[rank.clamp(max=rows - 1)]
    else:
        raise ValueError(f"unknown spread {spread!r}: choose one of uniform, same, zipf")
    return ids.to(dtype)


def draw_offsets(bags: int, hotness: int, ragged: bool, random: torch.Generator) -> Tensor:
    """[bags + 1] int64: every bag of `hotness` ids, or lengths of 0 .. 2 * hotness, the first empty, the last not."""
    lengths = torch.full((bags,), hotness)
    if ragged and bags > 1 and hotness:
        lengths = torch.randint(2 * hotness + 1, (bags,), generator=random)
        lengths[0], lengths[-1] = 0, hotness
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def normal(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Standard normal numbers; float32 ones are the float64 ones rounded."""
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


def copied(inputs: Mapping[str, Any], double: bool = False, magnitudes: bool = False) -> dict[str, Any]:
    """A copy of an op's keyword arguments; its floating tensors in float64, or as absolute values, if asked.

    In float64, rows of bytes with a `scale_bias` become the numbers they stand for, and a result's dtype float64.
    """
    if double and inputs.get("scale_bias") is not None:
        scale, bias = (inputs["scale_bias"].double().abs() if magnitudes else inputs["scale_bias"].double()).unbind(1)
        inputs = {**inputs, "table": scale[:, None] * inputs["table"] + bias[:, None], "scale_bias": None}

    def copy(value: Any) -> Any:
        if isinstance(value, tuple):
            parts = map(copy, value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)  # a NamedTuple of tensors, or any
        if double and isinstance(value, torch.dtype):
            return torch.float64
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            value = value.double() if double else value
            value = value.abs() if magnitudes else value
        return value.clone()

    return {name: copy(value) for name, value in inputs.items()}


def sum_bound(terms: Tensor, n: Tensor, eps: float) -> Tensor:
    """How far a sum of `n` products may be from the float64 truth, given `terms`, the sum of their magnitudes.

    eps is 2u (u: unit round-off). Summed in any order it is off by at most n * u * terms to first order, a division
    adds one u, and for float64 inputs the truth has the same error: (n + 1) * eps * terms = 2 (n + 1) * u * terms
    covers both.
    """
    return (n + 1) * eps * terms


def rounded_bound(off: Tensor, truth: Tensor, dtype: torch.dtype) -> Tensor:
    """`off`, the bound of a number before it is rounded to nearest in `dtype`, given the float64 `truth`: after it.

    Rounding y moves it by at most half a unit in the last place: eps / 2 * |y|, or half the smallest subnormal number
    where |y| is below the normal ones; and |y| <= |truth| + off.
    """
    info = torch.finfo(dtype)
    return off + info.eps / 2 * ((truth.abs() + off).clamp(min=info.smallest_normal))
