"""Kernels on a CUDA device: are they right, and how fast are they?

``python -m benchmarks.gpu_check`` runs every section in a process of its own (an error on a GPU
ends all that comes after it in a process), correctness first, and prints a table last. With
``--only math,brick`` just these; ``--list`` names them. Figures also go to ``out/gpu_check.json``,
or into the folder named by the variable OUT.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from benchmarks import nests as written
from benchmarks.rows import column_sums, row_sums
from examples import brick_wall, causal_conv, gallery, layer_norm, softmax
from weft.tuning.measure import measure

ROOT = Path(__file__).parent.parent
SECTIONS: dict[str, Callable[[], None]] = {}
failures: list[str] = []


def section(function: Callable[[], None]) -> Callable[[], None]:
    SECTIONS[function.__name__] = function
    return function


def attempt(name: str, check: Callable[[], object]) -> None:
    """Runs one check; what it raises is printed, and the next one runs."""
    try:
        check()
        torch.cuda.synchronize()
        print(f"  ok    {name}", flush=True)
    except Exception as error:
        failures.append(name)
        print(f"  WRONG {name}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
        print("".join(traceback.format_exc().splitlines(keepends=True)[-12:]), flush=True)


def figure(table: str, row: str, value: float, unit: str, note: str = "") -> None:
    """One figure for the table at the end."""
    print("FIGURE " + json.dumps([table, row, value, unit, note]), flush=True)


def on_gpu(value: Any) -> Any:
    """The same tensor on the device, with the same strides."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() == 0:
        return value.cuda()
    room = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return room.copy_(value)


def same(kernel: weft.Kernel, *args: Any, tolerance: float = 1e-4) -> None:
    """Runs ``kernel`` on the CPU and on the device, on copies; AssertionError where they differ."""
    device = [on_gpu(a) for a in args]
    expected, found = kernel(*args), kernel(*device)
    pairs = list(zip(args, device, strict=True))
    pairs += (
        list(zip(expected, found, strict=True))
        if isinstance(expected, tuple)
        else [(expected, found)]
    )
    for e, f in pairs:
        if isinstance(e, torch.Tensor):
            assert f.is_cuda, "a result is not on the device"
            assert e.dtype == f.dtype, (e.dtype, f.dtype)
            torch.testing.assert_close(f.cpu(), e, rtol=tolerance, atol=tolerance, equal_nan=True)


# -- correctness


@section
def about() -> None:
    """What this machine is."""
    import llvmlite

    from weft.codegen import libdevice, ptx
    from weft.runtime.gpu import architecture

    name = torch.cuda.get_device_name()
    print(f"{name}, {torch.cuda.device_count()} device(s), torch {torch.__version__}, llvmlite "
          f"{llvmlite.__version__}, Python {sys.version.split()[0]}")  # fmt: skip
    attempt(
        "architecture", lambda: print("  ", architecture(0), torch.cuda.get_device_capability())
    )
    attempt("libdevice", lambda: print("  ", libdevice.path()))
    attempt("ptxas", lambda: print("  ", ptx.ptxas()))
    x = torch.arange(10.0, device="cuda")
    attempt("the first kernel", lambda: torch.testing.assert_close(gallery.axpy(2.0, x, x), 3 * x))


@section
def gallery_kernels() -> None:
    """The gallery on the device against the CPU, small and large, even and odd sizes."""
    torch.manual_seed(0)
    r = torch.randn
    for n in (1, 3, 257, 1024, 100_003):
        attempt(f"axpy {n}", lambda n=n: same(gallery.axpy, 2.0, r(n), r(n)))
        attempt(f"axpy, shifted {n}", lambda n=n: same(gallery.axpy, 2.0, r(n + 1)[1:], r(n)))
        attempt(f"total {n}", lambda n=n: same(gallery.total, r(n), tolerance=1e-3))
        attempt(f"largest {n}", lambda n=n: same(gallery.largest, r(n)))
        attempt(f"newton_sqrt {n}", lambda n=n: same(gallery.newton_sqrt, torch.rand(n), 1e-6))
    for rows, cols in ((3, 3), (37, 44), (64, 63), (1000, 1028), (5, 2048)):
        attempt(f"stencil {rows}x{cols}", lambda a=rows, b=cols: same(gallery.stencil, r(a, b)))
        attempt(f"softmax {rows}x{cols}", lambda a=rows, b=cols: same(softmax.softmax, r(a, b)))
        attempt(
            f"running_sum {rows}x{cols}",
            lambda a=rows, b=cols: same(gallery.running_sum, r(a, b), tolerance=1e-3),
        )
        attempt(f"transpose {rows}x{cols}", lambda a=rows, b=cols: same(gallery.transpose, r(a, b)))
        attempt(
            f"layer_norm {rows}x{cols}",
            lambda a=rows, b=cols: same(layer_norm.layer_norm, r(a, b), r(b), r(b), 1e-5),
        )
        attempt(
            f"leaky_relu_ {rows}x{cols}",
            lambda a=rows, b=cols: same(gallery.leaky_relu_, r(a, 2 * b)[:, ::2], 0.1),
        )
        attempt(f"gray {rows}x{cols}", lambda a=rows, b=cols: same(
            gallery.gray, torch.randint(0, 255, (a, b, 3), dtype=torch.uint8)))  # fmt: skip
        attempt(
            f"matmul {rows}x{cols}",
            lambda a=rows, b=cols: same(gallery.matmul, r(a, b), r(b, 19), tolerance=1e-2),
        )
    attempt("resize", lambda: same(gallery.resize, torch.rand(9, 7, 3), 120, 111))
    attempt(
        "mandelbrot",
        lambda: same(
            gallery.mandelbrot, torch.linspace(-2, 1, 200), torch.linspace(-1, 1, 150), 100
        ),
    )
    for n in (1000, 1_000_003):
        attempt(f"histogram {n}", lambda n=n: same(gallery.histogram, torch.rand(n), 256, 0.0, 1.0))
        attempt(
            f"histogram of many bins {n}",
            lambda n=n: same(gallery.histogram, torch.rand(n), 10_000, 0.0, 1.0),
        )
    tile = torch.arange(30 * 44, dtype=torch.int32).view(30, 44)
    for height, width in ((97, 131), (512, 1024)):
        attempt(f"brick_wall {height}x{width}", lambda h=height, w=width: same(
            brick_wall.brick_wall, tile, h, w, 22, 3, 7))  # fmt: skip
        attempt(f"brick_wall, narrow tile {height}x{width}", lambda h=height, w=width: same(
            brick_wall.brick_wall, tile[:, :3].contiguous(), h, w, 1, 3, 7))  # fmt: skip
    for b, c, t in ((1, 1, 1), (2, 3, 17), (3, 5, 129)):
        attempt(f"causal_conv {b},{c},{t}", lambda b=b, c=c, t=t: same(
            causal_conv.causal_conv, r(c, t), r(b, c, t), 0.1, tolerance=1e-3))  # fmt: skip


