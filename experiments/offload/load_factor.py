"""Step time against the size of the cache, with and without prefetch, between all rows on the device and none.

Paper figure: none known (its body was not at hand); TorchRec's public benchmark of the pipeline has this shape. Sizes
are multiples of the distinct rows of two neighbouring batches, which is what two batches in flight lock.

Run:      python -m experiments run offload/load_factor --laptop   (about 25 s on 2 cores)
Expect:   conflict misses below one multiple, none from about two; from there on the curve falls as slowly as the
          stream's miss curve does. Prefetch hides what fits under the dense part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from experiments.config import Measurement
from experiments.offload._arms import ABC, PLAIN, Arm, Memory, Sized
from experiments.offload._lab import Lab, slow_downs
from experiments.offload._streams import Order, Stream

HOST = Arm("host", "host", prefetch=False)
ON_DEMAND = Arm("no prefetch", prefetch=False)
ARMS = (ON_DEMAND, PLAIN, ABC)


@dataclass(frozen=True)
class Config:
    """`multiples`: lines over the distinct rows of two batches. `dense`: dense time over the embedding step's."""

    orders: tuple[Order, ...] = ("iid", "meta_low", "meta_medium", "sessions", "drift")
    stream: Stream = field(default_factory=lambda: Stream(rows=500_000, batches=70))
    arms: tuple[str, ...] = tuple(arm.name for arm in ARMS)
    multiples: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.33, 2.0, 4.0, 8.0)
    history: int = 20
    warm: int = 12
    dense: tuple[float, ...] = (1.0, 6.0)
    link: float = 60.0
    rounds: int = 7


GRID = (Config(),)
LAPTOP = (
    Config(
        orders=("iid", "meta_medium"), arms=("no prefetch", "strict"),
        stream=Stream(rows=250_000, samples=512, batches=44),
        multiples=(0.25, 0.5, 1.0, 2.0, 6.0), history=16, dense=(1.0,), rounds=5, warm=10,
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), arms=("strict",), multiples=(0.5, 2.0),
        stream=Stream(rows=4000, samples=32, batches=26, dim=16),
        history=4, warm=3, dense=(1.0,), rounds=5,
    ),
)  # fmt: skip
BUDGET_S = 16.0


def measure(config: Config) -> Iterator[Measurement]:
    """Each stream in turn: every arm at every size, beside both bounds."""
    memory: Memory | None = None
    for order in config.orders:
        lab = Lab(replace(config.stream, order=order), memory)
        memory = lab.memory
        chosen = [arm for arm in ARMS if arm.name in config.arms]
        sizes = [max(1, round(multiple * lab.two)) for multiple in config.multiples]
        sized = [Sized(arm, lines) for arm, lines in product(chosen, sizes)]
        lab.start([Sized(HOST), *sized], config.history, config.warm)
        for dense in config.dense:
            found = lab.timed(config.rounds, dense, 1 / config.link)
            yield from slow_downs(lab, found, {"order": order, "dense": dense, "link": config.link}, 1 / config.link)
