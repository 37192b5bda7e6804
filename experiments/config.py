"""The contract of an experiment: a file `experiments/<group>/<name>.py`, named `<group>/<name>`.

    docstring      what it shows, the paper's figure or "none", the command, minutes, the expected shape
    Config         a frozen dataclass of plain fields or nested frozen dataclasses, each with a default
    GRID           the full sweep, what `python -m experiments record` runs
    LAPTOP         the sweep for a laptop, what `make reproduce` runs; it ends within BUDGET_S seconds on two cores
    TINY           seconds; the test suite runs it
    measure        Config -> Iterator[Measurement]; each one is written as a record the moment it is yielded

An experiment is a file below a group's folder that defines `measure` at its top level: nothing is registered.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from itertools import product
from typing import Any, TypeVar, cast

import experiments
from experiments.names import find, require
from experiments.record import Measurement

__all__ = ["Experiment", "Measurement", "grid", "load", "names"]

T = TypeVar("T")


@dataclass(frozen=True)
class Experiment:
    """A loaded experiment: its name and what its module declares."""

    name: str
    doc: str
    config: type[Any]
    sets: Mapping[str, tuple[Any, ...]]
    """The configurations by set: `grid`, `laptop`, `tiny`."""
    budget_s: float
    measure: Callable[[Any], Iterator[Measurement]]


def grid(config: type[T], **sweep: Iterable[Any]) -> tuple[T, ...]:
    """Every combination of the given fields' values, the last varying fastest; other fields keep their defaults."""
    return tuple(config(**dict(zip(sweep, values, strict=True))) for values in product(*sweep.values()))


def names() -> list[str]:
    """Names of every experiment."""
    return find(experiments, "measure")


def load(name: str) -> Experiment:
    """Import the experiment `name`.

    Raises:
        ValueError: no such experiment; the message names the choices.
        TypeError: the module does not keep the contract.
    """
    require(name, names(), "experiment")
    module = import_module(f"{experiments.__name__}.{name.replace('/', '.')}")
    lacks = [part for part in ("Config", "GRID", "LAPTOP", "TINY", "BUDGET_S") if not hasattr(module, part)]
    lacks += [] if module.__doc__ else ["a docstring"]
    if lacks:
        raise TypeError(f"experiment {name!r} lacks {', '.join(lacks)}: see experiments/config.py for the contract")
    config = cast(Any, module.Config)
    if not (isinstance(config, type) and is_dataclass(config) and cast(Any, config).__dataclass_params__.frozen):
        raise TypeError(f"experiment {name!r}: Config must be a frozen dataclass, not {config!r}")
    sets = {"grid": tuple(module.GRID), "laptop": tuple(module.LAPTOP), "tiny": tuple(module.TINY)}
    for which, configs in sets.items():
        if not configs or not all(isinstance(c, config) for c in configs):
            raise TypeError(f"experiment {name!r}: {which.upper()} must hold one Config or more, not {configs!r}")
    return Experiment(name, module.__doc__ or "", config, sets, float(module.BUDGET_S), module.measure)