UNARY = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "floor",
    "ceil",
    "trunc",
)


def source_kernel(text: str) -> weft.Kernel:
    """A kernel from text."""
    from tests.fuzz.check import function

    return weft.kernel(function(text))


@section
def mathematics() -> None:
    """Every function of one number against float64, in float32 and float64."""
    for name in UNARY:
        text = (
            "import math\ndef kernel(x, out):\n    for i in range(x.shape[0]):\n"
            f"        out[i] = math.{name}(x[i])\n"
        )

        def check(text: str = text, name: str = name) -> None:
            kernel = source_kernel(text)
            for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
                low, high = {
                    "acosh": (1, 9),
                    "atanh": (-1, 1),
                    "asin": (-1, 1),
                    "acos": (-1, 1),
                }.get(name, (0.01, 9) if name.startswith(("log", "sqrt")) else (-5, 5))
                x = torch.rand(4099, dtype=dtype, device="cuda") * (high - low) + low
                out = torch.full_like(x, math.nan)
                kernel(x, out)
                function = getattr(torch, name, None)
                wide = x.double()
                expected = (
                    (torch.sign(wide) * wide.abs() ** (1 / 3))
                    if function is None
                    else function(wide)
                )
                torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)

        attempt(f"math.{name}", check)

    def mixed() -> None:
        kernel = source_kernel(
            "def kernel(x, y, out):\n    for i in range(x.shape[0]):\n"
            "        out[0, i] = x[i] ** y[i]\n        out[1, i] = x[i] % y[i]\n"
            "        out[2, i] = max(x[i], y[i])\n        out[3, i] = x[i] // y[i]\n"
        )
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            x = (torch.rand(1001) * 5 + 0.1).to(dtype)
            y = (torch.rand(1001) * 3 + 0.5).to(dtype)
            same(
                kernel,
                x,
                y,
                torch.empty(4, 1001, dtype=dtype),
                tolerance=2e-2 if dtype.itemsize == 2 else 1e-5,
            )

    attempt("pow, %, max, // in all float dtypes", mixed)


@section
def random_kernels() -> None:
    """Random kernels on the device against the undecorated Python."""
    from tests.fuzz import on_cuda

    count, wrong = int(os.environ.get("WEFT_FUZZ_CUDA", "300")), 0
    until = time.monotonic() + 150
    done = 0
    for seed in range(count):
        if wrong >= 5 or time.monotonic() > until:
            break
        done += 1
        try:
            on_cuda.outcome("plain", seed, "cuda")
        except Exception as error:
            wrong += 1
            failures.append(f"random kernel {seed}")
            print(f"  WRONG seed {seed}: {type(error).__name__}: {str(error)[:2500]}", flush=True)
    print(f"  {done - wrong} of {done} random kernels agree", flush=True)


@weft.kernel
def accumulate(x, where, out):
    for i in range(x.shape[0]):
        out[where[i]] += x[i]


@weft.kernel
def far(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[(i + n) % x.shape[0]]
    return out


@weft.kernel(debug=True)
def reach(x, n: int):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i + n]
    return out


@weft.kernel
def positive(x):
    s = 0.0
    for i in range(x.shape[0]):
        assert x[i] >= 0, "negative"
        s += x[i]
    return s


