"""`train` on two machines: a torchrun in each of two namespaces, which share a rendezvous and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments._cluster_network import INTERFACE, address, missing, network

ROOT = Path(__file__).parents[2]
SMALL = (
    "--samples",
    "1500",
    "--max-rows",
    "64",
    "--dim",
    "4",
    "--batch",
    "64",
    "--model.bottom",
    "4",
    "--model.top",
    "8",
)


def arguments(out):
    return ["-m", "experiments", "train", *SMALL, "--out", str(out)]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.skipif(bool(missing()), reason="needs root and iproute2")
def test_two_machines_train_what_two_processes_do(tmp_path):
    subprocess.run([sys.executable, *arguments(tmp_path / "one"), "--ranks", "2"], cwd=ROOT, check=True)
    env = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with network(2, "1gbit") as net:
        machines = [
            subprocess.Popen(
                ["ip", "netns", "exec", net.node(node), str(Path(sys.executable).parent / "torchrun"), "--nnodes", "2",
                 "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address(0)}:29400",
                 "--local-addr", address(node),
                 "--rdzv-conf", f"is_host={node == 0},timeout=60",  # both have this machine's name
                 *arguments(tmp_path / "two")],
                cwd=ROOT, env=env,
            )
            for node in range(2)
        ]  # fmt: skip
        try:
            assert [machine.wait(120) for machine in machines] == [0, 0]
        finally:
            for machine in machines:
                machine.kill()
                machine.wait()
    losses = [
        [json.loads(line)["metrics"] for line in (tmp_path / run / "train/run.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    ]
    # Ranks on two nodes add up as ranks on one node do, for there are two of them: the same bits.
    assert [m["loss"] for m in losses[0] if "loss" in m] == [m["loss"] for m in losses[1] if "loss" in m]
    assert losses[0][-1]["auc"] == losses[1][-1]["auc"]


@pytest.mark.parametrize("name", ["slurm.sh", "ssh.sh"])
def test_the_examples_are_well_formed_and_use_torchrun(name):
    script = ROOT / "experiments/launch" / name
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert ".venv/bin/torchrun" in script.read_text("utf-8")
    assert os.access(script, os.X_OK)
