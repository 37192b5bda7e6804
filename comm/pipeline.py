"""Steps that reach into each other: phases of the next batches run ahead, those of past batches behind.

In the iteration of batch t a phase that is staged `ahead` by k works on batch t + k. Each batch has values of its own,
named from the iteration's batch: `x` of t, `+1/x` of the next batch, `-1/x` of the one before. A phase may need values
of its batch's neighbours by the same names. Names carry every order but one: what two batches do to the same store
is ordered by place alone, phases of one stream in the order of the list, iterations one after another.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from .schedule import Phase, Schedule, at, split_offset


@dataclass(frozen=True)
class Staged:
    """`phase` on the batch `ahead` after the iteration's own (below 0: before it)."""

    ahead: int
    phase: Phase

    def resolved(self) -> Phase:
        """The phase with all names as the iteration's batch sees them."""
        needs, gives = (tuple(at(self.ahead, name) for name in names) for names in (self.phase.needs, self.phase.gives))
        return replace(self.phase, name=at(self.ahead, self.phase.name), needs=needs, gives=gives)


class Pipeline:
    """`staged` phases of one iteration in the order of issue, which all ranks share; `inputs` is what every batch
    brings.

    Raises ValueError if a phase needs what is not given in an earlier iteration, nor earlier in this one.
    """

    def __init__(self, staged: Iterable[Staged], inputs: Sequence[str]) -> None:
        self.staged, self.inputs = tuple(staged), tuple(inputs)
        self._check()
        reach = [(s.ahead + k, s.ahead) for s in self.staged for k in self._offsets(s)]
        self.depth = max((max(own, other, 0) for other, own in reach), default=0)
        """How many batches after the iteration's own must be there."""
        self.lag = max((max(-own, -other, 0) for other, own in reach), default=0)
        """How many batches before it are still needed."""

    def _offsets(self, staged: Staged) -> list[int]:
        return [0, *(split_offset(name)[0] for name in staged.phase.needs)]

    def _check(self) -> None:
        given: dict[str, tuple[int, int]] = {}  # stage and place of the phase that gives it
        for place, staged in enumerate(self.staged):
            for name in staged.phase.gives:
                if split_offset(name)[0]:
                    raise ValueError(
                        f"phase {staged.phase.name!r}: expected to give values of its own batch, not {name!r}"
                    )
                if name in given or name in self.inputs:
                    raise ValueError(f"phase {staged.phase.name!r} gives {name!r}, which exists already")
                given[name] = staged.ahead, place
        for place, staged in enumerate(self.staged):
            for need in staged.phase.needs:
                offset, name = split_offset(need)
                if name in self.inputs:
                    continue
                if name not in given:
                    raise ValueError(f"phase {staged.phase.name!r} needs {need!r}, which no phase or input gives")
                stage, giver = given[name]
                batch = staged.ahead + offset
                if stage < batch or (stage == batch and giver > place):
                    raise ValueError(
                        f"phase {staged.phase.name!r} (ahead {staged.ahead}) needs {need!r}, which phase "
                        f"{self.staged[giver].phase.name!r} (ahead {stage}) gives too late: stage it further ahead"
                    )

    def schedule(self, chosen: Collection[int] | None = None) -> Schedule:
        """One iteration, of the phases at the `chosen` places of `staged` (all, if None), as a plain Schedule."""
        phases = [s.resolved() for place, s in enumerate(self.staged) if chosen is None or place in chosen]
        given: set[str] = set()
        inputs: dict[str, None] = {}
        for phase in phases:
            inputs |= dict.fromkeys(name for name in phase.needs if name not in given)
            given.update(phase.gives)
        return Schedule(tuple(phases), tuple(inputs))


def ahead(phases: Sequence[Phase], stage: int, stream: str = "ahead") -> tuple[Staged, ...]:
    """`phases` of one step with those that read nothing but the batch's ids moved `stage` batches ahead, on `stream`.

    They are what starts at `bags`: checks, de-duplication or routing, and the exchange of keys. No value of a row
    moves, so nothing can go stale. EMBark's overlap between iterations (`train_inter_iteration_overlap` in its public
    code).
    """
    known, early, late = {"bags"}, [], []
    for phase in phases:
        if phase.needs and known.issuperset(phase.needs):
            known.update(phase.gives)
            early.append(Staged(stage, replace(phase, stream=stream)))
        else:
            late.append(Staged(0, phase))
    return (*late, *early)
