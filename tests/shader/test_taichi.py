"""Kernels of Taichi's documentation, with ``arch=ti.vulkan``, beside Python."""

from __future__ import annotations

import math

import pytest
import torch

import weft as ti
from tests.conftest import adapter
from weft.lang.field import Field

pytestmark = [pytest.mark.webgpu]

HEIGHT, WIDTH, TALL, WIDE = 60, 80, 8, 12  # of the image, and of a tile
ABOVE, LEFT = 3, 5
SHIFT_X, SHIFT_Y = (12, 0), (4, 8)
T = 20


@pytest.fixture(autouse=True)
def vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Field, "defaults", Field.defaults)
    ti.init(arch=ti.vulkan)


def test_life_of_a_kernel() -> None:
    @ti.kernel
    def add(tensor: ti.template(), delta: ti.i32):
        for i in tensor:
            tensor[i] += delta

    x, y = ti.field(ti.f32, shape=128), ti.field(ti.f32, shape=16)
    add(x, 42)
    add(x, 1)
    add(y, 42)
    assert x.to_torch().equal(torch.full((128,), 43.0))
    assert y.to_torch().equal(torch.full((16,), 42.0))


def test_bricks() -> None:
    @ti.kernel
    def pad(pixels: ti.types.ndarray(), tile: ti.types.ndarray()):
        for row, column in ti.ndrange(HEIGHT, WIDTH):
            x1, y1 = ti.math.ivec2(column - LEFT, HEIGHT - 1 - row + ABOVE)
            v: ti.i32 = ti.floor(y1 / TALL)
            u: ti.i32 = ti.floor((x1 - v * SHIFT_Y[0]) / WIDE)
            x2, y2 = ti.math.ivec2(
                x1 - u * SHIFT_X[0] - v * SHIFT_Y[0], y1 - u * SHIFT_X[1] - v * SHIFT_Y[1]
            )
            x, y = ti.math.ivec2(TALL - 1 - y2, x2)
            pixels[row, column] = tile[x, y]

    tile, pixels = torch.randn(TALL, WIDE), torch.full((HEIGHT, WIDTH), math.nan)
    pad(pixels, tile)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            x, y = column - LEFT, HEIGHT - 1 - row + ABOVE
            v = y // TALL
            u = (x - v * SHIFT_Y[0]) // WIDE
            x, y = x - u * SHIFT_X[0] - v * SHIFT_Y[0], y - u * SHIFT_X[1] - v * SHIFT_Y[1]
            assert pixels[row, column] == tile[TALL - 1 - y, x]


def test_a_depthwise_convolution() -> None:
    @ti.kernel
    def forward(out: ti.types.ndarray(), w: ti.types.ndarray(), k: ti.types.ndarray(), eps: ti.f32):
        for b, c, t in out:
            s = eps
            for u in range(t - T + 1, t + 1):
                s += w[c, 0, (T - 1) - (t - u)] * k[b, c, u + T - 1]
            out[b, c, t] = s

    w, k = torch.randn(3, 1, T), torch.zeros(2, 3, 2 * T - 1)
    k[:, :, T - 1 :] = torch.randn(2, 3, T)
    out = torch.full((2, 3, T), math.nan)
    forward(out, w, k, 0.1)
    expected = 0.1 + torch.nn.functional.conv1d(k.double(), w.double(), groups=3)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)
