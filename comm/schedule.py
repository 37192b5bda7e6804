"""Phases in order, on streams: what the executor runs is what the simulator prices.

A Phase is a function from named values to named values, on one resource. A Schedule is a tuple of phases in an order
that every rank shares. Values live in a Frame for one step; dependencies follow from the names.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Resource = Literal["compute", "network", "host_link"]
RESOURCES: tuple[str, ...] = get_args(Resource)
Frame = dict[str, Any]
"""The values of one step on one rank, by name."""


def at(offset: int, name: str) -> str:
    """The name of a value or phase, given relative to a batch, as seen from the batch `offset` before it.

    `x` of the batch itself is `x`; of the next one `+1/x`, of the one before `-1/x`.
    """
    own, plain = split_offset(name)
    return f"{offset + own:+d}/{plain}" if offset + own else plain


def split_offset(name: str) -> tuple[int, str]:
    """Offset and plain name: `+1/x` is (1, "x"), `x` is (0, "x")."""
    head, slash, plain = name.partition("/")
    return (int(head), plain) if slash and head[:1] in "+-" and head[1:].isdigit() else (0, name)


@dataclass(frozen=True)
class Phase:
    """`gives` = `run(*needs)`, on `resource`. One name given: `run` returns the value; several: a tuple; none: None.

    `resource` is what it occupies, `stream` the thread that runs it, by default the resource's. A stream with a name
    of its own runs phases of any resource, one after another, beside the others. One that `yields` does not begin
    while a network phase of the step's own stream is due: it must not queue ahead of it.
    """

    name: str
    run: Callable[..., Any]
    needs: tuple[str, ...]
    gives: tuple[str, ...]
    resource: Resource
    stream: str = ""
    yields: bool = False

    def __post_init__(self) -> None:
        if not self.stream:
            object.__setattr__(self, "stream", self.resource)

    def scoped(self, label: str, outer: tuple[str, ...] = ()) -> "Phase":
        """The same phase with its name and its values under `label.`, but for the `outer` names, which stay as they
        are.
        """

        def scope(names: tuple[str, ...]) -> tuple[str, ...]:
            batches = (split_offset(name) for name in names)
            return tuple(at(k, name if name in outer else f"{label}.{name}") for k, name in batches)

        return replace(self, name=f"{label}.{self.name}", needs=scope(self.needs), gives=scope(self.gives))

    def __call__(self, frame: Frame) -> None:
        """Run on the values of `frame`, and leave the results there."""
        result = self.run(*(frame[name] for name in self.needs))
        if len(self.gives) == 1:
            frame[self.gives[0]] = result
        elif self.gives:
            frame.update(zip(self.gives, result, strict=True))


@dataclass(frozen=True)
class Schedule:
    """Phases in the order in which every rank issues them. `inputs` are the values a Frame holds before the first
    phase.

    Raises ValueError if a phase needs a value that nothing before it gives, or gives one that exists.
    """

    phases: tuple[Phase, ...]
    inputs: tuple[str, ...]

    def __post_init__(self) -> None:
        known = set(self.inputs)
        for phase in self.phases:
            for name in phase.needs:
                if name not in known:
                    raise ValueError(f"phase {phase.name!r} needs {name!r}, which no earlier phase or input gives")
            for name in phase.gives:
                if name in known:
                    raise ValueError(f"phase {phase.name!r} gives {name!r}, which exists already")
                known.add(name)
