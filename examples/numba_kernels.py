"""A kernel of Numba for CUDA, with what launches it. Without a GPU, Numba's simulator runs it:
``NUMBA_ENABLE_CUDASIM=1``, which has to be set before Numba is imported."""

import os
from typing import Any

import torch
from numba import cuda

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


@cuda.jit
def _square(x, out):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column] ** 2


def square_numba(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    across = 4 if SIMULATED else 16  # the simulator starts a thread of Python for each
    grid = tuple(-(-n // across) for n in x.shape)
    if SIMULATED:
        _square[grid, (across, across)](x.numpy(), out.numpy())
    else:  # on PyTorch's stream: Numba's own would not wait for what is queued there
        stream: Any = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        views = cuda.as_cuda_array(x), cuda.as_cuda_array(out)
        _square[grid, (across, across), stream](*views)
    return out
