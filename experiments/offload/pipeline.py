"""How much of the prefetch a dense part of some length hides, and how long the sparse backward waits for the rest.

Paper figure: none known. The dense part takes from 0 to 3 times what the link needs for a step's rows. Strictly, the
next batch's prefetch must have ended before the sparse backward begins, so what forward and dense part do not hide
is a stall there; with arm (a) the sparse backward hides it too.

Run:      python -m experiments run offload/pipeline --laptop   (about 15 s on 2 cores)
Expect:   without prefetch the link's time is added whole; with it the step is the longer of the two, and the stall
          ends where the dense part is as long as the link's time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from experiments.config import Measurement
from experiments.offload._arms import PLAIN, Arm, Sized
from experiments.offload._lab import Lab, slow_downs
from experiments.offload._streams import Order, Stream

ARMS = (Arm("no prefetch", prefetch=False), PLAIN, Arm("a", relaxed=True))


@dataclass(frozen=True)
class Config:
    """`dense`: seconds of the dense part over those that the link needs for a step's rows, both ways."""

    orders: tuple[Order, ...] = ("iid", "meta_medium")
    stream: Stream = field(default_factory=lambda: Stream(rows=500_000, batches=110))
    multiple: float = 2.0
    history: int = 20
    warm: int = 12
    dense: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    link: float = 60.0
    rounds: int = 7


GRID = (Config(),)
LAPTOP = (
    Config(
        orders=("iid",), stream=Stream(rows=250_000, samples=512, batches=76), history=16, warm=10,
        dense=(0.0, 0.5, 1.0, 2.0, 3.0), rounds=7,
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), stream=Stream(rows=4000, samples=32, batches=36, dim=16), history=4, warm=3, dense=(0.0, 1.0),
        rounds=5,
    ),
)  # fmt: skip
BUDGET_S = 9.0


def measure(config: Config) -> Iterator[Measurement]:
    """Find the link's time for a step from the bytes of some steps, then time every arm at every dense part."""
    for order in config.orders:
        lab = Lab(replace(config.stream, order=order))
        lab.start([Sized(arm, round(config.multiple * lab.two)) for arm in ARMS], config.history, config.warm)
        warm = lab.timed(5, 0.0, 1.0)
        moved = next(found.counted for name, found in warm.items() if name.startswith(PLAIN.name))
        link_s = (moved["bytes_in"] + moved["bytes_out"]) / (lab.fast / config.link)
        for dense in config.dense:
            found = lab.timed(config.rounds, dense * link_s / lab.embedding_s, 1 / config.link)
            point = {"order": order, "dense_over_link": dense, "link_ms": 1e3 * link_s, "link": config.link}
            yield from slow_downs(lab, found, point, 1 / config.link)
