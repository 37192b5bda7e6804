"""Benchmarks time what runs for real: never the interpreter or the simulator."""

import os

import pytest
import torch


def pytest_collection_modifyitems(items):
    """Refuse to time interpreted kernels; ../conftest.py switches them on unless told otherwise."""
    benches = [item for item in items if "/bench/" in item.path.as_posix()]
    interpreted = [name for name in ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM") if os.environ[name] == "1"]
    if benches and interpreted:
        raise pytest.UsageError(
            f"benchmarks: expected {' and '.join(f'{name}=0' for name in interpreted)}, given 1: run `make bench`, "
            "or set them before pytest"
        )


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory():
    """Not here (../conftest.py does it for tests): filling memory would be timed. All cores, as in use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(threads)
