"""A narrower slow tier: fp16 and int8 rows behind fp32 lines, what they save and what they cost.

Paper figure: none known; the mechanism is that of Yang et al. 2020 (arXiv 2010.11305), a full-precision cache over
narrow tables. A row is rounded when it leaves the cache, so a model learns with full precision what stays hot.

Run:      python -m experiments run offload/precision --laptop   (about 15 s)
Expect:   half and near a quarter of the bytes on the link and in host memory, optimizer states aside; log loss equal to
          three digits with fp16, a little worse with int8, worse the smaller the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from experiments.config import Measurement
from experiments.data.generator import generate
from experiments.data.order import Order
from experiments.offload._training import Training, batches_of, two_batches
from models.cache import CachedStore
from models.host_tier import HostTier
from models.tier import StoreSpec

FORMATS = {"fp32": None, "fp16": torch.float16, "int8": torch.uint8}


@dataclass(frozen=True)
class Config:
    """`multiples`: lines over the distinct rows of two batches. The last `evaluated` batches are not trained on."""

    orders: tuple[Order, ...] = ("iid", "meta_medium")
    formats: tuple[str, ...] = tuple(FORMATS)
    multiples: tuple[float, ...] = (1.0, 2.0, 4.0)
    steps: int = 400
    evaluated: int = 100
    batch: int = 256
    max_rows: int = 20_000
    dim: int = 16
    seeds: tuple[int, ...] = (0, 1, 2)


GRID = (Config(),)
LAPTOP = (Config(orders=("iid",), multiples=(1.0,), steps=120, evaluated=60, seeds=(0,)),)
TINY = (Config(orders=("iid",), multiples=(2.0,), steps=6, evaluated=2, batch=64, max_rows=500, dim=8, seeds=(0,)),)
BUDGET_S = 10.0


def measure(config: Config) -> Iterator[Measurement]:
    """Train and evaluate with each format of the slow tier, and with all rows on the device."""
    for order, seed in product(config.orders, config.seeds):
        count = config.steps + config.evaluated
        clicks = generate(count * config.batch, seed, order, config.max_rows, config.dim)
        batches = batches_of(clicks, config.batch, count)
        train, held_out = batches[: config.steps], batches[config.steps :]
        most, two = two_batches(clicks, batches)
        plain = Training(clicks, "rowwise_adagrad")
        plain.train(train)
        wanted = plain.evaluate(held_out)
        for name, multiple in product(config.formats, config.multiples):
            make = partial(_store, name=name, lines=round(multiple * two), most=most)
            training = Training(clicks, "rowwise_adagrad", make)
            trained = training.train(train)
            found = training.evaluate(held_out)
            store = training.embedding.teams[0].strategy.store
            assert isinstance(store, CachedStore)
            metrics = {
                "log_loss": found["logloss"],
                "auc": found["auc"],
                "log_loss_device": wanted["logloss"],
                "auc_device": wanted["auc"],
                "bytes_a_step": (trained.stats["bytes_in"] + trained.stats["bytes_out"]) / config.steps,
                "row_bytes": float(store.tier.row_bytes),
            }
            units = dict.fromkeys(metrics, "nats") | {n: "bytes" for n in metrics if "bytes" in n}
            units |= {"auc": "share", "auc_device": "share"}
            point = {"order": order, "format": name, "multiple": multiple, "seed": seed}
            yield Measurement(point, metrics, units, 1)


def _store(spec: StoreSpec, name: str, lines: int, most: int) -> CachedStore:
    return CachedStore(HostTier(spec, FORMATS[name]), lines, most)
