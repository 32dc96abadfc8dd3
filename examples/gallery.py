"""Small kernels, each beside the PyTorch expression that means the same.

``python -m examples.gallery`` runs all of them and prints how far they are from PyTorch. Those with
gradients have files of their own: `softmax`, `layer_norm`, `wkv`, `bilateral`, `grid_sample`,
`spring`, `language_model`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import weft


@weft.kernel
def axpy(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    for i in range(x.shape[0]):
        out[i] = a * x[i] + y[i]
    return out


@weft.kernel
def stencil(x: torch.Tensor) -> torch.Tensor:
    """Mean of the four neighbours and the point itself; the border is copied."""
    rows, cols = x.shape
    out = x.clone()
    for i, j in weft.ndrange((1, rows - 1), (1, cols - 1)):
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
    return out


@weft.kernel
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows, inner = a.shape
    cols = b.shape[1]
    out = torch.empty(rows, cols, dtype=a.dtype, device=a.device)
    for i, j in weft.ndrange(rows, cols):
        s = 0.0
        for k in range(inner):
            s += a[i, k] * b[k, j]
        out[i, j] = s
    return out


@weft.kernel
def histogram(x: torch.Tensor, bins: int, low: float, high: float) -> torch.Tensor:
    """Counts of values in ``bins`` equal parts of [low, high]; which bin depends on the data, so
    the additions are atomic."""
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    for i in range(x.shape[0]):
        if low <= x[i] <= high:
            counts[min(int((x[i] - low) / (high - low) * bins), bins - 1)] += 1
    return counts


@weft.kernel
def mandelbrot(real: torch.Tensor, imaginary: torch.Tensor, limit: int) -> torch.Tensor:
    """How many steps each point of the complex plane takes to escape, at most ``limit``."""
    out = torch.empty(imaginary.shape[0], real.shape[0], dtype=torch.int32, device=real.device)
    for i, j in out:
        a = real[j]
        b = imaginary[i]
        x = 0.0
        y = 0.0
        steps = 0
        while x * x + y * y <= 4.0 and steps < limit:
            x, y = x * x - y * y + a, 2.0 * x * y + b
            steps += 1
        out[i, j] = steps
    return out


@weft.kernel
def newton_sqrt(x: torch.Tensor, tolerance: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        guess = 0.5 * (x[i] + 1.0)
        for _ in range(64):
            better = 0.5 * (guess + x[i] / guess)
            done = abs(better - guess) <= tolerance * better
            guess = better
            if done:
                break
        out[i] = guess
    return out


def mix(a: float, b: float, t: float) -> float:
    """A plain function: weft inlines it."""
    return a + (b - a) * t


@weft.kernel
def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bilinear resampling of (rows, cols, channels), pixel centres at half-integers."""
    rows, cols, channels = image.shape
    out = torch.empty(height, width, channels, dtype=image.dtype, device=image.device)
    for i, j, c in out:
        y = min(max((i + 0.5) * rows / height - 0.5, 0.0), rows - 1.0)
        x = min(max((j + 0.5) * cols / width - 0.5, 0.0), cols - 1.0)
        top = int(y)
        left = int(x)
        below = min(top + 1, rows - 1)
        right = min(left + 1, cols - 1)
        upper = mix(image[top, left, c], image[top, right, c], x - left)
        lower = mix(image[below, left, c], image[below, right, c], x - left)
        out[i, j, c] = mix(upper, lower, y - top)
    return out


@weft.kernel
def running_sum(x: torch.Tensor) -> torch.Tensor:
    """Prefix sums along every row: rows in parallel, each row in order."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        s = 0.0
        for j in range(cols):
            s += x[i, j]
            out[i, j] = s
    return out


@weft.kernel
def transpose(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty(cols, rows, dtype=x.dtype, device=x.device)
    for i, j in out:
        out[i, j] = x[j, i]
    return out


@weft.kernel
def total(x: torch.Tensor) -> torch.Tensor:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


@weft.kernel
def largest(x: torch.Tensor) -> torch.Tensor:
    m = -math.inf
    for i in range(x.shape[0]):
        m = max(m, x[i])
    return m


@weft.kernel
def leaky_relu_(x: torch.Tensor, slope: float) -> None:
    """In place, on a tensor of any layout."""
    for i, j in x:
        if x[i, j] < 0:
            x[i, j] *= slope


@weft.kernel
def collatz(limit: int) -> torch.Tensor:
    """Steps of n -> n / 2 or 3 n + 1 from every n in 1..limit down to 1."""
    steps = torch.empty(limit, dtype=torch.int64)
    for i in range(limit):
        n = i + 1
        count = 0
        while n != 1:
            if n % 2 == 0:
                n //= 2
            else:
                n = 3 * n + 1
            count += 1
        steps[i] = count
    return steps


@weft.kernel
def gray(image: torch.Tensor) -> torch.Tensor:
    """Luma (ITU-R BT.601) of uint8 (rows, cols, 3), in integers, rounded."""
    rows, cols, _ = image.shape
    out = torch.empty(rows, cols, dtype=torch.uint8, device=image.device)
    for i, j in out:
        red = int(image[i, j, 0])
        green = int(image[i, j, 1])
        blue = int(image[i, j, 2])
        out[i, j] = (299 * red + 587 * green + 114 * blue + 500) // 1000
    return out


def stencil_reference(x: torch.Tensor) -> torch.Tensor:
    """`stencil` by slices."""
    out = x.clone()
    sides = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    out[1:-1, 1:-1] = 0.2 * (x[1:-1, 1:-1] + sides)
    return out


def mandelbrot_reference(real: torch.Tensor, imaginary: torch.Tensor, limit: int) -> torch.Tensor:
    """`mandelbrot` a step at a time over the whole plane."""
    a, b = torch.meshgrid(real, imaginary, indexing="xy")
    x, y = torch.zeros_like(a), torch.zeros_like(b)
    steps = torch.zeros_like(a, dtype=torch.int32)
    for _ in range(limit):
        inside = x * x + y * y <= 4
        steps += inside
        x, y = torch.where(inside, x * x - y * y + a, x), torch.where(inside, 2 * x * y + b, y)
    return steps


def collatz_reference(limit: int) -> torch.Tensor:
    """`collatz` a step at a time over all numbers."""
    n = torch.arange(1, limit + 1)
    steps = torch.zeros_like(n)
    while (going := n != 1).any():
        steps += going
        n = torch.where(going, torch.where(n % 2 == 0, n // 2, 3 * n + 1), n)
    return steps


def resize_reference(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """`resize` by ``interpolate``."""
    planes = image.permute(2, 0, 1)[None]
    resized = F.interpolate(planes, size=(height, width), mode="bilinear", align_corners=False)
    return resized[0].permute(1, 2, 0)


def gray_reference(image: torch.Tensor) -> torch.Tensor:
    """`gray` in int32."""
    weights = torch.tensor([299, 587, 114], dtype=torch.int32)
    return ((image.to(torch.int32) * weights).sum(2) + 500).div(1000, rounding_mode="floor").byte()


def leaky_relu_reference(x: torch.Tensor, slope: float) -> None:
    """`leaky_relu_` by torch's own in-place form."""
    F.leaky_relu_(x, slope)


