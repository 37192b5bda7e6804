"""What the Numba CUDA kernels share: tensors as device arrays, and launches of one thread per output element."""

from typing import Any

import torch
from numba import cuda
from torch import Tensor

THREADS = 256
"""Threads per block on a device."""


def view(tensor: Tensor) -> Any:
    """`tensor` as an array a Numba kernel can take, sharing its memory (a numpy array in the simulator)."""
    return cuda.as_cuda_array(tensor.detach()) if tensor.is_cuda else tensor.detach().numpy()


def launch(kernel: Any, elements: int, *arguments: Any) -> None:
    """Run `kernel` with at least one thread for each of `elements`, on torch's current stream."""
    if elements == 0:
        return
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    stream = 0
    threads = min(THREADS, elements)  # the simulator starts a Python thread for each
    blocks = -(-elements // threads)
    if tensors[0].is_cuda:
        stream = cuda.external_stream(torch.cuda.current_stream(tensors[0].device).cuda_stream)
    kernel[blocks, threads, stream](*(view(a) if isinstance(a, Tensor) else a for a in arguments))
