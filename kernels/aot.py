"""Compile every Triton kernel ahead of time, without a GPU, and report what the compilers made of it.

    python -m kernels.aot [TARGET ...]      one JSON line per kernel variant and target (default: all)

Must run without TRITON_INTERPRET: the interpreter and the compiler cannot share a process. Registers and spills come
from the bundled `cuobjdump`, the width of loads from the SASS (`nvdisasm`) or, for AMD, from the assembly text.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import OPS
from ._triton_common import Variant

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True)
class Compiled:
    """One variant on one target.

    `spills` counts bytes of stack and local memory (CUDA) or spilled registers (AMD); `shared` and `widest_load` are in
    bytes. Only kernels with `row_bytes` are disassembled on CUDA; for the others `widest_load` is 0. `narrow_products`
    counts multiplications of blocks of 32-bit integers: a row times the row's length must not be one.
    """

    variant: str
    target: str
    hints: bool
    registers: int
    spills: int
    shared: int
    widest_load: int
    row_bytes: int
    narrow_products: int
    num_warps: int


def variants(lanes: int) -> list[Variant]:
    """What every op's `_triton.py` wants compiled for a GPU with warps of `lanes`."""
    return [v for op in OPS for v in import_module(f".{op}._triton", __package__).variants(lanes)]


def compile_variant(variant: Variant, target: str, hints: bool = True) -> Compiled:
    """Compile for `target`; without `hints` nothing is known to be a multiple of 16."""
    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned if hints},
    )
    binary = triton.compile(source, target=TARGETS[target], options={"num_warps": variant.num_warps})
    if target.startswith("gfx"):
        registers, spills, widest = _read_amd(binary)
    else:  # disassembling takes longer than compiling
        registers, spills, widest = _read_cuda(binary, disassemble=variant.row_bytes > 0)
    narrow = len(re.findall(r"arith\.muli .*: tensor<[\dx]+xi32>", binary.asm["ttir"]))
    used = (registers, spills, binary.metadata.shared, widest)
    return Compiled(variant.name, target, hints, *used, variant.row_bytes, narrow, variant.num_warps)


def _read_cuda(binary: Any, disassemble: bool) -> tuple[int, int, int]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        usage = _run(knobs.nvidia.cuobjdump.path, "-res-usage", cubin)
        sass = _run(knobs.nvidia.nvdisasm.path, "-c", cubin) if disassemble else ""
    registers, stack, local = (_number(rf"{word}:(\d+)", usage) for word in ("REG", "STACK", "LOCAL"))
    loads = re.findall(r"\bLDG\.E([.\w]*)", sass)
    bits = [int(width.group(1)) if (width := re.search(r"\.(64|128|256)\b", load)) else 32 for load in loads]
    return registers, stack + local, max(bits, default=0) // 8


def _read_amd(binary: Any) -> tuple[int, int, int]:
    text = binary.asm["amdgcn"]
    registers = _number(r"\.vgpr_count:\s+(\d+)", text)
    spills = _number(r"\.vgpr_spill_count:\s+(\d+)", text) + _number(r"\.sgpr_spill_count:\s+(\d+)", text)
    words = re.findall(r"\b(?:global|buffer)_load_dword(x\d)?\b", text)
    return registers, spills, max((4 * int(word[1:] or 1) for word in (w or "x1" for w in words)), default=0)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"expected {pattern!r} in the compiler's report, given: {text[:2000]}")
    return int(found.group(1))


def _run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def reports(targets: Sequence[str]) -> Iterator[Compiled]:
    """Every variant on every target; with sm_90 the first row kernel of each op without the hints, too."""
    for name in targets:
        for variant in variants(TARGETS[name].warp_size):
            yield compile_variant(variant, name)
    for op in OPS if "sm_90" in targets else ():
        row_kernels = [v for v in variants(TARGETS["sm_90"].warp_size) if v.row_bytes and v.name.startswith(op)]
        for variant in row_kernels[:1]:
            yield compile_variant(variant, "sm_90", hints=False)


def main() -> None:
    """Print the reports as JSON lines."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise SystemExit("kernels.aot: expected no TRITON_INTERPRET, given 1: unset it, the interpreter cannot compile")
    targets = sys.argv[1:] or [*TARGETS]
    if unknown := [name for name in targets if name not in TARGETS]:
        raise SystemExit(f"kernels.aot: unknown target {unknown[0]!r}: choose one of {', '.join(TARGETS)}")
    for report in reports(targets):
        sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
