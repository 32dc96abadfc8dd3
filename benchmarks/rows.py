"""Kernels along rows, and what PyTorch has for them: ``gpu_check`` compares and times these."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import weft
from examples.layer_norm import layer_norm
from examples.softmax import softmax


@weft.kernel
def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s
    return out


@weft.kernel
def column_sums(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[1])
    for j in range(x.shape[1]):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i, j]
        out[j] = s
    return out


@weft.kernel
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += weft.f32(x[i, j]) ** 2
        scale = 1.0 / math.sqrt(total / cols + eps)
        for j in range(cols):
            out[i, j] = x[i, j] * scale * weight[j]
    return out


@weft.kernel
def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = x.new_empty(rows)
    for i in range(rows):
        largest = -math.inf
        for j in range(cols):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j] - largest)
        out[i] = largest + math.log(total)
    return out


@weft.kernel
def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = x.new_empty(rows)
    for i in range(rows):
        largest = -math.inf
        for j in range(cols):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j] - largest)
        out[i] = largest + math.log(total) - x[i, target[i]]
    return out


@dataclass(frozen=True)
class Case:
    """``weft(*args)`` and ``torch(*args)``, and the tensors with a gradient."""

    name: str
    weft: Callable[..., torch.Tensor]
    torch: Callable[..., torch.Tensor]
    args: tuple[Any, ...]

    @property
    def leaves(self) -> tuple[torch.Tensor, ...]:
        return tuple(a for a in self.args if isinstance(a, torch.Tensor) and a.requires_grad)


def cases(device: str = "cuda") -> Iterator[Case]:
    """Rows of the tables in README and docs, made one after the other."""

    def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype).requires_grad_()

    for m, n in ((4096, 4096), (4096, 768), (65_536, 128)):
        x = r(m, n).detach()
        yield Case(f"row sums {m} x {n}", row_sums, lambda x: x.sum(1), (x,))
        yield Case(f"column sums {m} x {n}", column_sums, lambda x: x.sum(0), (x,))
    soft = functools.partial(torch.softmax, dim=1)
    for m, n in ((4096, 4096), (8192, 8192), (64, 131_072), (4096, 1024), (65_536, 128),
                 (1823, 781)):  # fmt: skip
        yield Case(f"softmax {m} x {n}", softmax, soft, (r(m, n),))

    def torch_layer_norm(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:], w, b, eps)

    for m, n in ((4096, 4096), (4096, 768), (65_536, 128)):
        yield Case(f"layer norm {m} x {n}", layer_norm, torch_layer_norm,
                   (r(m, n), r(n), r(n), 1e-5))  # fmt: skip

    def torch_rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, x.shape[1:], w, eps)

    for dtype in (torch.bfloat16, torch.float32):
        name = f"RMS norm 8192 x 4096 {str(dtype)[6:]}"
        args = (r(8192, 4096, dtype=dtype), r(4096, dtype=dtype), 1e-5)
        yield Case(name, rms_norm, torch_rms_norm, args)
    x = r(8192, 8192)
    yield Case("log-sum-exp 8192 x 8192", log_sum_exp, lambda x: torch.logsumexp(x, 1), (x,))
    target = torch.randint(0, 8192, (8192,), device=device)
    yield Case("cross entropy 8192 x 8192", cross_entropy,
               lambda x, t: F.cross_entropy(x, t, reduction="none"), (x, target))  # fmt: skip
