"""Which implementation of an op runs: the file is the registry, and nothing falls back.

Backend `cpu` of op `pooled_lookup` is the module `pooled_lookup/_cpu.py`. An unknown name raises with the choices; a
backend that cannot run here raises with what it needs. What was asked for is what runs, or an error.
"""

import os
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch.autograd import forward_ad

BACKENDS = ("torch", "triton", "numba", "cpu")
"""`torch`: the truth. `triton`: fast on GPUs. `numba`: Numba CUDA, its readable twin. `cpu`: Numba on the CPU."""

PACKAGE = __name__.rpartition(".")[0]
NAMESPACE = PACKAGE.replace(".", "_")
"""Namespace of the torch.library ops. It follows the folder's name, so that vendored copies do not collide."""

VARIABLE = "KERNELS_BACKEND"
"""Environment variable that overrides the default backend; every Record carries what it led to."""


def default(device: torch.device) -> str:
    """The backend used when none is named: `triton` on a GPU, `cpu` elsewhere, `KERNELS_BACKEND` over both."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return known(chosen)
    return "triton" if device.type == "cuda" else "cpu"


def known(backend: str) -> str:
    """Return `backend` if it is the name of one, else raise ValueError that names the choices."""
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    return backend


def resolve(backend: str | None, device: torch.device) -> str:
    """The backend to run on `device`: `backend` if given, else the default. Raises if it cannot run there."""
    name = default(device) if backend is None else known(backend)
    problem = missing(name, device)
    if problem:
        raise RuntimeError(f"backend {name!r} cannot run on {device.type} tensors here: {problem}")
    return name


def missing(backend: str, device: torch.device) -> str | None:
    """What `backend` needs to run on `device` and does not have, in words; None if it can run."""
    on_gpu = device.type == "cuda"
    if backend == "triton" and not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        return "it needs CUDA tensors, or TRITON_INTERPRET=1 set before triton is imported (slow, for tests)"
    if backend == "numba" and not on_gpu and os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
        return "it needs CUDA tensors, or NUMBA_ENABLE_CUDASIM=1 set before numba is imported (slow, for tests)"
    if backend == "cpu" and on_gpu:
        return "it works on CPU tensors only; use 'triton', 'numba' or 'torch'"
    return None


_PLAIN_KEYS = torch._C._dispatch_keys(torch.zeros(0)) | torch._C._dispatch_keys(torch.zeros(0, requires_grad=True))
_AT_REST = torch._C._dispatch_tls_local_include_set()


def plain(*tensors: torch.Tensor | None) -> bool:
    """Whether torch's dispatcher would only hand these CPU tensors on to the op's CPU code, in the eager mode.

    Then an op may call its backend at once: going through the dispatcher takes a tenth of a millisecond when its code
    is not in the cache, as long as the lookup of a batch of bags of one id. False if a gradient is to be recorded, a
    mode or a transform is active, the code is being compiled, or a tensor is of a subclass or on another device.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    if torch._C._dispatch_tls_local_include_set() != _AT_REST or torch._C._is_tracing():
        return False
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and ((recording and tensor.requires_grad) or not _is_plain(tensor)):
            return False
    return True


def _is_plain(tensor: torch.Tensor) -> bool:
    keys = torch._C._dispatch_keys(tensor)
    return (keys | _PLAIN_KEYS) == _PLAIN_KEYS


@cache
def load(op: str, backend: str) -> ModuleType:
    """The module that implements `op` for `backend` (already resolved)."""
    return import_module(f"{PACKAGE}.{op}._{known(backend)}")