@weft.kernel
def speak(x):
    for i in range(x.shape[0]):
        if i < 2:
            print("element", i, x[i], x[i] > 0.5)


@section
def launching() -> None:
    """Atomics, checks, streams, graphs, threads, index widths, several devices."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8,
                  torch.int16, torch.int32, torch.int64, torch.uint8):  # fmt: skip
        for n in (200, 40_000):
            if n < 1000:
                x = torch.randint(0, 2, (n,)).to(dtype)
            else:
                x = torch.zeros(n).to(dtype).index_fill_(0, torch.arange(0, n, 4001), 1)
            attempt(f"atomics {dtype} {n}", lambda x=x, n=n, dtype=dtype: same(
                accumulate, x, torch.randint(0, 7, (n,)), torch.zeros(9, dtype=dtype)))  # fmt: skip
    attempt(
        "64-bit numbers", lambda: [same(far, torch.randn(100), n) for n in (3, 1 << 33, -(1 << 40))]
    )

    def bounds() -> None:
        x = torch.arange(5.0, device="cuda")
        assert reach(x, 0).tolist() == [0, 1, 2, 3, 4]
        try:
            reach(x, 1)
        except weft.KernelIndexError as error:
            print("   ", str(error).splitlines()[0])
        else:
            raise AssertionError("a subscript out of range was not noticed")
        assert reach(x, 0).tolist() == [0, 1, 2, 3, 4]

    attempt("debug mode reports a subscript and the process survives", bounds)

    def assertion() -> None:

        assert positive(torch.ones(100_000, device="cuda")).item() == 100_000
        try:  # by the launch itself, where the record is there already
            positive(-torch.ones(100_000, device="cuda"))
            weft.sync()
        except weft.KernelAssertionError as error:
            print("   ", str(error).splitlines()[0])
        else:
            raise AssertionError("an assertion that failed was not noticed")

    attempt("assert", assertion)
    attempt("print", lambda: (speak(torch.rand(5, device="cuda")), torch.cuda.synchronize()))

    def streams() -> None:
        x = torch.randn(1 << 20, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y = x * 2
            z = gallery.axpy(1.0, y, x)
            s = gallery.total(z)
        stream.synchronize()
        torch.testing.assert_close(z, 3 * x)
        torch.testing.assert_close(s, z.sum(), rtol=1e-3, atol=1e-1)

    attempt("streams", streams)

    def graphs() -> None:
        x = torch.randn(1 << 18, device="cuda")
        gallery.axpy(2.0, x, x), gallery.total(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = gallery.axpy(2.0, x, x)
            s = gallery.total(y)
        for k in range(3):
            x.copy_(torch.randn(1 << 18))
            graph.replay()
            torch.testing.assert_close(y, 3 * x)
            torch.testing.assert_close(
                s.double(), y.double().sum(), rtol=1e-3, atol=1e-1, msg=f"replay {k}"
            )

    attempt("CUDA graphs", graphs)

    def same_bits() -> None:
        x = torch.randn(10_000_019, device="cuda")
        sums = {gallery.total(x).item() for _ in range(10)}
        assert len(sums) == 1, sums
        assert abs(sums.pop() - x.double().sum().item()) < 1.0

    attempt("a sum has the same bits each time", same_bits)

    def threads() -> None:
        errors: list[Exception] = []

        def work() -> None:
            try:
                x = torch.randn(1000, device="cuda")
                for _ in range(200):
                    y = gallery.axpy(2.0, x, x)
                torch.testing.assert_close(y, 3 * x)
            except Exception as error:
                errors.append(error)

        running = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in running]
        [t.join() for t in running]
        if errors:
            raise errors[0]

    attempt("threads", threads)

    def devices() -> None:
        if torch.cuda.device_count() < 2:
            print("    one device: not checked")
            return
        for k in range(torch.cuda.device_count()):
            x = torch.randn(1000, device=f"cuda:{k}")
            torch.testing.assert_close(gallery.axpy(2.0, x, x), 3 * x)
            torch.testing.assert_close(gallery.total(x), x.sum(), rtol=1e-3, atol=1e-3)

    attempt("several devices", devices)

    def large() -> None:
        n = (1 << 31) + 1000
        x = torch.ones(n, dtype=torch.int8, device="cuda")
        out = torch.zeros(n, dtype=torch.int8, device="cuda")
        kernel = source_kernel(
            "def kernel(x, out):\n    for i in range(x.shape[0]):\n        out[i] = x[i] + 1\n"
        )
        kernel(x, out)
        assert out[-1].item() == 2
        assert out[: 1 << 20].sum().item() == 2 << 20

    attempt("more than 2**31 elements", large)
    attempt(
        "both devices in turn",
        lambda: [same(gallery.axpy, 1.0, torch.randn(10), torch.randn(10)) for _ in range(3)],
    )

    def stages() -> None:
        x, y = torch.randn(9, device="cuda"), torch.randn(9, device="cuda")
        print("    stages:", list(gallery.axpy.inspect(1.0, x, y).loops[0].texts)[-5:])

    attempt("inspect", stages)

    def compiled() -> None:
        x = torch.randn(100, device="cuda")
        f = torch.compile(lambda x: gallery.axpy(2.0, x, x) + 1, fullgraph=True)
        torch.testing.assert_close(f(x), 3 * x + 1)

    attempt("torch.compile(fullgraph=True)", compiled)


# -- speed


def timed(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Median of event-timed launches, in milliseconds: of the device alone."""
    for _ in range(3):
        call()
    return measure([call], torch.device("cuda"), seconds=seconds)[0]


