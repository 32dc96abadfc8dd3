"""Softmax of every row, and its gradient."""

import math

import torch

import weft
from examples.beside import Case, report

SIZES = ((1823, 781), (4096, 1024))


@weft.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    """``x`` (rows, cols); the largest of a row is taken off first, so that nothing overflows."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        largest = -math.inf
        for j in range(cols):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j] - largest)
        for j in range(cols):
            out[i, j] = math.exp(x[i, j] - largest) / total
    return out


def torch_softmax(x: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    return x.softmax(1)


def inputs(rows: int, cols: int) -> tuple[torch.Tensor]:
    """Random rows."""
    return (torch.randn(rows, cols, generator=torch.Generator().manual_seed(0)),)


def main() -> None:
    """Check values and gradients, and time them beside PyTorch."""
    cases = [Case(f"{m} × {n}", softmax, torch_softmax, inputs(m, n)) for m, n in SIZES]
    report("row softmax", cases)


if __name__ == "__main__":
    main()
