"""Bilinear sampling at points that are data: ``torch.nn.functional.grid_sample``, as a loop.

Which pixels are read depends on the grid, so the image's gradient is a sum whose places are known
only at run time. Images keep them apart, though: on a CPU each is accumulated by one thread, in
order, if there are as many as threads; else in a few copies, or atomically where these would be too
large, and ``inspect`` says which. The grid's is a plain store.
"""

import math

import torch
import torch.nn.functional as F

import weft
from examples.beside import Case, report

SIZES = ((2, 3, 256, 256), (1, 16, 111, 77))


@weft.kernel
def grid_sample(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """``image`` (N, C, H, W) at ``grid`` (N, rows, cols, 2), whose x and y are -1 and 1 at the
    outer edges of the image; zero outside. Gives (N, C, rows, cols)."""
    N, C, H, W = image.shape
    _, rows, cols, _ = grid.shape
    out = image.new_empty(N, C, rows, cols)
    for n, i, j in weft.ndrange(N, rows, cols):
        x = ((grid[n, i, j, 0] + 1) * W - 1) / 2
        y = ((grid[n, i, j, 1] + 1) * H - 1) / 2
        left = math.floor(x)
        top = math.floor(y)
        for c in range(C):
            s = 0.0
            for b in weft.static(range(2)):
                for a in weft.static(range(2)):
                    if 0 <= top + b < H and 0 <= left + a < W:
                        weight = (1 - abs(x - left - a)) * (1 - abs(y - top - b))
                        s += weight * image[n, c, top + b, left + a]
            out[n, c, i, j] = s
    return out


def torch_grid_sample(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    return F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def inputs(n: int, c: int, h: int, w: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random image, and a grid of its own size that is turned and partly outside.

    The points keep away from the lines between pixel centres. There the derivative jumps, and
    rounding would decide on which side of a line a point is.
    """
    generator = torch.Generator().manual_seed(0)
    turn = torch.tensor([[0.9, -0.5, 0.1], [0.5, 0.9, 0.0]]).expand(n, 2, 3)
    extent = torch.tensor([w, h])
    pixels = ((F.affine_grid(turn, [n, c, h, w], align_corners=False) + 1) * extent - 1) / 2
    pixels = pixels.floor() + 0.1 + 0.8 * torch.rand(n, h, w, 2, generator=generator)
    return torch.randn(n, c, h, w, generator=generator), (2 * pixels + 1) / extent - 1


def main() -> None:
    """Check values and gradients, and time them beside PyTorch."""
    cases = []
    for size in SIZES:
        name = " × ".join(map(str, size))
        cases.append(Case(name, grid_sample, torch_grid_sample, inputs(*size)))
    report("grid sample", cases)


if __name__ == "__main__":
    main()
