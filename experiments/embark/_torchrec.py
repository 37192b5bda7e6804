"""TorchRec's planner, the real one, on EMBark's workloads; its plans and its own cost model become JSON files.

Run by `make torchrec-plans`, in an environment of its own: TorchRec is not among the project's requirements, and
nothing else imports this module. The experiments `embark/planners` and `embark/torchrec` read the files, which are
committed.

    plans      of every model on every cluster: sharding type, kernel and ranks of each table
    options    of DLRM-DCNv2: besides the plan every option that TorchRec lists, with milliseconds and bytes of each
               shard, so that another search can be judged by TorchRec's own cost model

TorchRec is told the constants of the preset cluster, and hotness as pooling factors. Plans: 16-bit wire, optimizer as
in EMBark's benchmark. Options: TorchRec's default wire, row-wise Adagrad.
"""

# pyright: reportMissingImports=false
import itertools
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from comm.planner.baselines.torchrec import Space, choices_of, search
from experiments.embark.workloads import MODELS

FOLDER = Path(__file__).parent / "torchrec_plans"
BATCH = 65_536
RANKS_PER_NODE = 8
GIB = 1 << 30
PLAN_HBM = 66
"""GiB a rank, of which TorchRec's reserve of 15 % leaves the 60 GB that every planner is given."""
TIMEOUT_S = 60
NODES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Case:
    """One call of the planner: `hbm` GiB a rank; `kernels` and `columns`, the fewest of a shard, where not its own
    choice; `options` writes all of them out.
    """

    model: str
    nodes: int
    hbm: int
    kernels: tuple[str, ...] = ()
    columns: int | None = None
    options: bool = False

    @property
    def name(self) -> str:
        """Of its file."""
        more = f"-{self.hbm}GiB" * self.options + "-columns" * (self.columns is not None)
        return f"{self.model}-{self.nodes}x{RANKS_PER_NODE}{more}"


OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD}
UVM = ("fused", "fused_uvm_caching", "fused_uvm")
CASES = (
    Case("dcnv2", 1, 16, UVM, options=True),
    *(Case("dcnv2", nodes, 80, options=True) for nodes in (1, 2, 16)),
    Case("dcnv2", 16, 80, columns=32, options=True),
    *(Case(model, nodes, PLAN_HBM) for model, nodes in itertools.product(("dcnv2", "t180", "t200", "t510"), NODES)),
)


def planned(case: Case) -> dict[str, Any]:
    """Run the planner; what it found, as JSON values."""
    model, world = MODELS[case.model], case.nodes * RANKS_PER_NODE
    topology = Topology(
        world_size=world, local_world_size=RANKS_PER_NODE, compute_device="cuda", hbm_cap=case.hbm * GIB,
        ddr_cap=128 * GIB, hbm_mem_bw=3.35e9, hbm_to_ddr_mem_bw=50e6, intra_host_bw=450e6, inter_host_bw=50e6,
    )  # fmt: skip
    specs = model.specs
    collection = EmbeddingBagCollection(
        tables=[EmbeddingBagConfig(name=t.name, num_embeddings=t.rows, embedding_dim=t.dim,
                                   feature_names=[f"f_{t.name}"]) for t in specs],
        device=torch.device("meta"),
    )  # fmt: skip
    constraints = {
        table.name: ParameterConstraints(
            pooling_factors=[float(hotness)], compute_kernels=list(case.kernels) or None, min_partition=case.columns
        )
        for table, hotness in zip(specs, model.hotness, strict=True)
    }
    rule = EmbOptimType.EXACT_ROWWISE_ADAGRAD if case.options else OPTIMIZERS[model.optimizer]
    half = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.FP16)
    codecs = None if case.options else get_qcomm_codecs_registry(half)
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": rule}, qcomm_codecs_registry=codecs)]
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=BATCH // world, constraints=constraints, debug=False, stats=[],
        timeout_seconds=TIMEOUT_S,
    )  # fmt: skip
    began = time.perf_counter()
    found = {
        "torchrec": version("torchrec"), "model": case.model, "nodes": case.nodes, "ranks_per_node": RANKS_PER_NODE,
        "batch": BATCH, "hbm_gib": case.hbm, "timeout_s": TIMEOUT_S,
    }  # fmt: skip
    try:
        planner.plan(collection, sharders)
    except PlannerError as error:
        return found | {"seconds": time.perf_counter() - began, "error": str(error).splitlines()[0]}
    found |= {"seconds": time.perf_counter() - began, "proposals": planner._num_proposals}
    best = {option.name: option for option in planner._best_plan or ()}
    found["rate_ms"] = planner._perf_model.rate(list(best.values()))
    found["plan"] = [
        {"table": t.name, "sharding": best[t.name].sharding_type, "kernel": best[t.name].compute_kernel,
         "ranks": [shard.rank for shard in best[t.name].shards],
         "columns": len({shard.offset[1] for shard in best[t.name].shards})}
        for t in specs
    ]  # fmt: skip
    if case.options:
        found |= options_of(case, planner, collection, sharders, constraints, topology)
        check(case, found, planner, collection, sharders)
    return found