def alternating(calls: dict[str, Callable[[], object]], rounds: int = 12) -> dict[str, float]:
    """Medians as of ``timed``, the calls taking turns: for differences of some percent."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for k in range(rounds):
        for name in sorted(calls, reverse=k % 2 == 1):
            samples[name].append(timed(calls[name], 0.02))
    return {name: statistics.median(found) for name, found in samples.items()}


def host_time(call: Callable[[], object], rounds: int = 7, count: int = 500) -> float:
    """Microseconds of the calling thread for one call, the device kept busy with nothing else."""
    best = math.inf
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - begin) / count * 1e6)
        torch.cuda.synchronize()
    return best


def bandwidth(table: str, row: str, ms: float, moved: int, copy: float) -> None:
    rate = moved / ms / 1e6
    figure(table, row, ms, "ms", f"{rate:.0f} GB/s, {rate / copy:.1%} of copy")


def copy_rate() -> float:
    x = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    ms = timed(lambda: y.copy_(x))
    rate = 2 * x.nbytes / ms / 1e6
    figure("limits", "copy", ms, "ms", f"{rate:.0f} GB/s read and written")
    return rate


@weft.kernel
def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] + y[i]


@weft.kernel
def square(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        out[i, j] = x[i, j] * x[i, j]


@weft.kernel
def five_points(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = x.shape
    for i, j in weft.ndrange((1, rows - 1), (1, cols - 1)):
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@section
def elementwise() -> None:
    copy = copy_rate()
    n = 1 << 27
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    out = torch.empty_like(x)
    add(x, y, out)
    torch.testing.assert_close(out, x + y)
    bandwidth("vector add, 2**27 float32", "weft", timed(lambda: add(x, y, out)), 12 * n, copy)
    bandwidth(
        "vector add, 2**27 float32", "torch", timed(lambda: torch.add(x, y, out=out)), 12 * n, copy
    )
    a, b = x[: 8192 * 8192].view(8192, 8192), out[: 8192 * 8192].view(8192, 8192)
    square(a, b)
    torch.testing.assert_close(b, a * a)
    m = 8192 * 8192
    bandwidth("square 8192²", "weft", timed(lambda: square(a, b)), 8 * m, copy)
    bandwidth("square 8192²", "torch", timed(lambda: torch.square(a, out=b)), 8 * m, copy)
    for side in (4096, 8192, 16384):
        p, q = torch.randn(side, side, device="cuda"), torch.zeros(side, side, device="cuda")
        five_points(p, q)
        want = 0.2 * (p[1:-1, 1:-1] + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])
        torch.testing.assert_close(q[1:-1, 1:-1], want)
        title, moved = f"5-point stencil {side}²", 8 * side * side
        bandwidth(title, "copy of this size", timed(functools.partial(q.copy_, p)), moved, copy)
        bandwidth(
            f"5-point stencil {side}²",
            "weft",
            timed(functools.partial(five_points, p, q)),
            8 * side * side,
            copy,
        )


@section
def reductions() -> None:
    copy = copy_rate()
    x = torch.randn(100_000_000, device="cuda")
    assert abs(gallery.total(x).item() - x.double().sum().item()) < 5
    bandwidth("sum of 1e8 float32", "weft", timed(lambda: gallery.total(x)), x.nbytes, copy)
    bandwidth("sum of 1e8 float32", "torch", timed(lambda: x.sum()), x.nbytes, copy)
    bins = torch.randint(0, 256, (100_000_000,), dtype=torch.int32, device="cuda")
    kernel = source_kernel(
        "import torch\ndef kernel(x):\n"
        "    counts = torch.zeros(256, dtype=torch.int32, device=x.device)\n"
        "    for i in range(x.shape[0]):\n        counts[x[i]] += 1\n    return counts\n"
    )
    assert torch.equal(kernel(bins).long(), torch.bincount(bins, minlength=256))
    bandwidth(
        "histogram of 1e8 int32, 256 bins", "weft", timed(lambda: kernel(bins)), bins.nbytes, copy
    )
    bandwidth("histogram of 1e8 int32, 256 bins", "torch.bincount",
              timed(lambda: torch.bincount(bins, minlength=256)), bins.nbytes, copy)  # fmt: skip
    bandwidth("histogram of 1e8 int32, 256 bins", "torch.histc of float",
              timed(lambda: torch.histc(x, 256, -4, 4)), bins.nbytes, copy)  # fmt: skip
    for m, n in ((1 << 24, 1), (1 << 23, 2), (5_592_405, 3), (1_000_000, 8), (1 << 19, 32),
                 (508_400, 33), (1 << 16, 256), (21_845, 768), (4096, 4096),
                 (256, 1 << 16)):  # fmt: skip
        x = torch.randn(m, n, device="cuda")
        compared(f"column sums of {m} x {n} float32", column_sums, lambda x: x.sum(0), x)
    for m, n in ((1, 1 << 24), (8, 1 << 21), (64, 1 << 18), (1024, 1 << 14)):
        x = torch.randn(m, n, device="cuda")
        compared(f"row sums of {m} x {n} float32", row_sums, lambda x: x.sum(1), x)
        compared(f"softmax of {m} x {n} float32", softmax.softmax, lambda x: x.softmax(1), x)


def compared(name: str, mine: weft.Kernel, other: Callable[..., Any], x: torch.Tensor) -> None:
    """Figures of a kernel beside torch's operator, which it agrees with, and with itself to the
    bit."""
    found = mine(x)
    wide = other(x.double())
    most = 1e-6 * max(wide.abs().max().item(), x.shape[0] ** 0.5, x.shape[1] ** 0.5)
    torch.testing.assert_close(found.double(), wide, rtol=1e-5, atol=most)
    assert torch.equal(found, mine(x))
    times = [timed(lambda call=call: call(x), 0.1) for call in (mine, other)]
    figure(name, "weft", times[0], "ms")
    figure(name, "torch", times[1], "ms", f"weft takes {times[0] / times[1]:.2f} of it")


TRITON_BRICK = """
import triton
import triton.language as tl

