"""Rows of the CPU beside what a person writes by hand: ``python -m benchmarks.cpu_rows [names]``.

Peers are PyTorch, and ``by_hand.cpp``, compiled by ``c++ -O3 -march=native -fopenmp``. All calls
of a row are timed in turn, many times, and the least time of each is shown: what others do on the
machine makes times longer, not shorter. ``--threads 1`` counts the processor's time, in which
others hardly show.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import weft
from benchmarks import brick, causal_conv, rows
from examples import brick_wall, grid_sample, layer_norm, softmax
from examples.beside import passes, prepared

Call = Callable[[], Any]
Calls = dict[str, Call]  # "weft" first, then the peers; all give the same numbers
Row = Callable[[], Calls]

TABLE: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def note(make: Row) -> Row:
        TABLE[name] = make
        return make

    return note


# -- C++


def by_hand() -> ctypes.CDLL:
    """The functions of ``by_hand.cpp``."""
    folder = Path(tempfile.mkdtemp())
    options = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    source = Path(__file__).with_name("by_hand.cpp")
    subprocess.run(["c++", *options, "-o", folder / "by_hand.so", source], check=True)
    return ctypes.CDLL(str(folder / "by_hand.so"))


def calling(name: str, *arguments: Any) -> Call:
    """``name(*arguments)`` of the library, giving the last tensor."""
    function = getattr(LIBRARY, name)

    def word(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return ctypes.c_void_p(a.data_ptr())
        return ctypes.c_float(a) if isinstance(a, float) else ctypes.c_int64(a)

    words = [word(a) for a in arguments]
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]

    def call() -> Any:
        function(*words)
        return tensors[-1]

    return call


def calling_for_time(function: Callable[..., Any], *arguments: Any) -> Call:
    """A call whose numbers are none of the row's."""

    def call() -> None:
        function(*arguments)

    return call


LIBRARY: Any = None


# -- the convolution

B, C, T = 8, 768, 768


def _conv() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(C, T, generator=generator) / T**0.5
    return w, torch.randn(B, C, T, generator=generator)


@row("causal conv 8 x 768 x 768")
def _() -> Calls:
    (w, k), out, own = _conv(), torch.empty(B, C, T), torch.empty(B, C, T)
    return {
        "weft": lambda: causal_conv.causal_conv(w, k, 0.1, out) or out,
        "C++": calling("conv", w, k, 0.1, own, B, C, T),
    }


@row("causal conv 8 x 768 x 768, backward")
def _() -> Calls:
    w, k = (a.requires_grad_() for a in _conv())
    value = causal_conv.causal_conv_allocating(w, k, 0.1)
    g = torch.randn(B, C, T)
    gw, gk = torch.empty(C, T), torch.empty(B, C, T)
    return {
        "weft": lambda: torch.autograd.grad(value, (w, k), g, retain_graph=True)[1],
        "C++": calling("conv_backward", w.detach(), k.detach(), g, gw, gk, B, C, T),
    }


# -- bricks


@weft.kernel
def spelled(image, tile, offset: int, ph: int, pw: int):
    """The wall as Taichi spells it: the floor of a quotient of integers."""
    for row, col in image:
        x1, y1 = col - pw, image.shape[0] - 1 - row + ph
        v: weft.i32 = weft.floor(y1 / tile.shape[0])
        u: weft.i32 = weft.floor((x1 - v * offset) / tile.shape[1])
        x2, y2 = x1 - u * tile.shape[1] - v * offset, y1 - v * tile.shape[0]
        image[row, col] = tile[tile.shape[0] - 1 - y2, x2]


