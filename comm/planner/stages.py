"""The phases of a step kind by kind over all teams, so that ranks wait for each other once a kind, not once a team.

This is the order that `score` prices. Any order that keeps each team's own gives the same bits.
"""

from comm.schedule import Phase, Schedule

STAGES = (
    ("split", "route", "dedup"),
    ("keys", "keys_node"),
    ("dedup_node",),
    ("keys_rail",),
    ("gather",),
    ("send",),
    ("combine", "pool", "dense", "unpool", "index", "local_reduce"),
    ("grad_send", "grad_node"),
    ("node_reduce",),
    ("grad_rail",),
    ("owner_reduce",),
    ("norm",),
    ("apply",),
    ("dense_reduce",),
    ("dense_apply",),
)
"""Names of phases by stage, without the label of their team."""


def stage_of(phase: Phase) -> int:
    """The stage of a phase; ValueError for a name that is in none."""
    name = phase.name.rpartition(".")[2]
    found = [number for number, names in enumerate(STAGES) if name in names]
    if not found:
        raise ValueError(f"phase {phase.name!r}: expected one of {', '.join(n for names in STAGES for n in names)}")
    return found[0]


def by_stage(schedule: Schedule) -> Schedule:
    """The same phases, stage after stage; within a stage and name in the order given."""

    def place(phase: Phase) -> tuple[int, int]:
        stage = stage_of(phase)
        return stage, STAGES[stage].index(phase.name.rpartition(".")[2])

    return Schedule(tuple(sorted(schedule.phases, key=place)), schedule.inputs)