@triton.jit
def brick(tile, out, height, width, TH: tl.constexpr, TW: tl.constexpr, offset, ph, pw,
          BLOCK: tl.constexpr):
    row = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = height - 1 - row + ph
    course = y // TH
    # Operands are shifted to be positive: triton's // rounds towards zero.
    x = cols - pw - course * offset + 4096 * TW
    brick = x // TW
    value = tl.load(tile + (TH - 1 - (y - course * TH)) * TW + x - brick * TW)
    tl.store(out + row * width + cols, value, mask=cols < width)
"""


@section
def brick() -> None:
    tile = torch.arange(256 * 512, dtype=torch.int32, device="cuda").view(256, 512)
    size, offset = 4096, 256
    wall = brick_wall.brick_wall
    out = wall(tile, size, size, offset, 36, 96)
    expected = wall(tile.cpu(), size, size, offset, 36, 96)
    assert torch.equal(out.cpu(), expected)
    image = torch.empty_like(out)
    name = "brick wall 4096² int32"
    figure(name, "fill (floor)", timed(lambda: image.fill_(3)), "ms")
    figure(
        name,
        "weft",
        timed(lambda: wall(tile, size, size, offset, 36, 96)),
        "ms",
        "allocates its output",
    )

    @weft.kernel
    def given(
        image: torch.Tensor, tile: torch.Tensor, height: int, width: int, offset: int, ph: int,
        pw: int,
    ) -> None:  # fmt: skip
        tile_height, tile_width = tile.shape
        for row, col in weft.ndrange(height, width):
            x = col - pw
            y = height - 1 - row + ph
            course = y // tile_height
            brick = (x - course * offset) // tile_width
            image[row, col] = tile[
                tile_height - 1 - (y - course * tile_height),
                x - course * offset - brick * tile_width,
            ]

    given(image, tile, size, size, offset, 36, 96)
    assert torch.equal(image.cpu(), expected)
    figure(name, "weft, output given",
           timed(lambda: given(image, tile, size, size, offset, 36, 96)), "ms")  # fmt: skip
    narrow = torch.arange(30 * 44, dtype=torch.int32, device="cuda").view(30, 44)
    figure(name, "weft, output given, tiles of 30 by 44",
           timed(lambda: given(image, narrow, size, size, 22, 3, 7)), "ms")  # fmt: skip
    for dtype in (torch.uint8, torch.float16):
        texture, small = tile.to(dtype), image.to(dtype)
        figure(name.replace("int32", str(dtype).removeprefix("torch.")), "weft, output given",
               timed(lambda t=texture, s=small: given(s, t, size, size, offset, 36, 96)),
               "ms")  # fmt: skip
    part = tile[:144, :288].contiguous()
    saved_size = brick_wall.image_height, brick_wall.image_width
    brick_wall.image_height = brick_wall.image_width = size
    figure(name, "weft, as printed for Taichi, tiles of 144 by 288",
           timed(functools.partial(brick_wall.ti_pad, image, part)), "ms")  # fmt: skip
    brick_wall.image_height, brick_wall.image_width = saved_size
    try:
        import triton

        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "brick_triton.py").write_text(TRITON_BRICK)
            sys.path.insert(0, folder)
            import brick_triton

            others: dict[str, Callable[[], object]] = {}
            for block in (256, 512, 1024, 2048, 4096):
                for warps in (2, 4, 8):

                    def launch(block: int = block, warps: int = warps) -> None:
                        brick_triton.brick[(triton.cdiv(size, block), size)](
                            tile,
                            image,
                            size,
                            size,
                            256,
                            512,
                            offset,
                            36,
                            96,
                            BLOCK=block,
                            num_warps=warps,
                        )

                    launch()
                    assert torch.equal(image.cpu(), expected), "the triton kernel is wrong"
                    others[f"triton, blocks of {block}, {warps} warps"] = launch
            times = alternating(others, 3)
            best = min(times, key=lambda config: times[config])
            turns = {"weft": lambda: given(image, tile, size, size, offset, 36, 96),
                     best: others[best], "fill": lambda: image.fill_(3)}  # fmt: skip
            for row, ms in alternating(turns).items():
                figure(name, f"in turn: {row}", ms, "ms", "best of 15" if row == best else "")
    except Exception as error:
        print(f"  no triton figure: {type(error).__name__}: {str(error)[:400]}")
    from weft.schedule import grid

    saved = grid._block
    for width in (32, 64, 128, 256):
        grid._block = lambda *_, width=width, **__: (width, 256 // width, 1)
        kernel = weft.kernel(wall.function)
        kernel(tile, size, size, offset, 36, 96)
        figure(
            name,
            f"weft, blocks of {width} x {256 // width}",
            timed(functools.partial(kernel, tile, size, size, offset, 36, 96), 0.1),
            "ms",
        )
    grid._block = saved


CUDA_CONV = """
extern "C" __global__ void conv(const float* __restrict__ w, const float* __restrict__ k,
                                const float* __restrict__ eps, float* __restrict__ out,
                                int B, int C, int T) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y, b = blockIdx.z;
    if (t >= T) return;
    float s = *eps;
    for (int u = 0; u <= t; ++u) s += w[c * T + T - 1 - t + u] * k[(b * C + c) * T + u];
    out[(b * C + c) * T + t] = s;
}
"""


@section
def conv() -> None:
    B, C, T = 32, 768, 768
    w, k = torch.randn(C, T, device="cuda"), torch.randn(B, C, T, device="cuda")
    out = causal_conv.causal_conv(w, k, 0.1)
    few = causal_conv.causal_conv(w[:3].cpu(), k[:2, :3].cpu(), 0.1)
    torch.testing.assert_close(out[:2, :3].cpu(), few, rtol=1e-3, atol=1e-3)
    name = f"causal_conv B={B} C={C} T={T} float32"
    figure(name, "weft", timed(lambda: causal_conv.causal_conv(w, k, 0.1)), "ms")
    try:
        plain = torch.cuda._compile_kernel(CUDA_CONV, "conv")
        other, eps = torch.empty_like(out), torch.tensor([0.1], device="cuda")
        for threads in (128, 256):

            def launch(threads: int = threads) -> None:
                plain(grid=(-(-T // threads), C, B), block=(threads, 1, 1),
                      args=(w, k, eps, other, B, C, T))  # fmt: skip

            launch()
            torch.testing.assert_close(other, out, rtol=1e-3, atol=1e-3)
            figure(name, f"CUDA C++ as written, {threads} threads", timed(launch), "ms")
    except Exception as error:
        print(f"  no CUDA C++ figure: {type(error).__name__}: {str(error)[:600]}")


CUDA_CONV_GRADIENT = """
extern "C" __global__ void d_k(const float* __restrict__ w, const float* __restrict__ g,
                               float* __restrict__ out, int B, int C, int T) {
    int u = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y, b = blockIdx.z;
    if (u >= T) return;
    float s = 0;
    for (int t = u; t < T; ++t) s += g[(b * C + c) * T + t] * w[c * T + T - 1 - t + u];
    out[(b * C + c) * T + u] = s;
}
extern "C" __global__ void d_w(const float* __restrict__ k, const float* __restrict__ g,
                               float* __restrict__ out, int B, int C, int T) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y, b = blockIdx.z;
    if (j >= T) return;
    float s = 0;
    for (int t = T - 1 - j; t < T; ++t) {
        s += g[(b * C + c) * T + t] * k[(b * C + c) * T + t + j - T + 1];
    }
    out[(b * C + c) * T + j] = s;
}
"""


@section
def conv_gradient() -> None:
    B, C, T = 32, 768, 768
    name = f"gradient of causal_conv B={B} C={C} T={T} float32"
    w = torch.randn(C, T, device="cuda", requires_grad=True)
    k = torch.randn(B, C, T, device="cuda", requires_grad=True)
    g = torch.randn(B, C, T, device="cuda")
    out = causal_conv.causal_conv(w, k, 0.1)
    found = torch.autograd.grad(out, (w, k), g, retain_graph=True)
    padded = torch.nn.functional.pad(k, (T - 1, 0))
    expected = 0.1 + torch.nn.functional.conv1d(padded, w[:, None], groups=C)
    exact = torch.autograd.grad(expected, (w, k), g, retain_graph=True)
    for mine, other in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-2)
    for leaves, label in (((w, k), "w and k"), ((w,), "w"), ((k,), "k")):
        gradient = functools.partial(torch.autograd.grad, out, leaves, g, retain_graph=True)
        figure(name, f"weft, of {label}", timed(gradient), "ms")
    gradient = functools.partial(torch.autograd.grad, expected, (w, k), g, retain_graph=True)
    figure(name, "PyTorch, of w and k", timed(gradient), "ms")
    try:
        for_k = torch.cuda._compile_kernel(CUDA_CONV_GRADIENT, "d_k")
        for_w = torch.cuda._compile_kernel(CUDA_CONV_GRADIENT, "d_w")
    except Exception as error:
        print(f"  no CUDA C++ figure: {type(error).__name__}: {str(error)[:600]}")
        return
    parts, other = torch.empty_like(k), torch.empty_like(k)
    plain_w, plain_k = w.detach(), k.detach()

    def launch() -> torch.Tensor:
        shape = {"grid": (-(-T // 256), C, B), "block": (256, 1, 1)}
        for_k(**shape, args=(plain_w, g, other, B, C, T))
        for_w(**shape, args=(plain_k, g, parts, B, C, T))
        return parts.sum(0)

    torch.testing.assert_close(launch(), found[0], rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(other, found[1], rtol=1e-3, atol=1e-2)
    figure(name, "CUDA C++ as written, of w and k", timed(launch), "ms")


@weft.kernel
def taken(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of ``table`` (rows, width), as ``torch.nn.functional.embedding`` takes them."""
    out = table.new_empty(index.shape[0], table.shape[1])
    for i, j in weft.ndrange(index.shape[0], table.shape[1]):
        out[i, j] = table[index[i], j]
    return out


