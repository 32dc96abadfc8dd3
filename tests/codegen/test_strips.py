"""Strips of register tiles: sums down the rows, in the bits of the loop without vectors, at edges
and in any number of threads."""

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
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows, columns in ((9, 256), (8, 300), (0, 300), (70, 1100), (67, 2303), (64, 191)):
                x, w = torch.randn(rows + 1, columns), torch.randn(rows + 1)
                made = []
                for each in (kernel, plain):
                    mine, out = x.clone(), torch.full((2, columns), 0.25)
                    each(mine, w, out, 1)
                    made.append((mine, out))
                for one, other in zip(*made, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
                    assert function not in EXACT or torch.equal(one, other)  # others have fma
    finally:
        torch.set_num_threads(before)
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
