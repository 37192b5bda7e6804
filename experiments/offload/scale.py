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

from comm.planner.locality import Devices, Locality
from comm.planner.miss_curve import measure as curve_of
from comm.planner.zipf_curve import zipf_curve
from experiments.config import Measurement
from experiments.offload._arms import ABC, DEVICE, PLAIN, Arm, Memory, Sized
from experiments.offload._described import described_tables
from experiments.offload._lab import Lab, slow_downs, timed
from experiments.offload._model import Parts, dense_for, link_seconds, step_seconds
from experiments.offload._streams import Order, Stream
from experiments.offload.autosize import BANDWIDTH, HUNDRED_TB, LINK
from experiments.offload.cost_model import parts_of, row_bytes

ARMS = (PLAIN, ABC)
PREDICTED = (PLAIN, Arm("ab", relaxed=True, duplex=True), ABC)
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
    predicted_links: tuple[float, ...] = (60.0, 20.0, 8.0)
    cluster_ranks: int = 128
    cluster_scales: tuple[float, ...] = (4.0, 12.0, 37.0)
    cluster_batch: int = 65_536


GRID = (Config(),)
LAPTOP = (
    Config(
        stream=Stream(rows=950_000, samples=1024, batches=68), scales=(37.0,), dense=(1.0, 6.0), links=(60.0,),
        cluster_scales=(37.0,),
    ),
)  # fmt: skip
TINY = (
    Config(
        orders=("iid",), stream=Stream(rows=20_000, samples=64, batches=26, dim=16), scales=(20.0,), dense=(1.0,),
        links=(60.0,), history=4, warm=3, beyond=(20.0, 200.0), predicted_links=(60.0,), cluster_scales=(),
    ),
)  # fmt: skip
BUDGET_S = 24.0


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
        yield from predictions(config, largest)
    yield from cluster(config)


def _scaled(stream: Stream, factor: float) -> Stream:
    return replace(stream, rows=max(1, math.floor(stream.rows * factor)))


def predictions(config: Config, lab: Lab) -> Iterator[Measurement]:
    """By the cost model with this machine's forward and backward: every scale, link and arm.

    `rows`: `stream`, misses and first touches from the miss curve of this very stream, at the largest of `scales`;
    `all touched`, from the law of the ids after endless training, at every scale of `beyond`. `kernels`: `these`, or
    `roofline`, the embedding step that this memory's rate would allow: with faster kernels a link is harder to hide.
    """
    stream, parts, largest = lab.stream, parts_of(lab), max(config.scales)
    lookups = sum(len(bags.ids) for bags in lab.bags) / len(lab.bags)
    distinct = sum(map(len, lab.rows)) / len(lab.rows)
    roofline = (lookups + 3 * distinct) * row_bytes(lab) / lab.fast
    faster = roofline / parts.embedding
    kernels = {"these": parts, "roofline": Parts(faster * parts.forward, faster * parts.backward)}
    device_rows = stream.total_rows / largest
    lines = device_rows - 2 * lab.most
    own = curve_of(lab.rows, skip=config.history)
    cases = [("stream", largest, float(own.at(lines)), own.first)]
    for scale in config.beyond if stream.order == "iid" else ():
        rows = device_rows * scale / stream.tables
        curve = zipf_curve(int(rows), stream.alpha, lookups / stream.tables)
        cases.append(("all touched", scale, stream.tables * float(curve.at(lines / stream.tables)), 0.0))
    for (rows, scale, missed, first), link, arm in product(cases, config.predicted_links, PREDICTED):
        fetched = (missed - first if arm.keyed else missed) * row_bytes(lab)
        seconds = link_seconds(arm, fetched, missed * row_bytes(lab), lab.fast / link)
        for name, these in kernels.items():
            metrics = {"miss_rate": missed / distinct, **_needed(arm, these, seconds)}
            units = dict.fromkeys(metrics, "ratio") | {"slow_down_at_6": "%"}
            point = {
                "order": stream.order,
                "rows": rows,
                "scale": scale,
                "link": link,
                "arm": arm.name,
                "kernels": name,
            }
            point |= {"bytes": scale * device_rows * 4 * stream.dim}
            yield Measurement(point, metrics, units, 1, "predicted", lab.environment(1 / link))


def _needed(arm: Arm, parts: Parts, link: float) -> dict[str, float]:
    """The least dense part, over the embedding step, for each target; and the slow-down at 6 times that step."""
    embedding = parts.embedding
    found = {f"dense_for_{100 * target:.0f}": dense_for(arm, parts, link, target) / embedding for target in TARGETS}
    slow = step_seconds(arm, parts, 6 * embedding, link) / (7 * embedding) - 1
    return found | {"link_over_embedding": link / embedding, "slow_down_at_6": 100 * slow}


def cluster(config: Config) -> Iterator[Measurement]:
    """100 TB and less on devices that hold 1 / 37 of 100 TB: planned from descriptions, priced by the plan.

    H100s on a link of a sixtieth of their memory's rate, at that rate of their kernels; the costliest device counts.
    """
    rows = sum(table.spec.rows for table in described_tables(batch=1))
    device = HUNDRED_TB / 37 / config.cluster_ranks
    for scale in config.cluster_scales:
        tables = described_tables(batch=config.cluster_batch, factor=HUNDRED_TB * scale / 37 / (rows * 516))
        plan = Locality(tables, Devices(config.cluster_ranks, device, BANDWIDTH, LINK)).plan()
        worst = max(range(config.cluster_ranks), key=lambda rank: plan.link_seconds[rank])
        memory = plan.seconds[worst] - plan.link_seconds[worst]
        parts = Parts(memory / 3, 2 * memory / 3)  # a row read forward; its gradient, itself and its copy backward
        for link, arm in product(config.predicted_links, PREDICTED[:2]):
            seconds = plan.link_seconds[worst] * link / 60 / (2 if arm.duplex else 1)
            metrics = {"embedding_us": 1e6 * memory, "link_us": 1e6 * seconds, **_needed(arm, parts, seconds)}
            units = dict.fromkeys(metrics, "ratio") | {"slow_down_at_6": "%", "embedding_us": "us", "link_us": "us"}
            point = {"order": "iid", "rows": "100 TB", "scale": scale, "link": link, "arm": arm.name}
            point |= {"kernels": "roofline", "bytes": HUNDRED_TB * scale / 37, "batch": config.cluster_batch}
            yield Measurement(point, metrics, units, 1, "predicted")
