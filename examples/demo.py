"""Both examples of "Accelerate PyTorch with Taichi" on real input: checked, timed, one table.

``make demo``, or ``python -m examples.demo``. ``--quick`` times less; ``--no-compile`` leaves
``torch.compile`` out.
"""

import argparse
import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from examples import brick_wall as wall
from examples import causal_conv as conv
from examples.photograph import photograph, save_png, unpack

Call = Callable[[], torch.Tensor]


@dataclass
class Row:
    """One way to compute an example. ``call`` computes it anew and returns the result.

    ``scale`` is how many times more work the full size is than what ``call`` does (1 but for the
    undecorated Python); ``expected`` and ``exact`` are PyTorch's and the float64 result at the size
    that ``call`` computes.
    """

    name: str
    call: Call
    expected: torch.Tensor
    exact: torch.Tensor
    scale: float = 1.0
    first_ms: float = 0.0
    ms: float = 0.0
    error_torch: float = 0.0
    error_exact: float = 0.0
    failure: str = ""


def milliseconds(call: Call) -> tuple[float, torch.Tensor]:
    """The time of one call, and its result."""
    begin = time.perf_counter()
    result = call()
    return (time.perf_counter() - begin) * 1e3, result


def short_reason(error: Exception) -> str:
    """Why ``torch.compile`` failed, in a few words."""
    text = f"{type(error).__name__}: {error}"
    if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return "no C++ compiler"
    return text.splitlines()[0][:70]


def check(row: Row) -> None:
    """The first call of ``row``, and how far its result is from PyTorch and from float64."""
    try:
        row.first_ms, result = milliseconds(row.call)
    except Exception as error:
        if not row.name.startswith("torch.compile"):
            raise
        row.failure = short_reason(error)
        return
    row.error_torch = conv.relative_error(result, row.expected.double())
    row.error_exact = conv.relative_error(result, row.exact)
    assert row.error_torch < 1e-5, f"{row.name} differs from PyTorch by {row.error_torch:.1e}"
    assert row.error_exact < 1e-5, f"{row.name} differs from float64 by {row.error_exact:.1e}"


def measure(rows: Sequence[Row], seconds: float) -> None:
    """Fill ``ms`` of every row: the median of calls taken in turn, about ``seconds`` a row."""
    samples: dict[str, list[float]] = {row.name: [] for row in rows if not row.failure}
    spent = dict.fromkeys(samples, 0.0)
    while active := [row for row in rows if not row.failure and spent[row.name] < seconds]:
        for row in active:
            ms, _ = milliseconds(row.call)
            samples[row.name].append(ms)
            spent[row.name] += ms / 1e3
    for row in rows:
        if not row.failure:
            row.ms = statistics.median(samples[row.name]) * row.scale


