"""Time of every op, case and backend that runs for real here: one group per op and case, correct before it is timed.

TRITON_INTERPRET=0 NUMBA_ENABLE_CUDASIM=0 pytest tests/bench -o python_files='bench_*.py'
"""

from importlib import import_module
from time import perf_counter

import pytest
import torch

import kernels
from kernels import _backend
from kernels._cases import copied
from kernels.cost import Device, roofline_seconds

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = {op: import_module(f"kernels.{op}.cases") for op in kernels.OPS}


@pytest.fixture(scope="session")
def memory():
    """The device with the bandwidth of a copy of 256 MB, measured now: read + written bytes over the best of 5."""
    source = torch.ones(64 * 2**20, device=DEVICE)
    target = torch.empty_like(source)
    seconds = min(_seconds(lambda: target.copy_(source)) for _ in range(5))
    bandwidth = 2 * source.nbytes / seconds
    return Device(DEVICE.type, bandwidth, float("inf"), "copy of 256 MB in this session")


def _seconds(work):
    _finish()
    begin = perf_counter()
    work()
    _finish()
    return perf_counter() - begin


def _finish():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def _results(op, backend, inputs):
    out = getattr(kernels, op)(**inputs, backend=backend)
    if out is None:
        states = {f"states{n}": state for n, state in enumerate(inputs.get("states", ()))}
        return states | {name: inputs[name] for name in ("table", "dst") if inputs.get(name) is not None}
    return out._asdict() if isinstance(out, tuple) else {"out": out}


def _assert_right(op, backend, inputs):
    """As the contract test: within the case's bound of the float64 truth; integers exactly."""
    got = _results(op, backend, copied(inputs))
    truth = _results(op, "torch", copied(inputs, double=True))
    bounds = CASES[op].bound(inputs, torch.finfo(torch.float32).eps)
    for name, true in truth.items():
        if true.is_floating_point():
            assert ((got[name] - true).abs() <= bounds[name]).all(), f"{op} {backend}: {name} is outside its bound"
        else:
            assert torch.equal(got[name], true), f"{op} {backend}: {name} differs"


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize(
    ("op", "case"), [pytest.param(op, case, id=f"{op}-{case.name}") for op in kernels.OPS for case in CASES[op].BENCH]
)
def test_op(benchmark, memory, op, case, backend):
    reason = _backend.missing(backend, DEVICE)
    if reason:
        pytest.skip(f"backend {backend!r} on {DEVICE.type}: {reason}")
    inputs = CASES[op].make(case, seed=1, device=DEVICE)
    _assert_right(op, backend, inputs)
    cost = CASES[op].cost(inputs)
    benchmark.group = f"{op}-{case.name}"
    benchmark.extra_info.update(
        backend=backend,
        bytes=cost.bytes["memory"],
        roofline_s=roofline_seconds(cost, memory),
        bandwidth=memory.bandwidth,
        bandwidth_source=memory.source,
    )
    run = getattr(kernels, op)

    def timed():
        run(**inputs, backend=backend)
        _finish()

    benchmark.pedantic(timed, rounds=10, warmup_rounds=2)
