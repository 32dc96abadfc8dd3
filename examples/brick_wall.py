"""A staggered brick wall: a tile repeated with an offset. No torch operator pads like that.

Three spellings of one thing:

* ``torch_pad``: whole-tensor operations, after the listing in "Accelerate PyTorch with Taichi";
* ``ti_pad``: that document's kernel as it was printed, with ``import weft as ti``;
* ``brick_wall``: the loop as one would write it for weft.

The lattice. A brick is ``tile_height`` by ``tile_width`` pixels. In (x, y) with y pointing up, the
next brick is at ``shift_x = (tile_width, 0)`` and the next course at ``shift_y = (offset,
tile_height)``. With ``offset = tile_width // 2`` every course is moved by half a brick over the one
below: a running bond. ``pw`` and ``ph`` move the origin, as padding on the left and below does.
"""

import torch
import torch.nn.functional as F

import weft
import weft as ti
from examples.photograph import pack, photograph, save_png, unpack

# The names that the printed kernel captures. They are constants of the compiled kernel: after a
# change here the next call compiles again.
image_height, image_width = 1080, 1728
tile_height, tile_width = 144, 288
ph, pw = 36, 96
shift_x = (tile_width, 0)
shift_y = (tile_width // 2, tile_height)


@weft.kernel
def brick_wall(
    tile: torch.Tensor, height: int, width: int, offset: int, ph: int, pw: int
) -> torch.Tensor:
    """The wall, ``height`` by ``width``: ``tile`` (rank 2), every course moved by ``offset``."""
    tile_height, tile_width = tile.shape
    image = torch.empty(height, width, dtype=tile.dtype, device=tile.device)
    for row, col in weft.ndrange(height, width):
        x = col - pw
        y = height - 1 - row + ph
        course = y // tile_height
        brick = (x - course * offset) // tile_width
        image[row, col] = tile[
            tile_height - 1 - (y - course * tile_height),
            x - course * offset - brick * tile_width,
        ]
    return image


@ti.kernel
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
        image_pixels[row, col] = tile[x, y]


def pixel_coordinates(height: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(row, column) of every pixel: shape (height, width, 2)."""
    rows = torch.arange(height, dtype=dtype)
    columns = torch.arange(width, dtype=dtype)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=2)


def torch_pad(
    coordinates: torch.Tensor,
    tile: torch.Tensor,
    shift_x: tuple[int, int],
    shift_y: tuple[int, int],
    ph: int,
    pw: int,
) -> torch.Tensor:
    """The wall by whole-tensor operations, step by step as in the document.

    ``coordinates`` is what `pixel_coordinates` gives; its dtype is the one that is divided in.
    """
    height, width, _ = coordinates.shape
    tile_height, tile_width = tile.shape
    right, up = coordinates.new_tensor(shift_x), coordinates.new_tensor(shift_y)
    # image_pixel_to_coord
    position = coordinates.clone()
    position[:, :, 0] = height - 1 + ph - position[:, :, 0]
    position[:, :, 1] -= pw
    position = torch.flip(position, (2,))
    # map_coord
    v = torch.floor(position[:, :, 1] / tile_height)
    u = torch.floor((position[:, :, 0] - v * shift_y[0]) / tile_width)
    uu = torch.stack((u, u), dim=2)
    vv = torch.stack((v, v), dim=2)
    inside = position - uu * right - vv * up
    # coord_to_tile_pixel
    inside[:, :, 1] = tile_height - 1 - inside[:, :, 1]
    table = torch.flip(inside, (2,)).view(-1, 2)
    indices = table.mv(table.new_tensor((tile_width, 1))).to(torch.long)
    return torch.index_select(tile.reshape(-1), 0, indices).view(height, width)


def torch_tidy(
    tile: torch.Tensor, height: int, width: int, offset: int, ph: int, pw: int
) -> torch.Tensor:
    """The wall as one would write it for PyTorch today: integers, broadcasting, one gather."""
    tile_height, tile_width = tile.shape
    y = torch.arange(height - 1 + ph, ph - 1, -1, device=tile.device)[:, None]
    x = torch.arange(width, device=tile.device) - pw
    return tile[tile_height - 1 - y % tile_height, (x - y // tile_height * offset) % tile_width]


def brick(photo: torch.Tensor, height: int, width: int, mortar: int) -> torch.Tensor:
    """One brick, packed int32 (height, width): a crop of ``photo``, mortar below and left."""
    crop = photo[24:280]  # the head: 256 by 512, two to one as a brick is
    pixels = F.interpolate(
        crop.permute(2, 0, 1)[None].float(),
        size=(height - mortar, width - mortar),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )
    face = pixels[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
    whole = torch.full((height, width, 3), 205, dtype=torch.uint8)
    whole[: height - mortar, mortar:] = face
    return pack(whole)


def main() -> None:
    """Lay the wall three ways, compare, and write ``out/brick_wall.png``."""
    tile = brick(photograph(), tile_height, tile_width, mortar=max(tile_height // 24, 1))
    wall = brick_wall(tile, image_height, image_width, shift_y[0], ph, pw)

    printed = torch.full_like(wall, -1)
    ti_pad(printed, tile)
    by_torch = torch_pad(
        pixel_coordinates(image_height, image_width), tile, shift_x, shift_y, ph, pw
    )
    assert torch.equal(wall, by_torch)
    assert torch.equal(printed, by_torch)
    print(f"{image_height} x {image_width} pixels, the same three ways")
    print(f"look at {save_png(unpack(wall), 'brick_wall.png')}")


if __name__ == "__main__":
    main()
