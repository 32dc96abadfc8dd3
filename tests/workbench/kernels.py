"""Kernels that `tests/workbench` looks at, some of them wrong."""

import torch
from jaxtyping import Float
from torch import Tensor

import weft


@weft.kernel
def mixed(w: Float[Tensor, " t"], x: Float[Tensor, "b t"], eps: float) -> torch.Tensor:
    B, T = x.shape
    out = torch.empty_like(x)
    for b, t in weft.ndrange(B, T):
        out[b, t] = w[T - 1 - t] * x[b, t] + eps
    return out


@weft.kernel
def beyond(x: Float[Tensor, " n"]) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i + 1] - x[i]
    return out


@weft.kernel
def every_other(x: Float[Tensor, " n"]) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0] // 2):
        out[2 * i] = x[i]
    return out


@weft.kernel
def counted(index: torch.Tensor, bins: int) -> torch.Tensor:
    counts = torch.zeros(bins, dtype=torch.int32)
    for i in range(index.shape[0]):
        counts[index[i]] += 1
    return counts


@weft.kernel
def gathered(x: torch.Tensor, places: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty(places.shape[0])
    for i in range(places.shape[0]):
        out[i] = x[places[i]] * scale
    return out


def gathered_arguments(n: int = 4, m: int = 3) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.rand(n), torch.randint(0, max(n, 1), (m if n else 0,)), 2.0


@weft.kernel
def squared(z: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(z)
    for i in range(z.shape[0]):
        out[i] = z[i] * z[i]
    return out


@weft.kernel
def running(x: Float[Tensor, " n"]) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(1, x.shape[0]):
        out[i] = out[i - 1] + x[i]
    return out


@weft.kernel
def scattered(x: Float[Tensor, " n"], places: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[places[i]] = x[i]
    return out


@weft.kernel
def imaginary(x: Float[Tensor, " n"]) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = weft.sqrt(-1.0 - x[i] * x[i])
    return out


@weft.kernel
def rooted(x: weft.types.ndarray(dtype=weft.f32, ndim=1), out: weft.types.ndarray(weft.f32, 1)):
    for i in x:
        out[i] = weft.sqrt(x[i])


@weft.kernel
def unknown(x: torch.Tensor) -> None:
    y = x.view(-1)
    for i in range(y.shape[0]):
        y[i] = 0.0


@weft.kernel
def templated(x: torch.Tensor, n: weft.template()) -> None:
    for i in range(n):
        x[i] = 0.0


def by_torch(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    return w.flip(0) * x + eps
