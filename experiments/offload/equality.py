"""The same weights behind every cache: pipelined, in every arm and at every size, bit for bit.

Paper figure: none; a pipeline whose numbers depend on the cache would be another optimizer. DLRM-DCNv2 trains on
generated clicks with all rows on the device, then behind caches of 0.25 to 4 times the distinct rows of two batches,
with threads that overlap. Compared are all losses, tables, optimizer states and dense parameters. Caches below one
multiple have conflict misses in every batch, which are counted, so that equality is not had for nothing.

Run:      python -m experiments run offload/equality --laptop   (about 15 s)
Expect:   equal everywhere.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from experiments.config import Measurement
from experiments.data.generator import generate
from experiments.data.order import Order
from experiments.offload._arms import ABC, LOOKAHEAD, PLAIN, Arm
from experiments.offload._training import Training, batches_of, two_batches
from models.cache import CachedStore
from models.cache_size import SmallCache
from models.host_tier import HostTier
from models.link import Link
from models.tier import StoreSpec

ARMS = (
    Arm("no prefetch", prefetch=False),
    PLAIN,
    Arm("a", relaxed=True),
    Arm("c", keyed=True),
    Arm("d", lookahead=True),
    ABC,
    Arm("abcd", relaxed=True, duplex=True, keyed=True, lookahead=True),
)


@dataclass(frozen=True)
class Config:
    """`multiples`: lines over the distinct rows of two neighbouring batches."""

    optimizers: tuple[str, ...] = ("sgd", "rowwise_adagrad", "adam")
    orders: tuple[Order, ...] = ("iid", "meta_medium")
    arms: tuple[str, ...] = tuple(arm.name for arm in ARMS)
    multiples: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.33, 2.0, 4.0)
    steps: int = 40
    batch: int = 128
    max_rows: int = 2000
    ways: int = 8


GRID = (Config(),)
LAPTOP = (Config(optimizers=("rowwise_adagrad",), orders=("meta_medium",), steps=12),)
TINY = (
    Config(
        optimizers=("rowwise_adagrad",), orders=("iid",), arms=("strict", "abc"), multiples=(0.5,), steps=6, batch=32,
        max_rows=200,
    ),
)  # fmt: skip
BUDGET_S = 10.0
RATE = 1e9
"""Bytes/s of the link: it is there, so that transfers take time and threads meet."""


def measure(config: Config) -> Iterator[Measurement]:
    """Each arm and size against all rows on the device."""
    for optimizer, order in product(config.optimizers, config.orders):
        clicks = generate(config.steps * config.batch, order=order, max_rows=config.max_rows, dim=8)
        batches = batches_of(clicks, config.batch, config.steps)
        most, two = two_batches(clicks, batches)
        wanted = Training(clicks, optimizer).train(batches)
        for arm, multiple in product((a for a in ARMS if a.name in config.arms), config.multiples):
            lines = max(config.ways, round(multiple * two))
            make = partial(_store, arm=arm, lines=lines, most=most, ways=config.ways)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SmallCache)  # small on purpose
                training = Training(
                    clicks, optimizer, make, arm.prefetch, LOOKAHEAD if arm.lookahead and arm.prefetch else 0
                )
            found = training.train(batches)
            metrics = {
                "same_bits": float(found.digest == wanted.digest),
                "conflicts": found.stats["conflicts"] / config.steps,
                "misses": found.stats["misses"] / config.steps,
                "rows": found.stats["rows"] / config.steps,
                "leases": float(found.stats["leases"]),
            }
            units = dict.fromkeys(metrics, "rows a step") | {"same_bits": "yes or no", "leases": "out at the end"}
            point = {"optimizer": optimizer, "order": order, "arm": arm.name, "multiple": multiple}
            yield Measurement(point, metrics, units, 1)


def _store(spec: StoreSpec, arm: Arm, lines: int, most: int, ways: int) -> CachedStore:
    link, policy = Link(RATE, duplex=arm.duplex), "lookahead" if arm.lookahead else "lru"
    tier, exclusive = HostTier(spec), not arm.relaxed
    return CachedStore(tier, lines, most, ways, policy, link, exclusive=exclusive, keyed=arm.keyed)