def options_of(
    case: Case, planner: Any, collection: Any, sharders: Any, constraints: Any, topology: Any
) -> dict[str, Any]:
    """Every option that TorchRec lists, table by table, and what its reserve leaves of each rank's memory."""
    space = planner._enumerator.enumerate(collection, sharders)
    left = planner._storage_reservation.reserve(
        topology=topology, batch_size=BATCH // topology.world_size, module=collection, sharders=sharders,
        constraints=constraints,
    )  # fmt: skip
    tables = {spec.name: [o for o in space if o.name == spec.name] for spec in MODELS[case.model].specs}
    return {
        "hbm": [device.storage.hbm for device in left.devices],
        "ddr": [device.storage.ddr for device in left.devices],
        "options": [[written(o) for o in options] for options in tables.values()],
    }


def written(option: Any) -> dict[str, Any]:
    """One option; of each run of equal shards how many, milliseconds, bytes of device and of host memory."""
    each = [(shard.perf.total, shard.storage.hbm, shard.storage.ddr) for shard in option.shards]
    runs = [[len(list(run)), *shard] for shard, run in itertools.groupby(each)]
    return {
        "sharding": option.sharding_type,
        "kernel": option.compute_kernel,
        "place": option.partition_by,
        "shards": runs,
    }


def check(case: Case, found: dict[str, Any], planner: Any, collection: Any, sharders: Any) -> None:
    """TorchRec must rate its own plan, and ours, as we do from its options.

    Raises RuntimeError if it does not.
    """
    space = Space.of(found)
    listed = planner._enumerator.enumerate(collection, sharders)
    tables = [[o for o in listed if o.name == spec.name] for spec in MODELS[case.model].specs]
    start = choices_of(found)
    for choices in (start, search(space, start, moves=20_000)):
        picked = [options[choice.option] for options, choice in zip(tables, choices, strict=True)]
        for option, choice in zip(picked, choices, strict=True):
            for shard, rank in zip(option.shards, choice.ranks, strict=True):
                shard.rank = rank
        theirs, ours = planner._perf_model.rate(picked), space.rate(choices)
        if abs(theirs - ours) > 1e-9 * ours:
            raise RuntimeError(f"{case.name}: TorchRec rates a choice {theirs} ms, its options add up to {ours} ms")


def main(names: Sequence[str]) -> None:
    """Write the file of every case, or of those named."""
    logging.disable(logging.WARNING)  # of the planner's own log lines
    cases = [case for case in CASES if not names or case.name in names]
    if unknown := set(names) - {case.name for case in CASES}:
        raise SystemExit(f"expected cases of {', '.join(case.name for case in CASES)}, given {', '.join(unknown)}")
    FOLDER.mkdir(exist_ok=True)
    for number, case in enumerate(cases, start=1):
        found = planned(case)
        path = FOLDER / f"{case.name}.json"
        path.write_text(
            json.dumps(found).replace('{"table"', '\n{"table"').replace(', "options"', ',\n"options"') + "\n"
        )
        what = f"{found['rate_ms']:.4f} ms" if "plan" in found else found["error"]
        done = f"{number} of {len(cases)}: {case.name}: {what}, {found['seconds']:.1f} s -> {path}\n"
        sys.stdout.write(done)


if __name__ == "__main__":
    main(sys.argv[1:])
