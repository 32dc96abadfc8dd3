"""The brick wall at the three sizes of the figures to beat: a tile repeated in a running bond.

Rank 3 is a float image with three channels. "tuned" copies runs: inside one brick, a row of the
wall is a contiguous piece of a row of the tile.
"""

from typing import Any

import torch

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main

PH, PW = 16, 24


@weft.kernel
def wall(tile: torch.Tensor, out: torch.Tensor, offset: int, ph: int, pw: int) -> None:
    height, width = out.shape
    tile_height, tile_width = tile.shape
    for row, col in weft.ndrange(height, width):
        x = col - pw
        y = height - 1 - row + ph
        v = y // tile_height
        u = (x - v * offset) // tile_width
        out[row, col] = tile[
            tile_height - 1 - (y - v * tile_height), x - v * offset - u * tile_width
        ]


@weft.kernel
def wall_rgb(tile: torch.Tensor, out: torch.Tensor, offset: int, ph: int, pw: int) -> None:
    height, width, channels = out.shape
    tile_height, tile_width, _ = tile.shape
    for row, col, channel in weft.ndrange(height, width, channels):
        x = col - pw
        y = height - 1 - row + ph
        v = y // tile_height
        u = (x - v * offset) // tile_width
        out[row, col, channel] = tile[
            tile_height - 1 - (y - v * tile_height), x - v * offset - u * tile_width, channel
        ]


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A random tile, a place for the wall, and the offset of a course."""
    generator = torch.Generator().manual_seed(0)
    sizes = case.sizes
    shape = (sizes["tile_height"], sizes["tile_width"], *sizes["channels"])
    tile = torch.randint(0, 1 << 24, shape, generator=generator, dtype=torch.int32)
    dtype = sizes["dtype"]
    out = poisoned(sizes["height"], sizes["width"], *sizes["channels"], dtype=dtype)
    return tile.to(dtype), out, sizes["tile_width"] // 2


def positions(tile: torch.Tensor, out: torch.Tensor, offset: int) -> tuple[Any, Any]:
    """Row and column of the tile for every pixel of ``out``, ready to broadcast."""
    y = torch.arange(out.shape[0] - 1 + PH, PH - 1, -1)[:, None]
    x = torch.arange(out.shape[1]) - PW
    tile_height, tile_width = tile.shape[:2]
    return tile_height - 1 - y % tile_height, (x - y // tile_height * offset) % tile_width


def tidy(tile: torch.Tensor, out: torch.Tensor, offset: int) -> torch.Tensor:
    """The wall by broadcasting and one gather; of ``out`` only the shape is used."""
    return tile[positions(tile, out, offset)]


def reference(case: Case) -> torch.Tensor:
    return tidy(*inputs(case))


def weft_given(case: Case) -> Call:
    tile, out, offset = inputs(case)
    kernel = wall if tile.dim() == 2 else wall_rgb

    def call() -> torch.Tensor:
        kernel(tile, out, offset, PH, PW)
        return out

    return call


def torch_document(case: Case) -> Call:
    """The steps of the document: float coordinates of every pixel, stacked and flipped."""
    tile, out, offset = inputs(case)
    height, width = out.shape[:2]
    tile_height, tile_width = tile.shape[:2]
    rows, columns = torch.arange(height).float(), torch.arange(width).float()
    coordinates = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=2)
    right, up = torch.tensor((tile_width, 0)), torch.tensor((offset, tile_height))
    pixels = tile.reshape(tile_height * tile_width, -1)

    def call() -> torch.Tensor:
        arr = coordinates.clone()
        arr[:, :, 0] = height - 1 + PH - arr[:, :, 0]
        arr[:, :, 1] -= PW
        arr = torch.flip(arr, (2,))
        v = torch.floor(arr[:, :, 1] / tile_height)
        u = torch.floor((arr[:, :, 0] - v * offset) / tile_width)
        arr = arr - torch.stack((u, u), dim=2) * right - torch.stack((v, v), dim=2) * up
        arr[:, :, 1] = tile_height - 1 - arr[:, :, 1]
        table = torch.flip(arr, (2,)).view(-1, 2)
        indices = table.mv(torch.tensor((float(tile_width), 1.0))).long()
        return torch.index_select(pixels, 0, indices).view(out.shape)

    return call


def torch_tidy(case: Case) -> Call:
    arguments = inputs(case)
    return lambda: tidy(*arguments)


def torch_table(case: Case) -> Call:
    """Only the gather: the table of positions is made before and not timed."""
    tile, out, offset = inputs(case)
    row, column = positions(tile, out, offset)
    table = (row * tile.shape[1] + column).reshape(-1)
    pixels = tile.reshape(tile.shape[0] * tile.shape[1], *tile.shape[2:])
    flat = out.view(-1, *out.shape[2:])

    def call() -> torch.Tensor:
        torch.index_select(pixels, 0, table, out=flat)
        return out

    return call


def torch_compiled(case: Case) -> Call:
    tile, out, offset = inputs(case)
    height_and_width = torch.empty(out.shape, device="meta")

    def expression(tile: torch.Tensor) -> torch.Tensor:
        return tidy(tile, height_and_width, offset)

    return calling(compiled(expression), tile, out)


def torch_compiled_allocating(case: Case) -> Call:
    tile, out, offset = inputs(case)
    shape = torch.empty(out.shape, device="meta")
    kernel = torch.compile(lambda tile: tidy(tile, shape, offset), dynamic=False)
    return lambda: kernel(tile)


def numba(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, error_model="numpy")
    def plane(tile, offset, ph, pw, out):
        height, width = out.shape
        tile_height, tile_width = tile.shape
        for row in nb.prange(height):
            for col in range(width):
                x = col - pw
                y = height - 1 - row + ph
                v = y // tile_height
                u = (x - v * offset) // tile_width
                out[row, col] = tile[
                    tile_height - 1 - (y - v * tile_height), x - v * offset - u * tile_width
                ]

    @nb.njit(parallel=True, error_model="numpy")
    def image(tile, offset, ph, pw, out):
        height, width, channels = out.shape
        tile_height, tile_width, _ = tile.shape
        for row in nb.prange(height):
            for col in range(width):
                x = col - pw
                y = height - 1 - row + ph
                v = y // tile_height
                u = (x - v * offset) // tile_width
                i = tile_height - 1 - (y - v * tile_height)
                j = x - v * offset - u * tile_width
                for channel in range(channels):
                    out[row, col, channel] = tile[i, j, channel]

    tile, out, offset = inputs(case)
    return on_arrays(plane if tile.dim() == 2 else image, tile, offset, PH, PW, out)


def rows_and_runs(case: Case) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Tile and wall as planes (the channels belong to the row), offset and padding in elements.

    The worker reshapes the result before it compares it.
    """
    tile, out, offset = inputs(case)
    channels = tile.shape[2] if tile.dim() == 3 else 1
    return tile.flatten(1), out.flatten(1), offset * channels, PW * channels


