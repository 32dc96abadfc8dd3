"""The hand-written schedules of docs/schedules.md: are they right, and how fast are they?

``python -m benchmarks.schedules`` runs them on the GPU, or on the CPU where there is none
(``--device cpu``), each beside weft's own choice, and prints a table for each kernel.
``--small``: sizes for a quick look.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import weft
from examples.brick_wall import brick_wall
from examples.causal_conv import causal_conv
from examples.softmax import softmax
from weft.tuning.measure import measure

KERNELS: dict[str, weft.Kernel] = {
    "causal_conv": causal_conv, "softmax": softmax, "brick_wall": brick_wall,
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A schedule of the page. ``same_bits``: it gives those of a thread for each iteration."""

    kernel: str
    device: str
    text: str
    same_bits: bool = True


TEXTS = (
    Text("causal_conv", "cuda", "index_width(64)"),
    Text("causal_conv", "cuda", "index_width(32)"),
    Text("causal_conv", "cuda", "unroll_jam(b, 4)"),
    Text("causal_conv", "cuda", "unroll_jam(b, 4); unroll_jam(t, 4, stride=32)"),
    Text("causal_conv", "cuda", "unroll_jam(b, 8); unroll_jam(t, 4, stride=32)"),
    Text("causal_conv", "cuda", "unroll_jam(b, 4); unroll_jam(t, 8, stride=32)"),
    Text(
        "causal_conv",
        "cuda",
        "unroll_jam(b, 8); unroll_jam(t, 8); register_window(u, 4); bind(b, y); block(8, 4)",
    ),
    Text("causal_conv", "cuda", "cooperate((u), 32)", same_bits=False),
    Text("softmax", "cuda", "index_width(32)"),
    Text("softmax", "cuda", "cooperate((j, j_, j__), 32)", same_bits=False),
    Text("softmax", "cuda", "cooperate((j, j_, j__), 256)", same_bits=False),
    Text("softmax", "cuda", "cooperate((j, j_, j__), 256); keep_row(4, 4)", same_bits=False),
    Text("brick_wall", "cuda", "index_width(64)"),
    Text("brick_wall", "cuda", "vectorize(col, 4)"),
    Text("brick_wall", "cuda", "vectorize(col, 4, 8, stride=32, divisible=True)"),
    Text("causal_conv", "cpu", "", same_bits=False),
    Text("causal_conv", "cpu", "vectorize(t, 8)"),
    Text("causal_conv", "cpu", "vectorize(t, 8, 32)"),
    Text("causal_conv", "cpu", "unroll_jam(b, 4); vectorize(t, 8, 32)"),
    Text("causal_conv", "cpu", "unroll_jam(b, 8); vectorize(t, 8, 16)"),
    Text("softmax", "cpu", ""),
    Text("softmax", "cpu", "unroll_jam(i, 2)", same_bits=False),
    Text("brick_wall", "cpu", ""),
    Text("brick_wall", "cpu", "unroll_jam(row, 2)"),
    Text("brick_wall", "cpu", "vectorize(col, 8, 32)"),
)


def arguments(kernel: str, device: str, small: bool = False) -> tuple[Any, ...]:
    """The call of the page."""
    draw = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(device)

    big = device == "cuda" and not small
    if kernel == "causal_conv":
        batch, channels, length = (
            (32, 768, 768) if big else (4, 16, 200) if small else (8, 256, 512)
        )
        return randn(channels, length), randn(batch, channels, length), 0.1
    if kernel == "softmax":
        return (randn(4096, 4096) if big else randn(65, 304) if small else randn(1823, 781),)
    side = 4096 if big else 304 if small else 3000
    tile = torch.arange(144 * 288, dtype=torch.int32).view(144, 288).to(device)
    return tile, side, side, 144, 36, 96


def by(text: Text) -> weft.Kernel:
    """The kernel by the schedule of the page."""
    return weft.kernel(schedule={text.device: text.text})(KERNELS[text.kernel].function)


def check(text: Text, found: torch.Tensor, expected: torch.Tensor) -> None:
    """AssertionError where results differ by more than the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda m: f"{text}: {m}")


def table(kernel: str, device: str, small: bool) -> None:
    """Times of a kernel by each schedule of the page, in turn."""
    args = arguments(kernel, device, small)
    texts = [text for text in TEXTS if (text.kernel, text.device) == (kernel, device)]
    usual = weft.kernel(KERNELS[kernel].function)
    expected = usual(*args)
    ways: dict[str, Callable[..., Any]] = {}
    for text in texts:
        ways[text.text or "(no steps)"] = made = by(text)
        for _ in range(3):
            check(text, made(*args), expected)
        if not made.schedules(*args, device=device).taken[0].asked:
            print(f"these sizes do not allow {text}")
    ways["weft's own choice"] = usual
    runs = [functools.partial(way, *args) for way in ways.values()]
    times = measure(runs, args[0].device, lambda: None)
    shapes = ", ".join("x".join(map(str, a.shape)) for a in args if isinstance(a, torch.Tensor))
    print(f"\n{kernel} ({shapes})\n\n| schedule | ms |\n| --- | --- |")
    for name, took in zip(ways, times, strict=True):
        print(f"| `{name}` | {took:.4g} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual, choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(KERNELS))
    chosen = parser.parse_args()
    for kernel in chosen.only.split(","):
        table(kernel, chosen.device, chosen.small)


if __name__ == "__main__":
    main()