def brick_rows(use_compile: bool) -> tuple[list[Row], torch.Tensor]:
    """The brick wall from the photograph, and the wall itself (packed int32)."""
    height, width, ph, pw = wall.image_height, wall.image_width, wall.ph, wall.pw
    offset = wall.shift_y[0]
    tile = wall.brick(photograph(), wall.tile_height, wall.tile_width, wall.tile_height // 24)
    coordinates = wall.pixel_coordinates(height, width)
    expected = wall.torch_pad(coordinates, tile, wall.shift_x, wall.shift_y, ph, pw)
    exact = wall.torch_pad(coordinates.double(), tile, wall.shift_x, wall.shift_y, ph, pw)
    exact = exact.double()

    def printed() -> torch.Tensor:
        image = torch.empty(height, width, dtype=tile.dtype)
        wall.ti_pad(image, tile)
        return image

    def loop() -> torch.Tensor:
        return wall.brick_wall(tile, height, width, offset, ph, pw)

    def document() -> torch.Tensor:
        return wall.torch_pad(coordinates, tile, wall.shift_x, wall.shift_y, ph, pw)

    def tidy() -> torch.Tensor:
        return wall.torch_tidy(tile, height, width, offset, ph, pw)

    rows = [
        Row("weft", loop, expected, exact),
        Row("weft, Taichi's spelling", printed, expected, exact),
        Row("PyTorch as in the document", document, expected, exact),
        Row("PyTorch, tidier", tidy, expected, exact),
    ]
    if use_compile:
        compiled = torch.compile(wall.torch_tidy)
        rows.append(
            Row(
                "torch.compile of the tidier",
                lambda: compiled(tile, height, width, offset, ph, pw),
                expected,
                exact,
            )
        )
    rows.append(undecorated_brick(tile, height * width))
    return rows, loop()


def undecorated_brick(tile: torch.Tensor, pixels: int) -> Row:
    """The undecorated loop on a 24 by 32 wall."""
    offset, ph, pw = wall.shift_y[0], wall.ph, wall.pw
    python = inspect.unwrap(wall.brick_wall)
    expected = wall.torch_tidy(tile, 24, 32, offset, ph, pw)
    return Row(
        "undecorated Python (24 x 32, scaled up)",
        lambda: python(tile, 24, 32, offset, ph, pw),
        expected,
        expected.double(),
        scale=pixels / (24 * 32),
    )


def conv_rows(use_compile: bool) -> list[Row]:
    """RWKV's causal depthwise convolution at the document's sizes."""
    batch, channels, length, eps = conv.B, conv.C, conv.T, conv.EPS
    w, k = conv.inputs(batch, channels, length)
    expected = conv.torch_conv(w, k, eps)
    exact = conv.float64_conv(w, k, eps)
    w_printed, k_printed = w.unsqueeze(1), F.pad(k, (length - 1, 0))

    def printed() -> torch.Tensor:
        out = torch.empty_like(k)
        conv.taichi_forward_v0(out, w_printed, k_printed, eps)
        return out

    rows = [
        Row("weft", lambda: conv.causal_conv(w, k, eps), expected, exact),
        Row("weft, Taichi's spelling (twice the terms)", printed, expected, exact),
        Row("PyTorch conv1d", lambda: conv.torch_conv(w, k, eps), expected, exact),
    ]
    if use_compile:
        compiled = torch.compile(conv.torch_conv)
        rows.append(Row("torch.compile of it", lambda: compiled(w, k, eps), expected, exact))
    rows.append(undecorated_conv(batch * channels * length * (length + 1) / 2))
    return rows


def undecorated_conv(terms: float) -> Row:
    """The undecorated loop at B=1 C=2 T=24; ``terms`` is the number of products at full size."""
    python = inspect.unwrap(conv.causal_conv)
    w, k = conv.inputs(1, 2, 24)
    return Row(
        "undecorated Python (B=1 C=2 T=24, scaled up)",
        lambda: python(w, k, conv.EPS),
        conv.torch_conv(w, k, conv.EPS),
        conv.float64_conv(w, k, conv.EPS),
        scale=terms / (2 * 24 * 25 / 2),
    )


def duration(ms: float) -> str:
    """Milliseconds for reading: 3 digits, or minutes and hours where those are easier."""
    if ms >= 3.6e6:
        return f"{ms / 3.6e6:.1f} h"
    if ms >= 1.2e5:
        return f"{ms / 6e4:.1f} min"
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms:,.0f} ms"


def table(sections: Sequence[tuple[str, Sequence[Row]]]) -> Table:
    """All rows in one table; "x weft" is the time over that of the section's first row."""
    result = Table(title=f"{torch.get_num_threads()} threads; medians, taken in turn")
    result.add_column("", no_wrap=True)
    for heading in ("first call", "time", "x weft", "off PyTorch", "off float64"):
        result.add_column(heading, justify="right", no_wrap=True)
    for title, rows in sections:
        result.add_section()
        result.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            if row.failure:
                result.add_row(f"  {row.name}: {row.failure}")
                continue
            result.add_row(
                f"  {row.name}",
                duration(row.first_ms) if row.scale == 1 else "",
                duration(row.ms),
                f"{row.ms / rows[0].ms:,.3g}"
                if row.ms < 1e3 * rows[0].ms
                else f"{row.ms / rows[0].ms:,.0f}",
                f"{row.error_torch:.0e}" if row.error_torch else "same",
                f"{row.error_exact:.0e}" if row.error_exact else "same",
            )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, check and time both examples; print one table; write ``out/brick_wall.png``."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="time each for a tenth of a second")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args(arguments)

    bricks, image = brick_rows(use_compile=not options.no_compile)
    convolution = conv_rows(use_compile=not options.no_compile)
    for rows in (bricks, convolution):
        for row in rows:
            check(row)
        measure(rows, 0.1 if options.quick else 1.0)

    sections: list[tuple[str, Sequence[Any]]] = [
        (f"brick wall, {wall.image_height} x {wall.image_width} pixels, int32", bricks),
        (f"causal convolution, B={conv.B} C={conv.C} T={conv.T}, float32", convolution),
    ]
    Console(width=120).print(table(sections))
    print(f"look at {save_png(unpack(image), 'brick_wall.png')}")


if __name__ == "__main__":
    main()
