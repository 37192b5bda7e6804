"""What the paper does not have: four arms, each alone and together, on a model 37 times the device's memory.

Paper figure: none; the abstract's one number (37x the size, 26 % slower) is what the slow-downs stand beside. `strict`
is the published pipeline: rows come one batch ahead, prefetch and sparse backward exclude each other, rows that were
never touched are read like any other. (a) `relaxed`: nothing that a batch in flight uses is moved, so neither excludes
the other and no row is looked up twice; (b) `duplex`: both directions of the link at once; (c) `keyed`: a row that was
never written is made on the device; (d) `lookahead`: the policy knows the next batches. Every arm takes the same
steps in turn with the same model all on the device; the dense part is a timer of so many times that model's embedding
step.

Run:      python -m experiments run offload/beyond --laptop   (about a minute on 2 cores; 5 GB of memory)
Expect:   with a long dense part every arm hides its link, and what remains is small; (b) about halves the time of the
          link, (c) saves the reads of first touches, (a) lets the link also work during the sparse backward; the
          smaller the dense part, the more they matter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from experiments.config import Measurement
from experiments.offload._arms import ABC, PLAIN, Arm, Sized
from experiments.offload._lab import Lab, slow_downs
from experiments.offload._streams import Order, Stream

ARMS = (
    Arm("no prefetch", prefetch=False),
    PLAIN,
    Arm("a", relaxed=True),
    Arm("b", duplex=True),
    Arm("c", keyed=True),
    Arm("d", lookahead=True),
    Arm("ab", relaxed=True, duplex=True),
    ABC,
    Arm("abcd", relaxed=True, duplex=True, keyed=True, lookahead=True),
)


@dataclass(frozen=True)
class Config:
    """`scale`: rows of the model over rows of the device's memory, overflow lines included. `dense`: seconds of the
    dense part over those of the all-device embedding step; `links`: the fast tier's bytes/s over the link's."""

    orders: tuple[Order, ...] = ("iid", "meta_low", "meta_medium", "drift")
    stream: Stream = field(default_factory=lambda: Stream(rows=1_900_000, batches=110))
    arms: tuple[str, ...] = tuple(arm.name for arm in ARMS)
    scale: float = 37.0
    history: int = 40
    warm: int = 12
    dense: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 6.0)
    links: tuple[float, ...] = (60.0,)
    rounds: int = 7


GRID = (Config(),)
LAPTOP = (
    Config(
        orders=("iid", "meta_medium"), stream=Stream(rows=950_000, samples=1024, batches=84),
        arms=("strict", "a", "b", "c", "abc"), dense=(0.0, 0.5, 1.0, 6.0), rounds=5,
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), arms=("strict", "abc"), stream=Stream(rows=20_000, samples=64, batches=26, dim=16),
        scale=20.0, history=4, warm=3, dense=(1.0,), rounds=5,
    ),
)  # fmt: skip
BUDGET_S = 27.0


def measure(config: Config) -> Iterator[Measurement]:
    """Each stream in turn: all arms at each dense time and link."""
    memory = None
    for order in config.orders:
        lab = Lab(replace(config.stream, order=order), memory)
        memory, lines = lab.memory, lab.lines(config.scale)
        lab.start([Sized(arm, lines) for arm in ARMS if arm.name in config.arms], config.history, config.warm)
        for link, dense in product(config.links, config.dense):
            found = lab.timed(config.rounds, dense, 1 / link)
            point = {"order": order, "dense": dense, "link": link, "scale": config.scale}
            yield from slow_downs(lab, found, point, 1 / link)
