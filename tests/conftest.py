"""Switches of every test: set before triton or numba is imported, so this file's order matters."""

import os

# Triton kernels run in its interpreter, Numba CUDA kernels in its simulator; `make bench` and `make gpu` set both to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")
torch.set_num_threads(1)  # results must not depend on it, and xdist already uses the cores


def _poisoned(make):
    def poisoned(*args, **kwargs):
        tensor = make(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    return poisoned


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory():
    """Uninitialised floating memory is NaN, so an element that a kernel forgets to write shows up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", _poisoned(torch.empty))
        patch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
        yield
