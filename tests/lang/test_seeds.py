"""The kernels of the Taichi documents, undecorated in plain Python and interpreted with checks."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from weft.lang import field as fields
from weft.lang import loops, types
from weft.lang import math as wm
from weft.lang.dtypes import f32, i32
from weft.lang.math import floor
from weft.runtime import watch
from weft.source import read_function


class ti:  # `import weft as ti`, as far as these kernels go
    types, math, floor = types, wm, staticmethod(floor)
    f32, i32 = f32, i32
    ndrange, template = staticmethod(loops.ndrange), staticmethod(types.template)
    field, var = staticmethod(fields.field), staticmethod(fields.var)


def run(function: Any, *args: Any, **kwargs: Any) -> Any:
    return watch.run(function, args, kwargs, read_function(function))


image_height, image_width, ph, pw = 9, 11, 2, 3
tile_height, tile_width = 4, 5
shift_y, shift_x = (1, tile_height), (tile_width, 2)


def ti_pad(image_pixels: ti.types.ndarray(), tile: ti.types.ndarray()):
    for row, col in ti.ndrange(image_height, image_width):
        # image_pixel_to_coord
        x1, y1 = ti.math.ivec2(col - pw, image_height - 1 - row + ph)
        # map_coord
        v: ti.i32 = ti.floor(y1 / tile_height)
        u: ti.i32 = ti.floor((x1 - v * shift_y[0]) / tile_width)
        x2, y2 = ti.math.ivec2(
            x1 - u * shift_x[0] - v * shift_y[0], y1 - u * shift_x[1] - v * shift_y[1]
        )
        # coord_to_tile_pixel
        x, y = ti.math.ivec2(tile_height - 1 - y2, x2)
        image_pixels[row, col] = tile[x % tile_height, y % tile_width]


def brick_wall(tile: np.ndarray) -> np.ndarray:
    wall = np.empty((image_height, image_width), tile.dtype)
    for row in range(image_height):
        for col in range(image_width):
            x1, y1 = col - pw, image_height - 1 - row + ph
            v = y1 // tile_height
            u = (x1 - v * shift_y[0]) // tile_width
            x2 = x1 - u * shift_x[0] - v * shift_y[0]
            y2 = y1 - u * shift_x[1] - v * shift_y[1]
            wall[row, col] = tile[(tile_height - 1 - y2) % tile_height, x2 % tile_width]
    return wall


@pytest.mark.parametrize("call", [lambda f, *a: f(*a), run])
def test_brick_wall(call):
    tile = torch.randn(tile_height, tile_width)
    image = torch.full((image_height, image_width), math.nan)
    call(ti_pad, image, tile)
    np.testing.assert_array_equal(image.numpy(), brick_wall(tile.numpy()))


T = 5


def taichi_forward_v0(
    out: ti.types.ndarray(ndim=3),
    w: ti.types.ndarray(ndim=3),
    k: ti.types.ndarray(ndim=3),
    eps: ti.f32,
):
    for b, c, t in out:
        s = eps
        for u in range(t - T + 1, t + 1):
            s += w[c, 0, (T - 1) - (t - u)] * k[b, c, u + T - 1]
        out[b, c, t] = s


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("plain", [True, False])
def test_depthwise_convolution(plain, dtype):
    B, C = 2, 3
    w, k = torch.randn(C, 1, T, dtype=dtype), torch.randn(B, C, 2 * T - 1, dtype=dtype)
    out = torch.full((B, C, T), math.nan, dtype=dtype)
    expected = 0.25 + torch.nn.functional.conv1d(k, w, groups=C)
    if plain:  # a loop over a tensor goes through indices in plain Python where it is a field
        target = ti.field(dtype, (B, C, T))
        taichi_forward_v0(target, w, k, 0.25)
        out = target.to_torch()
    else:
        assert run(taichi_forward_v0, out, w, k, 0.25) is None
    torch.testing.assert_close(out, expected, check_dtype=True)


def add(field: ti.template(), delta: ti.i32):
    for i in field:
        field[i] += delta


def test_add_to_a_field():
    x, y = ti.field(dtype=ti.f32, shape=128), ti.var(dt=ti.f32, shape=16)
    add(x, 42)
    add(x, 1)
    run(add, y, 42)
    assert x.to_numpy().tolist() == [43.0] * 128
    assert y.to_numpy().tolist() == [42.0] * 16