def numba_tuned(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, error_model="numpy")
    def kernel(tile, offset, ph, pw, out):
        height, width = out.shape
        tile_height, tile_width = tile.shape
        for row in nb.prange(height):
            y = height - 1 - row + ph
            v = y // tile_height
            source = tile[tile_height - 1 - (y - v * tile_height)]
            target = out[row]
            col = 0
            begin = (-pw - v * offset) % tile_width
            while col < width:
                length = min(tile_width - begin, width - col)
                target[col : col + length] = source[begin : begin + length]
                col += length
                begin = 0

    tile, out, offset, pw = rows_and_runs(case)
    return on_arrays(kernel, tile, offset, PH, pw, out)


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def plane(
            tile: ti.types.ndarray(ndim=2),
            offset: ti.i32,
            ph: ti.i32,
            pw: ti.i32,
            out: ti.types.ndarray(ndim=2),
        ):
            for row, col in out:
                x = col - pw
                y = out.shape[0] - 1 - row + ph
                v = y // tile.shape[0]
                u = (x - v * offset) // tile.shape[1]
                out[row, col] = tile[
                    tile.shape[0] - 1 - (y - v * tile.shape[0]), x - v * offset - u * tile.shape[1]
                ]

        @ti.kernel
        def image(
            tile: ti.types.ndarray(ndim=3),
            offset: ti.i32,
            ph: ti.i32,
            pw: ti.i32,
            out: ti.types.ndarray(ndim=3),
        ):
            for row, col in ti.ndrange(out.shape[0], out.shape[1]):
                x = col - pw
                y = out.shape[0] - 1 - row + ph
                v = y // tile.shape[0]
                u = (x - v * offset) // tile.shape[1]
                i = tile.shape[0] - 1 - (y - v * tile.shape[0])
                j = x - v * offset - u * tile.shape[1]
                for channel in ti.static(range(3)):
                    out[row, col, channel] = tile[i, j, channel]

        tile, out, offset = inputs(case)
        return calling(plane if tile.dim() == 2 else image, tile, offset, PH, PW, out)

    return provider


