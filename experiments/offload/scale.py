"""How much slower a model of 1 to 37 times the device's memory is, and on to 100 TB by the cost model.

Paper figure: the abstract's one number: 37 times the size, 100 TB, 26 % slower. Its hardware, model, batch and baseline
are not known, so two baselines are named and timed in turn with the arms: the same model all on the device, and the
model that fits there. The larger part is how far the number depends on link, dense part and stream: `predicted` records
give the smallest dense part with which 15 % and 26 % are met.

Run:      python -m experiments run offload/scale --laptop   (about 35 s on 2 cores; 3 GB of memory)
Expect:   at 6 times the embedding step and a link of 1/60, 15 % or less with arms (a) to (c) and 26 % or less without;
          against the model that fits somewhat more, since that one has fewer distinct rows a batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from comm.planner.zipf_curve import zipf_curve
from experiments.config import Measurement
from experiments.offload._arms import ABC, DEVICE, PLAIN, Arm, Memory, Sized
from experiments.offload._lab import Lab, slow_downs, timed
from experiments.offload._model import Parts, dense_for, link_seconds, step_seconds
from experiments.offload._streams import Order, Stream
from experiments.offload.cost_model import parts_of, row_bytes

ARMS = (PLAIN, ABC)
TARGETS = (0.15, 0.26)


@dataclass(frozen=True)
class Config:
    """The largest of `scales` is `stream`'s tables; smaller models have so many times fewer rows, the same device."""

    orders: tuple[Order, ...] = ("iid", "meta_medium")
    stream: Stream = field(default_factory=lambda: Stream(rows=1_900_000, batches=130))
    scales: tuple[float, ...] = (4.0, 12.0, 37.0)
    history: int = 40
    warm: int = 10
    dense: tuple[float, ...] = (1.0, 2.0, 4.0, 6.0)
    links: tuple[float, ...] = (60.0, 20.0, 8.0)
    rounds: int = 5
    beyond: tuple[float, ...] = (37.0, 370.0, 3700.0, 37_000.0)
    """Scales that are predicted: rows of the model over those of the device, look-ups a batch as they are."""


GRID = (Config(),)
LAPTOP = (
    Config(
        stream=Stream(rows=950_000, samples=1024, batches=72), scales=(8.0, 37.0), dense=(1.0, 6.0), links=(60.0,),
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), stream=Stream(rows=20_000, samples=64, batches=26, dim=16), scales=(20.0,), dense=(1.0,),
        links=(60.0,), history=4, warm=3, beyond=(20.0, 200.0),
    ),
)  # fmt: skip
BUDGET_S = 34.0


def measure(config: Config) -> Iterator[Measurement]:
    """Time every scale beside the model that fits; then predict what is larger."""
    memory: Memory | None = None
    for order in config.orders:
        whole = replace(config.stream, order=order)
        device_rows = whole.total_rows / max(config.scales)
        largest = Lab(whole, memory)
        memory = largest.memory
        of_scale = {scale: Lab(_scaled(whole, scale / max(config.scales)), memory) for scale in config.scales[:-1]}
        of_scale[max(config.scales)] = largest
        fits = Lab(_scaled(whole, 1 / max(config.scales)), memory)
        fits.start([], config.history, config.warm)
        for lab in of_scale.values():
            lines = int(device_rows) - 2 * lab.most
            lab.start([Sized(arm, lines) for arm in ARMS], config.history, config.warm)
        for link, dense in product(config.links, config.dense):
            labs = [*of_scale.values(), fits]
            found = timed(labs, config.rounds, dense * largest.embedding_s, largest.fast / link)
            for (scale, lab), of_lab in zip(of_scale.items(), found, strict=False):
                point = {"order": order, "scale": scale, "dense": dense, "link": link}
                yield from slow_downs(lab, of_lab, point, 1 / link, found[-1][DEVICE.name])
        if order == "iid":
            yield from predictions(config, largest)


def _scaled(stream: Stream, factor: float) -> Stream:
    return replace(stream, rows=max(1, math.floor(stream.rows * factor)))


def predictions(config: Config, lab: Lab) -> Iterator[Measurement]:
    """By the cost model with this machine's forward and backward: every scale, link and arm, all rows used before.

    `kernels`: `these`, or `roofline`, the embedding step that this memory's rate would allow: with faster kernels the
    same link is harder to hide.
    """
    stream, parts = lab.stream, parts_of(lab)
    lookups = sum(len(bags.ids) for bags in lab.bags) / len(lab.bags)
    distinct = sum(map(len, lab.rows)) / len(lab.rows)
    roofline = (lookups + 2 * distinct) * 4 * stream.dim / lab.fast
    fast = Parts(roofline * parts.forward / parts.embedding, roofline * parts.backward / parts.embedding)
    device_rows = stream.total_rows / max(config.scales)
    for scale, link, arm in product(config.beyond, config.links, (*ARMS, Arm("ab", relaxed=True, duplex=True))):
        rows = device_rows * scale / stream.tables
        curve = zipf_curve(int(rows), stream.alpha, lookups / stream.tables)
        cached = min(1.0, (device_rows - 2 * lab.most) / (rows * stream.tables)) * rows
        missed = stream.tables * float(curve.at(cached))
        moved = missed * row_bytes(lab)
        seconds = link_seconds(arm, moved, moved, lab.fast / link)
        for kernels, these in (("these", parts), ("roofline", fast)):
            metrics = {"miss_rate": missed / (stream.tables * curve.accesses), "link_over_embedding": seconds}
            metrics["link_over_embedding"] = seconds / these.embedding
            for target in TARGETS:
                needed = dense_for(arm, these, seconds, target) / these.embedding
                metrics[f"dense_for_{target:.0%}".replace("%", "")] = needed
            dense = 6 * these.embedding
            slow = step_seconds(arm, these, dense, seconds) / (these.embedding + dense) - 1
            metrics["slow_down_at_6"] = 100 * slow
            units = dict.fromkeys(metrics, "ratio") | {"slow_down_at_6": "%"}
            point = {"order": "iid", "scale": scale, "link": link, "arm": arm.name, "kernels": kernels}
            bytes_ = scale * device_rows * 4 * stream.dim
            yield Measurement({**point, "bytes": bytes_}, metrics, units, 1, "predicted", lab.environment(1 / link))
