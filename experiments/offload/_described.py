"""Tables as a planner knows them: rows as published, look-ups and skew assumed and said so, miss curves from these."""

import json
from pathlib import Path

import numpy as np

from comm.planner.locality import Described
from comm.planner.zipf_curve import zipf_curve
from kernels import TableSpec

ROWS = Path(__file__).parents[1] / "data" / "dlrm_856_table_rows.json"
MEAN_POOLING = 12.2
"""Mean ids a bag over the tables of more than one row: an assumption, as is its log-normal spread of 1."""
ALPHAS = (0.7, 1.2)
"""Zipf exponents, even between these: an assumption; no skew by table is published."""


def published_rows() -> list[int]:
    """Rows of each of the 856 tables of Meta's published data set; 269 of them have one row."""
    return json.loads(ROWS.read_text(encoding="utf-8"))["rows"]


def described_tables(
    count: int = 856, batch: int = 65_536, dim: int = 128, factor: float = 1.0, seed: int = 0
) -> list[Described]:
    """The first `count` published tables with `factor` times their rows, `dim` wide; `batch` samples a global batch.

    A table of one row is looked up once a sample.
    """
    rng = np.random.default_rng(seed)
    spread = rng.lognormal(0.0, 1.0, 856)
    alphas = rng.uniform(*ALPHAS, 856)
    published = published_rows()
    used = [rows > 1 for rows in published]
    pooling = MEAN_POOLING * spread / spread[used].mean()
    found = []
    for number, rows in enumerate(published[:count]):
        larger = max(1, round(rows * factor)) if rows > 1 else 1
        lookups = batch * (float(pooling[number]) if rows > 1 else 1.0)
        curve = zipf_curve(larger, float(alphas[number]), lookups)
        found.append(Described(TableSpec(f"t{number}", larger, dim), lookups, curve))
    return found
