"""Nests over triangles as register tiles: whole tiles, those that some lanes run, and empty ones;
stores of lanes that are not neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft.codegen.machine import host_cpu
from weft.schedule.language import Vectorize, only, parse

SIZES = ((3, 1), (2, 5), (40, 16), (9, 70), (17, 131), (0, 7))


def lower(x: torch.Tensor, c: torch.Tensor) -> None:
    n, m = x.shape
    for i in range(m):
        for j in range(i):
            for k in range(n):
                c[i, j] += x[k, i] * x[k, j]


def falling(x: torch.Tensor, c: torch.Tensor) -> None:
    n, m = x.shape
    for i in range(m):
        for j in range(m - i):
            for k in range(j % 3, n):
                c[i, j] += x[k, i] * x[k, j]


def downwards(x: torch.Tensor, c: torch.Tensor) -> None:
    n, m = x.shape
    for i in range(m):
        for j in range(m - 1, i, -1):
            for k in range(n):
                c[j, i] += x[k, i] * x[k, j]


def both_halves(x: torch.Tensor, c: torch.Tensor) -> None:
    n, m = x.shape
    for i in range(m):
        for j in range(i, m):
            s = c[i, j]
            for k in range(n):
                s += x[k, i] * x[k, j]
            c[i, j] = s
            c[j, i] = s


def expected(name: str, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    m = x.shape[1]
    i, j = torch.arange(m)[:, None], torch.arange(m)[None]
    parts = torch.stack([x[k:].T @ x[k:] for k in range(3)])
    sums = {
        "lower": parts[0] * (j < i), "downwards": parts[0] * (j < i), "both_halves": parts[0],
        "falling": parts[j % 3, i, j] * (j < m - i),
    }  # fmt: skip
    return c + sums[name]


@pytest.mark.parametrize("function", [lower, falling, downwards, both_halves])
def test_a_triangle_is_what_the_loops_say(function: Callable[..., None]) -> None:
    kernel = weft.kernel(function)
    for n, m in SIZES:
        x, c = torch.randn(n, m), torch.ones(m, m)
        wanted = expected(function.__name__, x, c)
        kernel(x, c)
        torch.testing.assert_close(c, wanted, rtol=1e-5, atol=1e-5)
    schedule = kernel.inspect(torch.ones(9, 70), torch.ones(70, 70))["schedule"]
    assert only(parse(schedule), Vectorize) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_lanes_that_store_apart(dtype: torch.dtype) -> None:
    @weft.kernel(schedule={"cpu": "vectorize(i, 4, 8)"})
    def columns(x: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            for k in range(x.shape[1]):
                out[k, at[i]] = x[i, k]

    x, at = (10 * torch.randn(21, 3)).to(dtype), torch.randperm(30)[:21]
    out = torch.zeros(3, 30, dtype=dtype)
    wanted = out.clone()
    wanted[:, at] = x.T
    columns(x, at, out)
    assert torch.equal(out, wanted)


LANES = max(2, host_cpu().vector_bytes // 8)


@weft.kernel(schedule={"cpu": f"unroll_jam(i, 2); vectorize(j, {LANES}, {LANES})"})
def windows(x: torch.Tensor, r: int) -> torch.Tensor:
    H, W = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(H, W):
        s = 0.0
        for a in range(max(i - r, 0), min(i + r + 1, H)):
            for b in range(max(j - r, 0), min(j + r + 1, W)):
                s += x[a, b]
        out[i, j] = s
    return out


@pytest.mark.parametrize("size", [(13, 40), (2, 17), (1, 1), (0, 3), (9, 8)])
def test_bounds_that_rows_share_in_a_loop_that_they_run_in_part(size: tuple[int, int]) -> None:
    """The columns' bounds are those of lanes that any row has, not of the first row's: the rows of
    a tile run the outer loop for different iterations."""
    x = torch.rand(size, dtype=torch.float64)
    around = torch.nn.functional.pad(x, (3, 3, 3, 3))
    wanted = around.unfold(0, 7, 1).unfold(1, 7, 1).sum((2, 3)) if x.numel() else x
    torch.testing.assert_close(windows(x, 3), wanted)
