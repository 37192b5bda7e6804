"""What a cache costs when every row is in it: the price of looking.

Paper figure: none known. The cache has room for every row and holds them all, so nothing crosses the link; what is left
is to find rows, lock and unlock them, and go through places instead of row numbers. Without prefetch that is in the
step; with it most is under the step, on another core. There is no dense part, so nothing else hides it.

Run:      python -m experiments run offload/overhead --laptop   (about 10 s on 2 cores)
Expect:   at most 20 % of a step with 1,024 to 8,192 bags a table; per-call costs dominate below.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from experiments.config import Measurement
from experiments.offload._arms import PLAIN, Arm, Sized
from experiments.offload._lab import Lab, slow_downs
from experiments.offload._streams import Stream

ARMS = (Arm("no prefetch", prefetch=False), PLAIN, Arm("a", relaxed=True))
ROOM = 1.6
"""Lines over rows: sets of 32 ways then hold all of theirs, but for one set in many thousands."""


@dataclass(frozen=True)
class Config:
    """`samples`: bags a table."""

    samples: tuple[int, ...] = (256, 1024, 2048, 4096, 8192)
    stream: Stream = field(default_factory=lambda: Stream(rows=100_000, batches=40))
    history: int = 2
    warm: int = 3
    rounds: int = 21


GRID = (Config(),)
LAPTOP = (Config(samples=(1024, 4096), stream=Stream(rows=50_000, batches=28), rounds=11),)
TINY = (Config(samples=(32,), stream=Stream(rows=1000, batches=20, dim=16), rounds=5),)
BUDGET_S = 8.0


def measure(config: Config) -> Iterator[Measurement]:
    """All arms with every row in their lines, beside the table itself."""
    for samples in config.samples:
        lab = Lab(replace(config.stream, samples=samples))
        lines = round(ROOM * lab.stream.total_rows)
        lab.start([Sized(arm, lines) for arm in ARMS], config.history, config.warm)
        for each in lab.lanes[1:]:
            for rows in torch.arange(lab.stream.total_rows).split(lab.most):
                each.store.release(each.store.prepare(rows, 0), dirty=False)
        lab.round()
        found = lab.timed(config.rounds, 0.0, 1.0)
        yield from slow_downs(lab, found, {"samples": samples, "dense": 0.0, "link": 1.0}, 1.0)