@section
def embedding() -> None:
    """The gradient of an embedding: with atomics, and in an order that is always the same."""
    for count, rows, width in ((200_000, 50_000, 128), (65_536, 50_000, 512)):
        name = f"gradient of an embedding, {rows} x {width}, {count} rows"
        table = torch.randn(rows, width, device="cuda", requires_grad=True)
        index = torch.randint(0, rows, (count,), device="cuda")
        g = torch.randn(count, width, device="cuda")
        exact = torch.zeros(rows, width, device="cuda", dtype=torch.float64)
        exact.index_add_(0, index, g.double())
        calls = {"weft": taken, "torch": lambda t, i: torch.nn.functional.embedding(i, t)}
        for label, call in calls.items():
            for deterministic in (False, True):
                torch.use_deterministic_algorithms(deterministic)
                try:
                    gradient = functools.partial(
                        torch.autograd.grad, call(table, index), table, g, retain_graph=True
                    )
                    (found,), (again,) = gradient(), gradient()
                    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
                    assert not deterministic or torch.equal(found, again)
                    how = ", deterministic" if deterministic else ""
                    figure(name, label + how, timed(gradient), "ms")
                finally:
                    torch.use_deterministic_algorithms(False)


def _rows(pick: Callable[[str], bool], others: Callable[[Any], dict[str, Any]]) -> None:
    """Loops inside of a parallel loop that go along rows, and columns; gradients, too."""
    from benchmarks.rows import cases

    for case in cases():
        if not pick(case.name):
            continue
        calls = {"weft": case.weft, "torch": case.torch, **others(case)}
        outs = {who: call(*case.args) for who, call in calls.items()}
        loose = 2e-2 if outs["weft"].dtype == torch.bfloat16 else 1e-3
        g = torch.randn_like(outs["weft"])
        found: dict[str, Any] = {}
        for who, out in outs.items():
            torch.testing.assert_close(out, outs["torch"], rtol=loose, atol=loose)
            with torch.no_grad():
                call = functools.partial(calls[who], *case.args)
                figure(case.name, who, timed(call, 0.05), "ms")
            if not case.leaves:
                continue
            call = functools.partial(torch.autograd.grad, out, case.leaves, g, retain_graph=True)
            found[who] = call()
            for mine, other in zip(found[who], found.get("torch", ()), strict=False):
                scale = other.double().square().mean().sqrt().item()
                torch.testing.assert_close(mine, other, rtol=loose, atol=loose * max(scale, 1))
            figure(case.name, f"{who}, backward", timed(call, 0.05), "ms")


