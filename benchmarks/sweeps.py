"""Rates over sizes beside PyTorch, by weft's own bench: checked, timed in turn, plotted.

``python -m benchmarks.sweeps [NAME ...] [--plots DIR]`` measures all of them, or those that are
named; ``weft bench benchmarks/sweeps.py:softmax_rows --plot rows.png`` one. On the GPU, if there is
one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

import weft
from benchmarks.rows import column_sums, row_sums
from examples.layer_norm import layer_norm
from examples.softmax import softmax

LENGTHS = [1 << k for k in range(12, 25, 2)]
ROWS = [1 << k for k in range(7, 14)]


@weft.kernel
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]
    return out


def softmax_torch(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, dim=1)


def layer_norm_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[1],), weight, bias, eps)


@weft.benchmark({"weft": add, "torch": torch.add}, n=LENGTHS)
def sum_of_two(n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n), torch.randn(n)


@weft.benchmark(
    {"weft": softmax, "torch": softmax_torch, "torch.compile": torch.compile(softmax_torch)}, n=ROWS
)
def softmax_rows(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1024),)


@weft.benchmark(
    {
        "weft": layer_norm,
        "torch": layer_norm_torch,
        "torch.compile": torch.compile(layer_norm_torch),
    },
    n=ROWS,
)
def layer_norm_rows(n: int) -> tuple[object, ...]:
    return torch.randn(n, 768), torch.randn(768), torch.randn(768), 1e-5


@weft.benchmark({"weft": row_sums, "torch": lambda x: x.sum(1)}, n=ROWS)
def sums_of_rows(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1024),)


@weft.benchmark({"weft": column_sums, "torch": lambda x: x.sum(0)}, n=ROWS)
def sums_of_columns(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1024),)


SWEEPS = {
    b.name: b for b in (sum_of_two, softmax_rows, layer_norm_rows, sums_of_rows, sums_of_columns)
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SWEEPS))
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where plots are written")
    given = parser.parse_args(arguments)
    if unknown := {*given.names} - SWEEPS.keys():
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(SWEEPS)}")
    right = True
    for name in given.names or SWEEPS:
        measured = SWEEPS[name].run()
        print(measured, flush=True)
        right &= measured.ok
        if given.plots is not None:
            given.plots.mkdir(parents=True, exist_ok=True)
            measured.plot(given.plots / f"{name}.png")
    return not right


if __name__ == "__main__":
    raise SystemExit(main())
