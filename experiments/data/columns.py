"""The 26 + 13 columns of the generator: marginals, what is missing together, what C3 determines, the integers' laws."""

import json
from dataclasses import dataclass
from pathlib import Path

from experiments.data.batch import TABLES
from experiments.data.marginals import Marginal, marginal

FITS = Path(__file__).with_name("criteo_kaggle.json")
ENTITY = "C3"
DERIVED = ("C4", "C12", "C16", "C21", "C24")  # fixed many-to-one maps of the entity

# Columns missing together, with the share of rows. A missing value is one of the published heavy hitters of its column.
MISSING: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.0331, (ENTITY, *DERIVED)),
    (0.4533, ("C19", "C20", "C25", "C26")),
    (0.1329, ("C6",)),
    (0.8186, ("C22",)),
)

# (mean and standard deviation of ln x, share missing) of I1..I13: round numbers, of the order of a display-advertising
# log.
INTEGERS: tuple[tuple[float, float, float], ...] = (
    (0.8, 1.1, 0.45),
    (2.0, 2.1, 0.0),
    (2.0, 1.4, 0.2),
    (1.6, 1.1, 0.2),
    (7.3, 2.6, 0.05),
    (3.7, 1.7, 0.25),
    (1.4, 1.4, 0.05),
    (2.0, 1.2, 0.0),
    (3.6, 1.6, 0.05),
    (0.2, 0.5, 0.45),
    (0.6, 0.9, 0.05),
    (0.3, 1.0, 0.75),
    (1.8, 1.1, 0.2),
)


@dataclass(frozen=True)
class Column:
    """One table: rank 0 is the missing value when `missing` > 0, the others are in order of frequency."""

    name: str
    law: Marginal
    missing: float
    group: int | None  # index in MISSING


def load_columns(max_rows: int | None) -> tuple[Column, ...]:
    """The columns, each fit truncated to its `max_rows` most frequent ranks (the tail's mass stays, on fewer rows).

    Raises ValueError for max_rows < 32, which would cut into the listed heavy hitters.
    """
    if max_rows is not None and max_rows < 32:
        raise ValueError(f"max_rows: expected at least 32 (the heavy hitters and a tail), given {max_rows}")
    fits = json.loads(FITS.read_text(encoding="utf-8"))
    groups = {name: (g, share) for g, (share, names) in enumerate(MISSING) for name in names}
    columns = []
    for name in TABLES:
        fit, heavy = fits[name], list(fits[name]["heavy"])
        group, missing = groups.get(name, (None, 0.0))
        if missing:
            heavy.remove(missing)
            heavy.insert(0, missing)
        rows = fit["rows"] if max_rows is None else min(fit["rows"], max_rows)
        # A column listed without a tail law (s null) spreads the little that is left evenly.
        law = marginal(rows, fit["s"] or 0.0, fit["q"] or 0.0, heavy)
        columns.append(Column(name, law, missing, group))
    return tuple(columns)
