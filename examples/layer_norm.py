"""Layer norm, and its gradient with respect to rows, weight and bias."""

import math

import torch
import torch.nn.functional as F

import weft
from examples.beside import Case, report

SIZES = ((4096, 768), (777, 1024))


@weft.kernel
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """``x`` (rows, cols), ``weight`` and ``bias`` (cols,)."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        mean = 0.0
        for j in range(cols):
            mean += x[i, j]
        mean /= cols
        variance = 0.0
        for j in range(cols):
            variance += (x[i, j] - mean) ** 2
        scale = 1.0 / math.sqrt(variance / cols + eps)
        for j in range(cols):
            out[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]
    return out


def torch_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """The same in PyTorch."""
    return F.layer_norm(x, x.shape[1:], weight, bias, eps)


def inputs(rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Random rows with a mean that is not zero, weights, biases and eps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, cols, generator=generator) + 0.5
    return x, torch.randn(cols, generator=generator), torch.randn(cols, generator=generator), 1e-5


def main() -> None:
    """Check values and gradients, and time them beside PyTorch."""
    cases = [Case(f"{m} × {n}", layer_norm, torch_layer_norm, inputs(m, n)) for m, n in SIZES]
    report("layer norm", cases)


if __name__ == "__main__":
    main()
