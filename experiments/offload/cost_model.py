"""The closed cost model of a step against the clock: what a planner may trust.

Paper figure: none; the published planner adds the prefetch to a shard's cost as if nothing hid it, and counts fetches
only. Here a step is predicted from four numbers that are known before it runs (forward and backward of the embedding
on the device, the dense part, the link's rate) and the miss curve of the stream's own past; write-backs count, and so
does what the dense part hides. `refitted` is the link's rate that the steps without prefetch would have.

Run:      python -m experiments run offload/cost_model --laptop   (about 15 s on 2 cores)
Expect:   misses within 1.5 points where the cache is above three times two batches' rows; times within some 10 %, too
          low where the link is fast, because the prefetch's own work is not in the formulas.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from comm.planner.miss_curve import measure as curve_of
from experiments.config import Measurement
from experiments.offload._arms import DEVICE, PLAIN, Arm, Sized
from experiments.offload._lab import Lab
from experiments.offload._model import Parts, link_seconds, step_seconds
from experiments.offload._streams import Order, Stream

ARMS = (Arm("no prefetch", prefetch=False), PLAIN, Arm("ab", relaxed=True, duplex=True))


@dataclass(frozen=True)
class Config:
    """Every combination of cache (multiples of two batches' rows), dense time (of the embedding step) and link."""

    orders: tuple[Order, ...] = ("iid", "meta_medium", "drift")
    stream: Stream = field(default_factory=lambda: Stream(rows=500_000, batches=120))
    multiples: tuple[float, ...] = (1.5, 3.0, 6.0)
    history: int = 40
    warm: int = 12
    dense: tuple[float, ...] = (0.0, 1.0, 6.0)
    links: tuple[float, ...] = (60.0, 20.0, 8.0)
    rounds: int = 5


GRID = (Config(),)
LAPTOP = (
    Config(
        orders=("iid",), stream=Stream(rows=250_000, samples=512, batches=76), multiples=(1.5, 4.0), dense=(0.0, 2.0),
        links=(60.0, 8.0), history=30, warm=10,
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), stream=Stream(rows=4000, samples=32, batches=26, dim=16), multiples=(3.0,), dense=(1.0,),
        links=(60.0,), history=6, warm=3, rounds=5,
    ),
)  # fmt: skip
BUDGET_S = 9.0


def measure(config: Config) -> Iterator[Measurement]:
    """Predict from the past of the stream, then time what comes next."""
    for order in config.orders:
        lab = Lab(replace(config.stream, order=order))
        sized = [Sized(arm, round(m * lab.two)) for arm, m in product(ARMS, config.multiples)]
        past = curve_of(lab.rows[: config.history], skip=config.history // 2)
        lab.start(sized, config.history, config.warm)
        parts = parts_of(lab)
        for link, dense in product(config.links, config.dense):
            found = lab.timed(config.rounds, dense, 1 / link)
            for each in sized:
                seen, dense_s, rate = found[each.name], dense * lab.embedding_s, lab.fast / link
                missed = float(past.at(each.lines))
                bytes_ = missed * row_bytes(lab)
                predicted = step_seconds(each.arm, parts, dense_s, link_seconds(each.arm, bytes_, bytes_, rate))
                moved = seen.counted["bytes_in"] + seen.counted["bytes_out"]
                extra = seen.samples.median - found[DEVICE.name].samples.median
                metrics = {
                    "predicted_ms": 1e3 * predicted,
                    "step_ms": 1e3 * seen.samples.median,
                    "predicted_misses": missed,
                    "misses": seen.counted["misses"],
                    "rows": seen.counted["rows"],
                    "rate": rate,
                }
                if each.arm is ARMS[0] and extra > 0:
                    metrics["refitted_rate"] = moved / extra
                units = {n: "ms" if n.endswith("_ms") else "bytes/s" if "rate" in n else "rows" for n in metrics}
                point = {"order": order, "arm": each.arm.name, "multiple": each.lines / lab.two, "dense": dense}
                point |= {"link": link}
                yield Measurement(point, metrics, units, config.rounds, "emulated", lab.environment(1 / link))


def row_bytes(lab: Lab) -> float:
    """Bytes of a row in transit: values, and the state of row-wise Adagrad."""
    return 4.0 * lab.stream.dim + 4.0


def parts_of(lab: Lab) -> Parts:
    """Forward and backward of the embedding on the device, as its first arm's steps have them."""
    shares = []
    for _ in range(3):
        lab.round()
        events = [e for e in lab.lanes[0].events if e.stream in ("compute", "network")]
        dense = next(e for e in events if e.phase == "dense")
        shares.append((dense.start - min(e.start for e in events), max(e.end for e in events) - dense.end))
    forward, backward = np.median(np.array(shares), axis=0)
    # an iteration also starts and joins its streams: what the phases lack of the step is shared out
    scale = lab.embedding_s / (forward + backward)
    return Parts(float(forward * scale), float(backward * scale))