@dataclass(frozen=True)
class Example:
    """A kernel, PyTorch's spelling of it, and arguments to try both on.

    The reference is run on float64 copies of the arguments, and the results are compared with
    absolute and relative tolerance ``tolerance`` (0: exactly equal). A kernel that returns nothing
    changes its first argument.
    """

    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    tolerance: float = 1e-5


# `arguments` takes a rough size n: the number of elements of a vector, the sides of a matrix.
EXAMPLES = (
    Example(axpy, lambda a, x, y: a * x + y, lambda n: (2.5, torch.randn(n), torch.randn(n))),
    Example(
        stencil,
        stencil_reference,
        lambda n: (torch.randn(n, n + 3),),
    ),
    Example(
        matmul,
        torch.matmul,
        lambda n: (torch.randn(n, n + 1), torch.randn(n + 1, n + 2)),
        tolerance=1e-4,
    ),
    Example(
        histogram,
        lambda x, bins, low, high: torch.histc(x, bins, low, high),
        lambda n: (torch.randint(-40, 41, (n,)) / 8 + 1 / 16, 10, -4.0, 4.0),
        tolerance=0,
    ),
    Example(
        mandelbrot,
        mandelbrot_reference,
        lambda n: (
            torch.linspace(-2, 0.5, n, dtype=torch.float64),
            torch.linspace(-1.25, 1.25, n, dtype=torch.float64),
            30,
        ),
        tolerance=0,
    ),
    Example(
        newton_sqrt,
        lambda x, tolerance: x.sqrt(),
        lambda n: (torch.rand(n) * 100 + 0.01, 1e-6),
    ),
    Example(resize, resize_reference, lambda n: (torch.rand(n, n + 1, 3), n + n // 2, n // 2 + 1)),
    Example(running_sum, lambda x: x.cumsum(1), lambda n: (torch.randn(n, n),), tolerance=1e-4),
    Example(transpose, lambda x: x.T, lambda n: (torch.randn(n, n + 1),), tolerance=0),
    Example(total, torch.sum, lambda n: (torch.rand(n),)),
    Example(largest, torch.max, lambda n: (torch.randn(n),), tolerance=0),
    Example(
        leaky_relu_,
        leaky_relu_reference,
        lambda n: (torch.randn(n, n + 1).t(), 0.1),
    ),
    Example(collatz, collatz_reference, lambda n: (n,), tolerance=0),
    Example(
        gray,
        gray_reference,
        lambda n: (torch.randint(0, 256, (n, n + 1, 3), dtype=torch.uint8),),
        tolerance=0,
    ),
)


def float64_copies(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments, floating tensors copied as float64."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            yield value.double() if value.is_floating_point() else value.clone()
        else:
            yield value


def compare(example: Example, n: int) -> float:
    """Run kernel and reference at size ``n``; return the largest difference.

    Raises AssertionError where they differ by more than the example's tolerance.
    """
    arguments = example.arguments(n)
    copies = tuple(float64_copies(arguments))
    got = example.kernel(*arguments)
    expected = example.reference(*copies)
    if got is None:
        got, expected = arguments[0], copies[0]
    got, expected = got.double(), expected.double()
    torch.testing.assert_close(got, expected, rtol=example.tolerance, atol=example.tolerance)
    return (got - expected).abs().max().item()


def main(n: int = 200) -> None:
    """Compare every kernel of the gallery with PyTorch at size ``n``."""
    torch.manual_seed(0)
    for example in EXAMPLES:
        difference = compare(example, n)
        print(f"{example.kernel.__name__:14} largest difference from PyTorch {difference:.1e}")


if __name__ == "__main__":
    main()
