"""Kernels on WebGPU: what its drivers do otherwise, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weft
from tests.conftest import adapter

pytestmark = [pytest.mark.webgpu]


@pytest.fixture(autouse=True)
def found() -> None:
    adapter()


@weft.kernel
def uniform(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(n):
            s += k & 3
        x[i] = s


@weft.kernel
def divergent(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(64):
            for j in range(n if k % 16 == i % 16 else 1):
                s += j & 3
        x[i] = s


@weft.kernel
def conditional(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        while s * 3 < n * 3:
            s += 1
        x[i] = s


@weft.kernel
def left(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(n):
            if k + i % 8 > n - 10:
                break
            s += 1
        x[i] = s


@weft.kernel
def contended(x, n: int):
    for i in range(x.shape[0] - 1):
        s = 0.0
        for k in range(n):
            s += k % 2
            weft.atomic_max(x[0], float(i))
        x[i + 1] = s


@pytest.mark.parametrize("kernel", [uniform, divergent, conditional, left, contended])
def test_loops_that_the_driver_ends_early_are_an_error(kernel: weft.Kernel) -> None:
    """Right, or an error: where turns of neighbouring threads count together, too."""
    from weft.runtime.webgpu import WebGpuError, device

    raised = []
    for n in (100, 9_000, 70_000):
        x = torch.zeros(40, dtype=torch.float32 if kernel is contended else torch.int32)
        expected = x.clone()
        kernel(expected, n)
        try:
            kernel.on("webgpu")(x, n)
        except WebGpuError as error:
            assert "ends them too early: at most 65,535 in all" in str(error)  # noqa: PT017
            raised.append(n)
        else:
            assert torch.equal(x, expected)
    if device().ends_loops:
        assert 100 not in raised
        assert 70_000 in raised


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fmod_is_exact(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x, y, out):
        for i in range(x.shape[0]):
            out[i] = math.fmod(x[i], y[i])

    bits = torch.int32 if dtype is torch.float32 else torch.int64
    info = torch.iinfo(bits)
    x, y = (torch.randint(info.min, info.max, (4000,), dtype=bits).view(dtype) for _ in "xy")
    y[:1000] = torch.randint(1, 1000, (1000,), dtype=bits).view(dtype)  # subnormal
    x[1000:2000], y[1000:2000] = 20 * torch.randn(1000), torch.randn(1000)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.0, 5e-324]
    pairs = torch.cartesian_prod(*2 * [torch.tensor(special, dtype=dtype)])
    x[-len(pairs) :], y[-len(pairs) :] = pairs[:, 0], pairs[:, 1]
    out = torch.full_like(x, 7)
    f.on("webgpu")(x, y, out)
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))  # torch's is not exact
    same = (out.view(bits) == expected.view(bits)) | (out.isnan() & expected.isnan())
    assert same.all(), (x[~same], y[~same], out[~same], expected[~same])


def test_random_numbers_are_those_of_other_devices() -> None:
    @weft.kernel
    def f(x, y, n: int):
        for i in range(x.shape[0]):
            s = 0
            for _ in range(i % n):
                if weft.random() > 0.5:
                    s += weft.randint(0, 100)
            y[i] = s
            x[i] = weft.random()

    made = []
    for kernel in (f, f.on("webgpu")):
        torch.manual_seed(4)
        x, y = torch.zeros(300), torch.zeros(300, dtype=torch.int64)
        kernel(x, y, 7)
        made.append((x, y))
    torch.testing.assert_close(made[0], made[1], rtol=1e-5, atol=1e-6)
