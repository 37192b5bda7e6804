"""Overlap within a step, as an order of its phases: exchanges travel under look-ups and dense compute.

Source: EMBark's overlap within an iteration (`train_intra_iteration_overlap` in its public code): values travel under
the bottom MLP and the look-ups of replicated tables, gradients under the bottom MLP's backward; how gradients will be
summed by row is worked out before they are there. No value is read earlier than in the plain order, so nothing can go
stale.
"""

from collections.abc import Sequence
from dataclasses import replace

from .schedule import Phase

INDEX = "index"
"""The stream of compute that neither the dense part waits for nor that waits for it."""


def overlapped(phases: Sequence[Phase], turn: str) -> tuple[Phase, ...]:
    """`phases` of one step, in the order in which a step takes least; `turn` names the one that gives the gradient.

    Phases stand by their height, the number of network phases on the longest way from them to the end: what more
    exchanges wait for comes first, so that all teams' keys travel together, then all their values. At one height
    network phases come first, then compute that waits for none (it runs under them), then the rest, each in the order
    given. Compute that the turn neither needs nor gives to moves to the stream `index`.

    Raises ValueError if no phase is called `turn`.
    """
    if turn not in [phase.name for phase in phases]:
        raise ValueError(f"turn: expected the name of a phase, given {turn!r}: {', '.join(p.name for p in phases)}")
    givers = {name: place for place, phase in enumerate(phases) for name in phase.gives}
    before = [{givers[name] for name in phase.needs if name in givers} for phase in phases]
    ancestors: list[set[int]] = []
    for parents in before:  # a giver stands before who needs it
        ancestors.append(parents.union(*(ancestors[parent] for parent in parents)))
    heights = [0] * len(phases)
    for place in reversed(range(len(phases))):
        for parent in before[place]:
            above = heights[place] + (phases[place].resource == "network")
            heights[parent] = max(heights[parent], above)
    waits = [any(phases[a].resource == "network" for a in of_phase) for of_phase in ancestors]
    middle = next(place for place, phase in enumerate(phases) if phase.name == turn)

    def key(place: int) -> tuple[int, bool, bool]:
        is_network = phases[place].resource == "network"
        return -heights[place], not is_network, not is_network and waits[place]

    def beside(place: int) -> bool:
        is_apart = place not in ancestors[middle] and middle not in ancestors[place] and place != middle
        return is_apart and phases[place].resource == "compute"

    order = sorted(range(len(phases)), key=key)
    return tuple(replace(phases[p], stream=INDEX) if beside(p) else phases[p] for p in order)
