"""The bilateral filter: a blur that stops at edges, on a photograph.

Each pixel becomes a mean of its neighbours; what is far away, or has another colour, weighs less:
exp(-d² / 2 space² - |c - c'|² / 2 tone²), with d the distance in pixels and c the colours
(Tomasi and Manduchi, "Bilateral filtering for gray and color images", 1998). The loop gives the
gradient with respect to the image and to both widths.
"""

import math

import torch
import torch.nn.functional as F

import weft
from examples.beside import Case, report
from examples.photograph import photograph, save_png

HEIGHT, WIDTH, RADIUS = 150, 128, 4


@weft.kernel
def bilateral(
    image: torch.Tensor, space: torch.Tensor, tone: torch.Tensor, radius: int
) -> torch.Tensor:
    """``image`` (rows, cols, 3); ``space`` (in pixels) and ``tone`` (in the image's units), 0-d."""
    rows, cols, _ = image.shape
    out = torch.empty_like(image)
    for i, j in weft.ndrange(rows, cols):
        here = weft.Vector([image[i, j, 0], image[i, j, 1], image[i, j, 2]])
        colour = weft.Vector([0.0, 0.0, 0.0])
        total = 0.0
        for a in range(max(i - radius, 0), min(i + radius + 1, rows)):
            for b in range(max(j - radius, 0), min(j + radius + 1, cols)):
                there = weft.Vector([image[a, b, 0], image[a, b, 1], image[a, b, 2]])
                far = ((a - i) ** 2 + (b - j) ** 2) / (2 * space**2)
                different = (there - here).norm_sqr() / (2 * tone**2)
                weight = math.exp(-far - different)
                colour += weight * there
                total += weight
        for c in weft.static(range(3)):
            out[i, j, c] = colour[c] / total
    return out


def torch_bilateral(
    image: torch.Tensor, space: torch.Tensor, tone: torch.Tensor, radius: int
) -> torch.Tensor:
    """The same in PyTorch: one term for each displacement, over the whole picture."""
    rows, cols, _ = image.shape
    padded = F.pad(image, (0, 0, radius, radius, radius, radius))
    inside = F.pad(torch.ones_like(image[..., 0]), (radius, radius, radius, radius))
    colour, total = torch.zeros_like(image), torch.zeros_like(image[..., 0])
    for a in range(2 * radius + 1):
        for b in range(2 * radius + 1):
            there = padded[a : a + rows, b : b + cols]
            far = ((a - radius) ** 2 + (b - radius) ** 2) / (2 * space**2)
            different = ((there - image) ** 2).sum(2) / (2 * tone**2)
            weight = torch.exp(-far - different) * inside[a : a + rows, b : b + cols]
            colour = colour + weight[..., None] * there
            total = total + weight
    return colour / total[..., None]


def small_photograph(height: int, width: int) -> torch.Tensor:
    """The photograph as float32 in [0, 1] of shape (height, width, 3), reduced by averaging."""
    planes = photograph().permute(2, 0, 1)[None].float() / 255
    return F.interpolate(planes, size=(height, width), mode="area")[0].permute(1, 2, 0).contiguous()


def main() -> None:
    """Check and time it; then learn the widths that undo noise best, and write a picture."""
    clean = small_photograph(HEIGHT, WIDTH)
    space, tone = torch.tensor(2.0), torch.tensor(0.1)
    arguments = (clean, space, tone, RADIUS)
    size = f"{HEIGHT} × {WIDTH}, radius {RADIUS}"
    report("bilateral filter", [Case(size, bilateral, torch_bilateral, arguments)])

    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    widths = torch.stack([space, tone]).log().requires_grad_()
    optimizer = torch.optim.Adam([widths], lr=0.1)
    for step in range(25):
        optimizer.zero_grad()
        restored = bilateral(noisy, *widths.exp(), RADIUS)
        loss = F.mse_loss(restored, clean)
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            space, tone = widths.detach().exp().tolist()
            print(f"step {step:2}: error {loss.item():.5f}, space {space:.2f}, tone {tone:.3f}")
    before = F.mse_loss(noisy, clean).item()
    assert loss.item() < before / 2
    pictures = torch.cat([clean, noisy, restored.detach()], dim=1).clamp(0, 1)
    path = save_png((pictures * 255).round().byte(), "bilateral.png")
    print(f"noise {before:.5f}, restored {loss.item():.5f}; look at {path}")


if __name__ == "__main__":
    main()
