"""TorchRec's own options under TorchRec's own cost model: its planner's choice against a local search's.

Paper figure: none. TorchRec's planner (1.8.0, default proposers) ran on DLRM-DCNv2, global batch 65536; it wrote down
its choice and every option with the milliseconds and bytes of each shard (experiments/embark/_torchrec.py, `make
torchrec-plans`, which also checks that TorchRec rates either choice as we do). The search starts from its choice, so
it is never worse. Nothing here says that a plan is faster on a cluster: it says how good a search is at a cost model.

Command: python -m experiments run embark/torchrec        seconds
Expect: more than 2x where memory is tight (8 ranks of 16 GiB, tables of 12.3 GiB a rank), a few per cent elsewhere.
Metrics, predicted: milliseconds a step as TorchRec rates both, and their ratio. Measured: seconds of planning, of the
search here and now (processor seconds of one thread), of TorchRec where and when its file was written.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from comm.planner.baselines.torchrec import Space, choices_of, search
from experiments.config import Measurement, grid

PLANS = Path(__file__).parent / "torchrec_plans"
CASES = ("dcnv2-1x8-16GiB", "dcnv2-1x8-80GiB", "dcnv2-2x8-80GiB", "dcnv2-16x8-80GiB", "dcnv2-16x8-80GiB-columns")


@dataclass(frozen=True)
class Config:
    """`case` is a file of `torchrec_plans`."""

    case: str = CASES[0]
    moves: int = 200_000
    seed: int = 0


GRID = grid(Config, case=CASES, seed=range(3))
LAPTOP = grid(Config, case=CASES)
TINY = (Config(moves=1_000),)
BUDGET_S = 4.0


def measure(config: Config) -> Iterator[Measurement]:
    """Search one case; one measurement.

    Raises FileNotFoundError if TorchRec has not been run on the case.
    """
    path = PLANS / f"{config.case}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: make torchrec-plans writes it")
    fields = json.loads(path.read_text())
    space, theirs = Space.of(fields), choices_of(fields)
    search(space, theirs, 1)  # compile
    began = time.process_time()
    ours = search(space, theirs, config.moves, config.seed)
    seconds = time.process_time() - began
    point = {"case": config.case, "world": len(space.hbm), "hbm_gib": fields["hbm_gib"]}
    env = {"torchrec": fields["torchrec"]}
    rated = {"torchrec_ms": space.rate(theirs), "search_ms": space.rate(ours)}
    rated["ratio"] = rated["torchrec_ms"] / rated["search_ms"]
    yield Measurement(point, rated, {"torchrec_ms": "ms", "search_ms": "ms", "ratio": "1"}, 1, "predicted", env)
    took = {"torchrec_s": fields["seconds"], "search_s": seconds}
    yield Measurement(point, took, {"torchrec_s": "s", "search_s": "s"}, 1, "measured", env)