def _wall(th: int, tw: int, h: int, w: int, *more: int, stream: bool) -> Calls:
    generator = torch.Generator().manual_seed(0)
    tile = torch.rand(th, tw, *more, generator=generator)
    out, own, filled = (torch.empty(h, w, *more) for _ in range(3))
    wide = more[0] if more else 1
    kernel = brick.wall_rgb if more else brick.wall
    calls = {
        "weft": lambda: kernel(tile, out, tw // 2, 16, 24) or out,
        "C++": calling(
            "wall", tile, own, th, tw, h, w, wide, tw // 2, 16, 24, stream, torch.get_num_threads()
        ),
    }
    return {**calls, "fill_": calling_for_time(filled.fill_, 1.0)}


@row("brick wall 304 x 288")
def _() -> Calls:
    return _wall(48, 96, 304, 288, stream=False)


@row("brick wall 3000 x 4000")
def _() -> Calls:
    return _wall(250, 400, 3000, 4000, stream=True)


@row("brick wall 3000 x 4000 x 3")
def _() -> Calls:
    return _wall(250, 400, 3000, 4000, 3, stream=True)


@row("brick wall 1080 x 1728 int32, Taichi's spelling")
def _() -> Calls:
    tile = brick_wall.brick(brick_wall.photograph(), 144, 288, mortar=6)
    first, second = (torch.empty(1080, 1728, dtype=torch.int32) for _ in range(2))
    size = brick_wall.image_height, brick_wall.image_width
    wanted = brick_wall.brick_wall(tile, *size, 144, 36, 96)
    own = torch.empty_like(wanted)
    del second
    return {
        "weft": lambda: brick_wall.ti_pad(first, tile) or first,
        "given": lambda: spelled(first, tile, 144, 36, 96) or first,
        "//": lambda: brick.wall(tile, own, 144, 36, 96) or own,
    }


# -- what memory is waited for


@weft.kernel
def added(x, y, out):
    for i in range(out.shape[0]):
        out[i] = x[i] + y[i]


@weft.kernel
def stencil(x, out):
    for i, j in weft.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
        out[i, j] = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@weft.kernel
def normalised(x, w, out):
    n = out.shape[1]
    for i in range(out.shape[0]):
        total = 0.0
        for j in range(n):
            total += x[i, j]
        mean = total / n
        square = 0.0
        for j in range(n):
            square += (x[i, j] - mean) ** 2
        scale = 1 / (square / n + 1e-5) ** 0.5
        for j in range(n):
            out[i, j] = (x[i, j] - mean) * scale * w[j]


def _stored(kernel: Any, *inputs: torch.Tensor) -> Calls:
    """The kernel into an image that is there; "usual": no stores go past the caches."""
    usual = kernel.changed({"streaming_bytes": 1 << 60})
    out, own = torch.zeros_like(inputs[0]), torch.zeros_like(inputs[0])
    return {
        "weft": lambda: kernel(*inputs, out) or out,
        "usual": lambda: usual(*inputs, own) or own,
    }


def _added(n: int) -> Calls:
    x, y = torch.rand(n), torch.rand(n)
    own = torch.empty(n)
    return {**_stored(added, x, y), "torch": lambda: torch.add(x, y, out=own)}


for _n in (1 << 18, 1 << 24):
    TABLE[f"add of {_n} floats"] = lambda n=_n: _added(n)
TABLE["5-point stencil 4096 x 4096"] = lambda: _stored(stencil, torch.rand(4096, 4096))
TABLE["norms of rows 32,768 x 768"] = lambda: _stored(
    normalised, torch.rand(32768, 768), torch.rand(768)
)


# -- rows and their gradients


def _backward(function: Any, theirs: Any, arguments: tuple[Any, ...]) -> Calls:
    mine, other = (passes(f, prepared(arguments))[1] for f in (function, theirs))
    return {"weft": lambda: mine()[0], "torch": lambda: other()[0]}


def _forward(function: Any, theirs: Any, arguments: tuple[Any, ...]) -> Calls:
    return {"weft": lambda: function(*arguments), "torch": lambda: theirs(*arguments)}


NORM = layer_norm.layer_norm, layer_norm.torch_layer_norm
SOFTMAX = softmax.softmax, softmax.torch_softmax
LOG_SUM_EXP = rows.log_sum_exp, lambda x: torch.logsumexp(x, 1)
SAMPLE = grid_sample.grid_sample, grid_sample.torch_grid_sample

TABLE["layer norm 4096 x 768"] = lambda: _forward(*NORM, layer_norm.inputs(4096, 768))
TABLE["layer norm 4096 x 768, backward"] = lambda: _backward(*NORM, layer_norm.inputs(4096, 768))
TABLE["softmax 1823 x 781"] = lambda: _forward(*SOFTMAX, softmax.inputs(1823, 781))
TABLE["softmax 1823 x 781, backward"] = lambda: _backward(*SOFTMAX, softmax.inputs(1823, 781))
TABLE["log-sum-exp 1823 x 781"] = lambda: _forward(*LOG_SUM_EXP, softmax.inputs(1823, 781))
TABLE["log-sum-exp 1823 x 781, backward"] = lambda: _backward(
    *LOG_SUM_EXP, softmax.inputs(1823, 781)
)
TABLE["grid sample 2 x 3 x 256 x 256"] = lambda: _forward(
    *SAMPLE, grid_sample.inputs(2, 3, 256, 256)
)
TABLE["grid sample 2 x 3 x 256 x 256, backward"] = lambda: _backward(
    *SAMPLE, grid_sample.inputs(2, 3, 256, 256)
)


# -- sums


@weft.kernel
def column_sums(x, s):
    for j in range(x.shape[1]):
        t = 0.0
        for i in range(x.shape[0]):
            t += x[i, j]
        s[j] = t


@weft.kernel
def scattered_sums(x, s):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            s[j] += x[i, j]


def _sums(n: int, m: int, kernel: Any) -> Calls:
    x, s, own = torch.rand(n, m), torch.zeros(m), torch.zeros(m)

    def mine() -> torch.Tensor:
        kernel(x, s.zero_())
        return s

    return {"weft": mine, "torch": lambda: torch.sum(x, 0, out=own)}


for _n, _m in ((4096, 4096), (1_000_000, 8), (1 << 22, 1)):
    TABLE[f"sums of columns {_n} x {_m}"] = lambda n=_n, m=_m: _sums(n, m, column_sums)
    TABLE[f"s[j] += x[i, j] {_n} x {_m}"] = lambda n=_n, m=_m: _sums(n, m, scattered_sums)


# -- scatters and serial chains


@weft.kernel
def histogram(index, bins):
    for i in range(index.shape[0]):
        bins[index[i]] += 1.0


def _histogram(n: int, m: int) -> Calls:
    index = torch.randint(0, m, (n,), generator=torch.Generator().manual_seed(0))
    mine, own = torch.zeros(m), torch.zeros(m)

    def by_weft() -> torch.Tensor:
        histogram(index, mine.zero_())
        return mine

    theirs = calling("histogram", index, own, n, m, torch.get_num_threads())
    return {
        "weft": by_weft,
        "C++": lambda: own.zero_() is own and theirs(),
        "bincount": lambda: torch.bincount(index, minlength=m),
    }


TABLE["histogram of 400,000, 1000 bins"] = lambda: _histogram(400_000, 1000)


@weft.kernel
def crc16(data, out):
    for r in range(data.shape[0]):
        crc: weft.i32 = 0xFFFF
        for i in range(data.shape[1]):
            value: weft.i32 = data[r, i]
            for _ in range(8):
                if (value & 1) ^ (crc & 1):
                    crc = (crc >> 1) ^ 0x8408
                else:
                    crc >>= 1
                value >>= 1
        crc = ~crc & 0xFFFF
        out[r] = ((crc << 8) | ((crc >> 8) & 0xFF)) & 0xFFFF


def _crc(n: int, m: int) -> Calls:
    data = torch.randint(0, 256, (n, m), dtype=torch.uint8)
    out, own = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
    return {
        "weft": lambda: crc16(data, out) or out,
        "C++": calling("crc16", data, own, n, m),
    }


TABLE["crc16 of 100,000 bytes"] = lambda: _crc(1, 100_000)
TABLE["crc16 of 64 x 10,000 bytes"] = lambda: _crc(64, 10_000)


# -- points, pixels, tables, dynamic programming


@weft.kernel
def forces(p, out):
    for i in range(p.shape[0]):
        ax, ay, az = 0.0, 0.0, 0.0
        for j in range(p.shape[0]):
            dx, dy, dz = p[j, 0] - p[i, 0], p[j, 1] - p[i, 1], p[j, 2] - p[i, 2]
            square = dx * dx + dy * dy + dz * dz + 1e-3
            w = 1.0 / (square * math.sqrt(square))
            ax += dx * w
            ay += dy * w
            az += dz * w
        out[i, 0], out[i, 1], out[i, 2] = ax, ay, az


@weft.kernel
def gray(x, out):
    for i in range(out.shape[0]):
        red, green, blue = weft.i32(x[i, 0]), weft.i32(x[i, 1]), weft.i32(x[i, 2])
        out[i] = (red * 77 + green * 150 + blue * 29) >> 8


@weft.kernel
def looked_up(x, table, out):
    for i in range(out.shape[0]):
        out[i] = table[x[i]]


@weft.kernel
def edits(a, b, out):
    for r in range(a.shape[0]):
        n = a.shape[1]
        row = weft.zeros(65, weft.i32)
        for j in range(n + 1):
            row[j] = j
        for i in range(1, n + 1):
            corner = row[0]
            row[0] = i
            for j in range(1, n + 1):
                above = row[j]
                differs = 1 if a[r, i - 1] != b[r, j - 1] else 0
                row[j] = min(min(row[j] + 1, row[j - 1] + 1), corner + differs)
                corner = above
        out[r] = row[n]


@weft.kernel
def added_rows(x, at, out):
    for i, j in x:
        out[at[i], j] += x[i, j]


def _into(kernel: Any, name: str, out: torch.Tensor, *inputs: torch.Tensor, n: int) -> Calls:
    """A kernel and a function of C++ that write what they are given last."""
    own = torch.zeros_like(out)
    return {
        "weft": lambda: kernel(*inputs, out) or out,
        "C++": calling(name, *inputs, own, n, torch.get_num_threads()),
    }


def _bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def _added_rows() -> Calls:
    x, at = torch.rand(20_000, 32), torch.randint(0, 500, (20_000,))
    out, own = torch.zeros(500, 32), torch.zeros(500, 32)
    return {
        "weft": lambda: added_rows(x, at, out.zero_()) or out,
        "torch": lambda: own.zero_().index_add_(0, at, x),
    }


TABLE["forces of 2000 points"] = lambda: _into(
    forces, "forces", torch.zeros(2000, 3), torch.randn(2000, 3), n=2000
)
TABLE["grey values of 1,000,000 pixels"] = lambda: _into(
    gray, "gray", _bytes(1_000_000), _bytes(1_000_000, 3), n=1_000_000
)
TABLE["table of bytes, 1,000,000"] = lambda: _into(
    looked_up, "looked_up", _bytes(1_000_000), _bytes(1_000_000), _bytes(256), n=1_000_000
)
TABLE["edit distances, 300 of 64"] = lambda: _into(
    edits, "edits", torch.zeros(300, dtype=torch.int32), _bytes(300, 64), _bytes(300, 64), n=300
)
TABLE["adding 20,000 rows of 32 into 500"] = _added_rows


# -- timing


def timed(calls: Calls, seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """The least milliseconds of each call, in turn."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(3):
                begin = clock()
                call()
                best[name] = min(best[name], (clock() - begin) * 1e3)
    return best


def agree(calls: Calls) -> Iterator[str]:
    """The peers whose numbers are not weft's."""
    mine = calls["weft"]().double().clone()
    for name, call in calls.items():
        theirs = call()
        if theirs is not None:
            scale = theirs.double().abs().max().item() or 1.0
            if (theirs.double() - mine).abs().max().item() / scale > 1e-4:
                yield name


def main() -> None:
    """Print the table."""
    global LIBRARY
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows whose names contain one of these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call of a row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of the library, which has not begun
    LIBRARY = by_hand()
    alone = options.threads == 1
    clock = time.thread_time if alone else time.perf_counter
    what = "1 thread, processor time" if alone else f"{options.threads} threads"
    print(f"{what}, least of many, ms\n\n| row | weft | others | ratio |")
    print("| --- | --- | --- | --- |")
    for name, make in TABLE.items():
        if options.names and not any(wanted in name for wanted in options.names):
            continue
        calls = make()
        wrong = list(agree(calls))
        assert not wrong, f"{name}: not the numbers of {wrong}"
        best = timed(calls, options.seconds, clock)
        mine = best.pop("weft")
        others = "; ".join(f"{peer} {ms:.3g}" for peer, ms in best.items())
        print(f"| {name} | {mine:.3g} | {others} | {mine / min(best.values()):.2f} |", flush=True)


if __name__ == "__main__":
    main()