def taichi_tuned(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(
            tile: ti.types.ndarray(ndim=2),
            offset: ti.i32,
            ph: ti.i32,
            pw: ti.i32,
            out: ti.types.ndarray(ndim=2),
        ):
            for row in range(out.shape[0]):
                y = out.shape[0] - 1 - row + ph
                v = y // tile.shape[0]
                i = tile.shape[0] - 1 - (y - v * tile.shape[0])
                col = 0
                begin = (-pw - v * offset) % tile.shape[1]
                while col < out.shape[1]:
                    length = ti.min(tile.shape[1] - begin, out.shape[1] - col)
                    for k in range(length):
                        out[row, col + k] = tile[i, begin + k]
                    col += length
                    begin = 0

        tile, out, offset, pw = rows_and_runs(case)
        return calling(kernel, tile, offset, PH, pw, out)

    return provider


def warp(case: Case) -> Call:
    wp = peers.warp()
    tile, out, offset = inputs(case)
    element = wp.int32 if out.dtype == torch.int32 else wp.float32
    plane_type, image_type = wp.array2d(dtype=element), wp.array3d(dtype=element)

    @wp.kernel
    def plane(tile: plane_type, offset: int, ph: int, pw: int, out: plane_type):
        row, col = wp.tid()
        x = col - pw
        y = out.shape[0] - 1 - row + ph
        v = y // tile.shape[0]
        # Warp's integer division truncates: x - v * offset is negative, so divide its complement.
        u = -1 - (v * offset - x - 1) // tile.shape[1]
        if x - v * offset >= 0:
            u = (x - v * offset) // tile.shape[1]
        i = tile.shape[0] - 1 - (y - v * tile.shape[0])
        out[row, col] = tile[i, x - v * offset - u * tile.shape[1]]

    @wp.kernel
    def image(tile: image_type, offset: int, ph: int, pw: int, out: image_type):
        row, col = wp.tid()
        x = col - pw
        y = out.shape[0] - 1 - row + ph
        v = y // tile.shape[0]
        u = -1 - (v * offset - x - 1) // tile.shape[1]
        if x - v * offset >= 0:
            u = (x - v * offset) // tile.shape[1]
        i = tile.shape[0] - 1 - (y - v * tile.shape[0])
        j = x - v * offset - u * tile.shape[1]
        for channel in range(3):
            out[row, col, channel] = tile[i, j, channel]

    kernel = plane if tile.dim() == 2 else image
    return on_warp(kernel, tuple(out.shape[:2]), tile, offset, PH, PW, out)


def sizes(height: int, width: int, dtype: torch.dtype, *channels: int) -> dict[str, Any]:
    """A case's sizes; the tile has a tenth of the wall's height, and bricks are two to one."""
    return {
        "height": height,
        "width": width,
        "tile_height": height // 10,
        "tile_width": height // 5,
        "dtype": dtype,
        "channels": channels,
    }


SUBJECTS = (
    Subject(
        "brick",
        "brick wall, given output",
        (
            Case("304 × 288 f32", sizes(304, 288, torch.float32)),
            Case("3000 × 4000 i32", sizes(3000, 4000, torch.int32)),
            Case("3000 × 4000 × 3 f32", sizes(3000, 4000, torch.float32, 3)),
        ),
        {
            "weft": weft_given,
            "torch, as in the document": torch_document,
            "torch, tidier": torch_tidy,
            "torch, gather by a table": torch_table,
            "torch.compile": torch_compiled,
            "torch.compile, allocating": torch_compiled_allocating,
            "numba": numba,
            "numba, tuned": numba_tuned,
            "taichi": taichi("taichi"),
            "taichi, tuned": taichi_tuned("taichi"),
            "quadrants": taichi("quadrants"),
            "quadrants, tuned": taichi_tuned("quadrants"),
            "warp": warp,
        },
        reference,
        tolerance=0.0,
    ),
)


if __name__ == "__main__":
    main("brick", SUBJECTS)
