"""What the compilers make of every Triton kernel: registers, occupancy, spills and load width, without a GPU.

Paper figure: none; the evidence that the kernels are fit for a GPU where none is at hand.
Command: python -m experiments run kernels/aot. Minutes: half a one.
Expected shape: no spills anywhere, row loads as wide as a row allows (16 bytes); without the promise that addresses are
multiples of 16, the loads of the same kernels are narrower.

Metrics, a record for every variant and target (`kernels.aot.Compiled` says how they are counted): `registers` a thread;
`occupancy` (CUDA), the warps that a multiprocessor's registers and shared memory let be resident at once, over the most
it holds; `spills`, `shared` and `widest_load`; `row_bytes`, what the widest load should be (0: no rows).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.config import Measurement, grid
from experiments.environment import ROOT


@dataclass(frozen=True)
class Config:
    """One target."""

    target: str = "sm_90"


GRID = grid(Config, target=("sm_80", "sm_90", "sm_100", "gfx942"))
LAPTOP = TINY = grid(Config, target=("gfx942",))  # whose reports need no disassembler: the quickest
BUDGET_S = 10.0

SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
"""Bytes of shared memory of a multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability", where all three have the numbers below."""
REGISTERS, WARPS, BLOCKS = 1 << 16, 64, 32
PARTITIONS = 4
"""Of a multiprocessor, each with its share of registers and warps."""
PER_WARP, PER_BLOCK = 256, 1 << 10
"""Registers come in units of so many a warp; a block takes so many bytes of shared memory for the system."""

UNIT = {
    "registers": "a thread",
    "spills": "bytes",
    "shared": "bytes",
    "widest_load": "bytes",
    "row_bytes": "bytes",
    "occupancy": "fraction",
}


def measure(config: Config) -> Iterator[Measurement]:
    """Compile all variants for the target, in a process of its own: the interpreter and the compiler cannot share one.

    Raises:
        RuntimeError: the compiler failed; with what it said.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.aot", config.target]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr}")
    for line in done.stdout.splitlines():
        report = json.loads(line)
        if config.target in SHARED:
            report["occupancy"] = occupancy(config.target, report["registers"], report["shared"], report["num_warps"])
        metrics = {name: report[name] for name in UNIT if name in report}
        yield Measurement(
            point={name: report[name] for name in ("variant", "target", "hints")},
            metrics=metrics,
            unit={name: UNIT[name] for name in metrics},
            samples=1,
        )


def occupancy(target: str, registers: int, shared: int, num_warps: int) -> float:
    """Resident warps over the most of a multiprocessor, for blocks of `num_warps` warps with `shared` bytes."""
    a_warp = -(-max(registers, 1) * 32 // PER_WARP) * PER_WARP
    by_registers = REGISTERS // PARTITIONS // a_warp * PARTITIONS
    blocks = min(by_registers // num_warps, SHARED[target] // (shared + PER_BLOCK), WARPS // num_warps, BLOCKS)
    return blocks * num_warps / WARPS
