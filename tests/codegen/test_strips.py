"""Strips of register tiles: sums down the rows, in the bits of the loop without vectors where tiles
are whole, and everywhere in the same bits with any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.codegen.machine import host_cpu
from weft.schedule import strips

NO_TILES = not host_cpu().vector_bytes


def sums(x, w, out, n: int):
    for j in range(x.shape[1]):
        t = 0.0
        for i in range(x.shape[0]):
            t += x[i, j]
        out[0, j] = t


def added(x, w, out, n: int):
    for j in range(x.shape[1]):
        t = out[0, j]
        for i in range(n, x.shape[0] - n):
            t += x[i, j] * w[i]
        out[0, j] = t / (n + 2)


def pairs(x, w, out, n: int):
    for j in range(x.shape[1]):
        s = 0.0
        q = 1.0
        top = -1e30
        for i in range(x.shape[0]):
            s += x[i, j]
            q += x[i, j] * x[i, j]
            top = max(top, x[i, j])
        out[0, j] = s + top
        out[1, j] = q


def moved(x, w, out, n: int):
    for j in range(x.shape[1] - 3):
        t = weft.f64(0.0)
        for i in range(x.shape[0]):
            t += x[i, j + 3]
        out[1, j] = t


def batches(x, w, out, n: int):
    for b, j in weft.ndrange(2, x.shape[1]):
        t = 0.0
        for i in range(x.shape[0] - 1):
            t += x[i + b, j]
        out[b, j] = t


STRIPS = (sums, added, pairs, moved, batches)
EXACT = (sums, moved, batches)


def along(x, w, out, n: int):  # rows of its own
    for j in range(min(x.shape)):
        t = 0.0
        for i in range(x.shape[1]):
            t += x[j, i]
        out[0, j] = t


def scaled(x, w, out, n: int):  # what the turns read is one row
    for j in range(x.shape[1]):
        t = 0.0
        for i in range(x.shape[0]):
            t += x[n - 1, j] * w[i]
        out[0, j] = t


def stored(x, w, out, n: int):
    for j in range(x.shape[1]):
        t = 0.0
        for i in range(x.shape[0]):
            t += x[i, j]
            x[i, j] = t
        out[0, j] = t


@pytest.mark.skipif(NO_TILES, reason="no vectors on this processor")
@pytest.mark.parametrize("function", [*STRIPS, along, scaled, stored], ids=lambda f: f.__name__)
@pytest.mark.sampled(3)
def test_numbers(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "LEAST", 9)
    kernel, plain = weft.kernel(function), weft.kernel(schedule={"cpu": ""})(function)
    before = torch.get_num_threads()
    for rows, columns in ((9, 256), (8, 300), (0, 300), (70, 1100), (67, 2303), (64, 191)):
        x, w = torch.randn(rows + 1, columns), torch.randn(rows + 1)
        made = []
        for each, count in ((kernel, 1), (plain, 1), (kernel, 2), (kernel, 3)):
            mine, out = x.clone(), torch.full((2, columns), 0.25)
            try:
                torch.set_num_threads(count)
                each(mine, w, out, 1)
            finally:
                torch.set_num_threads(before)
            made.append((mine, out))
        whole = columns // 64 * 64 if function is not moved else columns // 32 * 32
        for one, other, *more in zip(*made, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
            if function in EXACT:  # others have fma
                assert torch.equal(one[:, :whole], other[:, :whole])
            assert all(torch.equal(one, another) for another in more)
    text = kernel.inspect(x, w, out, 1)["scheduled ir"]
    assert ("weft.threads" in text) == (function in STRIPS)


@pytest.mark.skipif(NO_TILES, reason="no vectors on this processor")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.slow
def test_dtypes(dtype: torch.dtype) -> None:
    x = (100 * torch.rand(131, 1500)).to(dtype)
    found, expected = torch.zeros(2, 1500, dtype=dtype), torch.zeros(2, 1500, dtype=dtype)
    weft.kernel(sums)(x, torch.ones(1), found, 0)
    weft.kernel(schedule={"cpu": ""})(sums)(x, torch.ones(1), expected, 0)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("columns", [263, 403, 458, 461])
def test_bits_are_those_of_any_number_of_threads(columns: int) -> None:
    """Strips are as many as threads need; neither the edge behind them, nor how many parts long
    columns have, may go by that."""
    kernel, x = weft.kernel(sums), torch.randn(2000, columns)
    before, made = torch.get_num_threads(), list[torch.Tensor]()
    for count in (1, 2, 3, 4):
        out = torch.zeros(2, columns)
        try:
            torch.set_num_threads(count)
            kernel(x, x[:, 0], out, 1)
        finally:
            torch.set_num_threads(before)
        made.append(out)
    torch.testing.assert_close(made[0][0], x.double().sum(0).float(), rtol=1e-4, atol=1e-3)
    assert all(torch.equal(made[0], other) for other in made)