@section
def rows() -> None:
    _rows(lambda name: True, lambda case: {})


@section
def rows_compiled() -> None:
    """Beside torch.compile."""
    _rows(
        lambda name: "sums" not in name,
        lambda case: {"torch.compile": torch.compile(case.torch, dynamic=False)},
    )


@section
def nests() -> None:
    """Loops written as nested ranges, in turn with the same as a box."""
    for name, (nest, box) in written.KERNELS.items():
        for n in (1024, 4096) if name in ("convolution", "stencil") else (512, 2048):
            given = [t.cuda() for t in written.inputs(name, n)]
            calls = {"nest": functools.partial(nest, *given), "box": functools.partial(box, *given)}
            expected = written.reference(name, n).float()
            for call in calls.values():
                given[-1].fill_(math.nan)
                call()
                torch.testing.assert_close(given[-1].cpu(), expected, rtol=1e-3, atol=1e-2)
            for who, ms in alternating(calls, 6).items():
                figure(f"{name} {n} x {n}", who, ms, "ms")


@section
def scans() -> None:
    """The selective scan of Mamba and its gradient, beside CUDA C++ by hand."""
    from benchmarks import selective_scan as scan

    name, args = "selective scan, B=8 L=4096 D=2048 N=16", scan.inputs(8, 4096, 2048, 16)
    by_hand = scan.copy_of_the_loop("expf")
    figure(name, "weft", timed(lambda: scan.selective_scan(*args), 0.2), "ms")
    figure(name, "CUDA C++ by hand", timed(lambda: by_hand(*args), 0.2), "ms")
    derived, other = scan.gradients(scan.gradient_by_hand())
    figure(f"{name}, gradient", "weft, derived", derived, "ms")
    figure(f"{name}, gradient", "CUDA C++ by hand", other, "ms")


