import json
import os
import subprocess
from pathlib import Path

import pytest

from comm.plan import Placement, Plan
from comm.planner.torchrec_export import export
from kernels import TableSpec

ROOT = Path(__file__).parents[3]
PEERS = ROOT / ".venv-peers/bin/python"
TABLES = tuple(TableSpec(name, 10, 8) for name in "abcdef")
PLAN = Plan(
    4,
    TABLES,
    (
        Placement("a", "replicated_dense"),
        Placement("b", "tablewise", (3,)),
        Placement("c", "columnwise", (1, 0), columns=2),
        Placement("d", "rowwise", (0, 1, 2, 3)),
        Placement("e", "hierarchical", (2, 3)),
        Placement("f", "gridwise", (0, 1, 2, 3), columns=2),
    ),
)


def test_what_both_have_is_said():
    exported = export(PLAN, ranks_per_node=2)
    kinds = [entry["sharding_type"] for entry in exported.values()]
    assert kinds == ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard"]
    assert exported["c"]["shards"] == [
        {"offsets": [0, 0], "sizes": [10, 4], "rank": 1},
        {"offsets": [0, 4], "sizes": [10, 4], "rank": 0},
    ]
    for name, entry in exported.items():
        if entry["shards"]:
            assert sum(s["sizes"][0] * s["sizes"][1] for s in entry["shards"]) == 80, name


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (Placement("a", "unique", (0, 1)), "expected a strategy that TorchRec has too .* given 'unique'"),
        (Placement("a", "rowwise", (0, 2)), r"given \[\[0, 2\]\]"),
        (Placement("a", "rowwise", (3, 2)), r"given \[\[3, 2\]\]"),
    ],
)
def test_what_it_lacks_is_refused_by_name(placement, why):
    with pytest.raises(ValueError, match=f"table 'a': .*{why}"):
        export(Plan(4, TABLES[:1], (placement,)), ranks_per_node=2)


RUNS = """
import json, os, sys
import torch, torch.distributed as dist
import torchrec
from torchrec.distributed import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
sys.path.insert(0, os.getcwd())
from comm.planner.torchrec_export import sharding_plan

dist.init_process_group("gloo")
exported = json.loads(os.environ["EXPORTED"])
names = list(exported)
torch.manual_seed(0)
weights = {name: torch.randn(10, 8) for name in names}
bags = torchrec.EmbeddingBagCollection(device="cpu", tables=[
    torchrec.EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=10, feature_names=[n]) for n in names])
model = torch.nn.Sequential()
model.add_module("bags", bags)
sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=sharding_plan(exported, "bags", "cpu"))
rank = dist.get_rank()
with torch.no_grad():
    for key, value in sharded.state_dict().items():
        whole = weights[key.split(".")[-2]]
        for shard in value.local_shards() if hasattr(value, "local_shards") else ():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(whole[row : row + rows, column : column + columns])
        if not hasattr(value, "local_shards"):
            value.copy_(whole)
ids = torch.arange(len(names) * 3) % 10 + 0
lengths = torch.tensor([1, 2] * len(names), dtype=torch.int32)
features = KeyedJaggedTensor(names, (ids + rank) % 10, lengths=lengths)
out = sharded(features).to_dict()
begin = 0
for n, name in enumerate(names):
    mine = (ids[3 * n : 3 * n + 3] + rank) % 10
    expected = torch.stack([weights[name][mine[0]], weights[name][mine[1]] + weights[name][mine[2]]])
    torch.testing.assert_close(out[name], expected)
sum(v.sum() for v in out.values()).backward()
print("ran", rank)
"""


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.skipif(not PEERS.exists(), reason="needs the peers' environment: make bench-peers")
def test_torchrec_loads_and_runs_it_on_two_ranks(tmp_path):
    tables = TABLES[:3]
    plan = Plan(2, tables, (PLAN.placements[0], Placement("b", "tablewise", (1,)), PLAN.placements[2]))
    script = tmp_path / "run.py"
    script.write_text(RUNS)
    torchrun = [str(PEERS), "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(script)], cwd=ROOT, env=os.environ | {"EXPORTED": json.dumps(export(plan, 2))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
    assert done.stdout.count("ran") == 2
