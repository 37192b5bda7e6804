"""A user's own tables as JSON: what a planner must know of each. Nothing has a default that would plan another model.

    [{"name": "user", "rows": 40000000, "dim": 128, "hotness": 3, "zipf": 1.1},
     {"name": "item", "rows": 8000000, "dim": 64, "hotness": 1,
      "unique": {"512": 0.61, "4096": 0.42, "32768": 0.27}, "top_share": 0.02, "count": 10}]

`hotness` is ids a bag. The law of the ids is `zipf`, its exponent, or what was measured: `unique`, distinct ids / ids
among so many ids (`python -m experiments profile` prints them), and `top_share`, the share of the most frequent id.
`count` repeats an entry, `dtype` is float32 unless given.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comm.planner.workload import DenseLoad, TableLoad, Workload
from experiments.data.marginals import expected_distinct, marginal
from kernels import Optimizer, TableSpec

REQUIRED = ("name", "rows", "dim", "hotness")
KNOWN = (*REQUIRED, "zipf", "unique", "top_share", "count", "dtype")


def read_tables(path: Path, batch: int, optimizer: str, dense_parameters: int = 0) -> Workload:
    """The workload of a table list under global batches of `batch`; `dense_parameters` gradients of 2 bytes are summed.

    Raises ValueError that names file, entry, what was expected and given.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: expected JSON, given something else ({error.msg})") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: expected a list of tables, given {type(entries).__name__}")
    loads = [load for number, entry in enumerate(entries) for load in _loads(f"{path}, table {number}", entry)]
    dense = DenseLoad(dense_parameters, 0.0, 0.0, dense_parameters, 2)
    return Workload(path.stem, tuple(loads), batch, Optimizer(optimizer), dense)


def _loads(where: str, entry: Any) -> list[TableLoad]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: expected an object, given {entry!r}")
    missing, unknown = [f for f in REQUIRED if f not in entry], sorted(set(entry) - set(KNOWN))
    if missing or unknown:
        raise ValueError(f"{where}: expected {', '.join(KNOWN)}; missing {missing}, unknown {unknown}")
    if ("zipf" in entry) == ("unique" in entry):
        raise ValueError(
            f"{where} ({entry['name']!r}): expected the law of its ids: either zipf, an exponent, or unique with "
            f"top_share, as profile prints them; given {sorted(entry)}"
        )
    count = int(entry.get("count", 1))
    dtype = getattr(torch, str(entry.get("dtype", "float32")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{where}: unknown dtype {entry['dtype']!r}: for example float32")
    return [_load(where, entry, entry["name"] if count == 1 else f"{entry['name']}.{i}", dtype) for i in range(count)]


def _load(where: str, entry: Mapping[str, Any], name: str, dtype: torch.dtype) -> TableLoad:
    rows = int(entry["rows"])
    spec = TableSpec(name, rows, int(entry["dim"]), dtype=dtype)
    if "zipf" in entry:
        law = marginal(rows, float(entry["zipf"]))
        top = float(law.p[0])
        return TableLoad(spec, float(entry["hotness"]), lambda n: expected_distinct(law, max(1, round(n))), 0, top)
    if "top_share" not in entry:
        raise ValueError(f"{where} ({name!r}): expected top_share, the share of the most frequent id, beside unique")
    points = sorted((float(n), float(n) * float(ratio)) for n, ratio in entry["unique"].items())
    if not points or not all(0 < distinct <= min(n, rows) for n, distinct in points):
        raise ValueError(
            f"{where} ({name!r}): expected shares in (0, 1] of at most {rows} rows, given {entry['unique']}"
        )
    return TableLoad(spec, float(entry["hotness"]), partial(_between, points, rows), 0, float(entry["top_share"]))


def _between(points: list[tuple[float, float]], rows: int, n: float) -> float:
    """Distinct ids among `n`: linear in log-log between the points and beyond the last two, never above `n` or rows."""
    x, y = np.log(points).T
    if n <= points[0][0] or len(points) == 1:
        found = n * points[0][1] / points[0][0] if n <= points[0][0] else points[0][1]
    elif n <= points[-1][0]:
        found = float(np.exp(np.interp(np.log(n), x, y)))
    else:
        slope = min(1.0, (y[-1] - y[-2]) / (x[-1] - x[-2]))
        found = float(np.exp(y[-1] + slope * (np.log(n) - x[-1])))
    return max(min(found, n, rows), 1e-9)