@section
def host() -> None:
    """The calling thread's time for small calls, and the wait for the first one."""
    x, y = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
    out = torch.empty_like(x)
    add(x, y, out)
    name = "host time of a small call"
    figure(name, "torch add_", host_time(lambda: x.add_(y)), "µs")
    figure(name, "torch add, out given", host_time(lambda: torch.add(x, y, out=out)), "µs")
    figure(name, "weft, out given", host_time(lambda: add(x, y, out)), "µs")
    figure(
        name,
        "weft, sum (two stages' workspace not needed)",
        host_time(lambda: gallery.total(x)),
        "µs",
    )
    figure(name, "torch add_ (again)", host_time(lambda: x.add_(y)), "µs")
    program = (
        "import torch, time, sys\nimport weft\nfrom examples import {module} as m\n"
        "x = torch.randn(8, 64, device='cuda'); w = torch.randn(3, 64, device='cuda')\n"
        "k = torch.randn(2, 3, 64, device='cuda'); torch.cuda.synchronize()\n"
        "t = time.perf_counter(); {call}; torch.cuda.synchronize()\n"
        "print('MS', (time.perf_counter() - t) * 1e3)\n"
        "import weft as W\n"
        "print({kernel}.specializations[0].stages, {kernel}.specializations[0].compiled.stages)\n"
    )
    for title, module, call, kernel in (
        ("causal_conv", "causal_conv", "m.causal_conv(w, k, 0.1)", "m.causal_conv"),
        ("softmax (libdevice)", "softmax", "m.softmax(x)", "m.softmax"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": folder,
                "CUDA_CACHE_PATH": f"{folder}/driver", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
            }  # fmt: skip
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            # As an installer does: Python's own compilation of weft is no part of a first call.
            compile_all = [sys.executable, "-m", "compileall", "-q", "weft", "examples"]
            subprocess.run(compile_all, cwd=ROOT, env=environment, check=True)
            for row in ("nothing cached", "disk cache warm"):
                text = program.format(module=module, call=call, kernel=kernel)
                done = subprocess.run(
                    [sys.executable, "-c", text],
                    capture_output=True,
                    text=True,
                    cwd=ROOT,
                    check=False,
                    env=environment,
                )
                lines = [line for line in done.stdout.splitlines() if line.startswith("MS ")]
                if not lines:
                    print(done.stdout[-800:], done.stderr[-1500:])
                    continue
                print("   ", title, row, done.stdout.splitlines()[-1][:900])
                figure("first call", f"{title}, {row}", float(lines[0][3:]), "ms")


# -- running the sections


def child(name: str) -> int:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is checked")
        return 1
    attempt_section = SECTIONS[name]
    try:
        attempt_section()
    except Exception:
        failures.append(name)
        traceback.print_exc(file=sys.stdout)
    print(f"FAILURES {json.dumps(failures)}", flush=True)
    return bool(failures)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    options.add_argument("--only", default="", help="sections, with commas")
    options.add_argument("--list", action="store_true")
    options.add_argument("--child", default="")
    given = options.parse_args()
    if given.list:
        print("\n".join(SECTIONS))
        return 0
    if given.child:
        return child(given.child)
    wanted = [name for name in given.only.split(",") if name] or list(SECTIONS)
    figures: list[list[Any]] = []
    wrong: dict[str, list[str]] = {}
    for name in wanted:
        print(f"\n== {name}", flush=True)
        begin = time.monotonic()
        command = [sys.executable, "-u", "-m", "benchmarks.gpu_check", "--child", name]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        timer = threading.Timer(200, process.kill)
        timer.start()
        told = False
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("FIGURE "):
                figures.append(json.loads(line[7:]))
                table, row, value, unit, note = figures[-1]
                print(f"  {table}: {row}: {value:.4g} {unit} {note}", flush=True)
            elif line.startswith("FAILURES "):
                told = True
                if found := json.loads(line[9:]):
                    wrong[name] = found
            else:
                print(line, end="", flush=True)
        process.wait()
        timer.cancel()
        if not told:
            wrong[name] = [f"ended with status {process.returncode}"]
        print(f"   ({time.monotonic() - begin:.0f} s)", flush=True)
    print("\n== table")
    for title in dict.fromkeys(row[0] for row in figures):
        print(f"\n| {title} | |\n| --- | ---: |")
        for _, row, value, unit, note in (f for f in figures if f[0] == title):
            print(f"| {row} | {value:.4g} {unit}{f' ({note})' if note else ''} |")
    folder = Path(os.environ.get("OUT", ROOT / "out"))
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "gpu_check.json").write_text(
        json.dumps({"figures": figures, "wrong": wrong}, indent=1) + "\n"
    )
    print("\nwrong:", json.dumps(wrong, indent=1) if wrong else "nothing")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
