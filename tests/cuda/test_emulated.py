"""What kernels for CUDA compute, in the emulator: the gallery and random kernels, by every kind
of schedule."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

import weft
from examples import (
    bilateral,
    brick_wall,
    causal_conv,
    gallery,
    grid_sample,
    layer_norm,
    softmax,
    spring,
    wkv,
)
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz import check as fuzz
from tests.fuzz import generate, nests, rows, scans
from weft.ir.core import Function, Op
from weft.ir.views import is_constant
from weft.schedule import cooperative_loops, default_cuda, grid, guards, scan, split_scan
from weft.schedule.asked_cuda import CUDA_RULES
from weft.schedule.choose import Candidate, Choice
from weft.schedule.guards import Busy, FewLeft, Turns, Whole
from weft.schedule.language import (
    Cooperate,
    Cover,
    IndexWidth,
    RegisterWindow,
    Reverse,
    SplitReduction,
    UnrollJam,
    Vectorize,
    only,
    several,
)
from weft.schedule.legal import legal
from weft.schedule.nest import LoopNest, axes_of
from weft.schedule.shared_loads import UnrollJamCandidates, WindowTile

COUNT = int(os.environ.get("WEFT_FUZZ_CUDA", "5"))


def without(kind: type[Any]) -> Callable[[Candidate], bool]:
    return lambda candidate: only(candidate.schedule, kind) is None


def few(choice: Choice) -> Choice:
    """A grid that is too small, so that every thread runs several iterations."""
    if only(choice.schedule, Cooperate) is not None:
        return choice
    x, _, z = choice.grid
    return replace(choice, grid=(min(x, 2), 1, min(z, 2)))


# What a call may choose, and what becomes of what it chose.
CHANGES: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "as chosen": (None, None), "64-bit": (without(IndexWidth), None),
    "few threads": (without(Cover), few), "one at a time": (without(Vectorize), None),
    "in step": (None, None), "in teams": (None, None), "in large teams": (None, None),
    "in columns": (None, None), "in parts": (None, None), "rows in registers": (None, None),
    "rows in strips": (None, None), "in windows": (None, None), "scanned": (None, None),
    "scanned in parts": (None, None),
}  # fmt: skip


class EveryJam(UnrollJamCandidates):
    def choices(self) -> list[tuple[UnrollJam, ...]]:
        return [tuple(self.unshared)] if self.unshared else []


def every_jam(function: Function, parallel: Op, fastest: int) -> UnrollJamCandidates:
    """Iterations in step along each index that allows it, whether or not that pays."""
    dims = parallel.attrs["dims"]
    if parallel.attrs["kinds"]:
        return EveryJam()
    steps = parallel.operands[2 * dims :]
    return EveryJam({
        UnrollJam(axis, 2, 3 if k == fastest else 1): 0
        for k, axis in enumerate(axes_of(parallel)) if is_constant(steps[k], 1)
    })  # fmt: skip


def every_window(function: Function, parallel: Op) -> list[WindowTile]:
    """Neighbours along the last index that allows it, loops backwards that may go so, and windows
    of all loops that have them, whether or not that pays."""
    if parallel.attrs["kinds"]:
        return []
    nest = LoopNest(function, parallel)
    order = tuple(reversed(range(len(nest.axes))))
    steps: list[Any] = []
    found = [name for name, loop in nest.serial.items()
             if legal(nest, RegisterWindow(name, 4), (), CUDA_RULES) is None]  # fmt: skip
    for step in (*map(Reverse, found), *(UnrollJam(nest.axes[k], 4) for k in order[:2]),
                 *(RegisterWindow(name, 4) for name in found)):  # fmt: skip
        if legal(nest, step, (*steps, step), CUDA_RULES) is None:
            steps.append(step)
    jams = {step.axis: step.copies for step in steps if isinstance(step, UnrollJam)}
    copies = tuple(jams.get(nest.axes[k], 1) for k in order[:2])
    return [WindowTile(nest.serial[found[0]], order, copies, tuple(steps), (8, 4))] if found else []


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    EmulatedCall.allowed, EmulatedCall.change = CHANGES[request.param]
    EmulatedCall.seen.clear()
    if request.param in ("in step", "in windows"):
        if request.param == "in step":
            monkeypatch.setattr(default_cuda, "unroll_jam_candidates", every_jam)
        monkeypatch.setattr(
            default_cuda,
            "window_tiles",
            every_window if request.param == "in windows" else lambda *_, **__: [],
        )
        asked = guards._of_trips

        def pays(guard: Any, *args: Any) -> tuple[bool, str]:
            whole = any(jam.whole for jam in several(args[0], UnrollJam))
            kinds = FewLeft | Busy | Turns if whole else FewLeft | Busy | Turns | Whole
            return (True, "") if isinstance(guard, kinds) else asked(guard, *args)

        monkeypatch.setattr(guards, "_of_trips", pays)
    if request.param in ("in teams", "in large teams", "rows in registers", "rows in strips"):
        size = (96, 1) if request.param == "in large teams" else (8, 16)
        monkeypatch.setattr(cooperative_loops._Search, "gain", lambda self, fastest: 1)
        monkeypatch.setattr(grid, "group", lambda lengths, rows: size)

        def held(length: int, rows: int, width: int, *_: int, **__: bool) -> tuple[int, int]:
            return (8, max(-(-length // (8 * width)), 1)) if length % width == 0 else (0, 0)

        kept = request.param == "rows in registers"
        strips = (64, 2) if request.param == "rows in strips" else (0, 0)
        monkeypatch.setattr(grid, "in_registers", held if kept else lambda *_, **__: (0, 0))
        monkeypatch.setattr(grid, "in_strips", lambda *_: strips)
    if request.param == "in columns":
        monkeypatch.setattr(cooperative_loops._Search, "gain", lambda self, fastest: -1)
        monkeypatch.setattr(grid, "columns", lambda lengths, trips: (8, 8))
    if request.param == "in parts":
        monkeypatch.setattr(default_cuda, "SPLIT_THREADS", 64)
        monkeypatch.setattr(default_cuda, "ROW_THREADS", 32)
        monkeypatch.setattr(grid, "split", lambda schedule, sizes: (
            8 if only(schedule, SplitReduction).columns else 0, 3))  # fmt: skip
    if request.param == "scanned":
        sizes = itertools.cycle((32, 64))
        monkeypatch.setattr(grid, "scanned", lambda *_, **__: next(sizes))
    if request.param == "scanned in parts":
        monkeypatch.setattr(scan, "SEVERAL", 64)
        monkeypatch.setattr(grid, "scan_parts", lambda schedule, sizes: 2)
        monkeypatch.setattr(split_scan, "MOST_PARTS", 64)
    yield request.param
    EmulatedCall.allowed = EmulatedCall.change = None


def same(kernel: weft.Kernel, *args: Any, **options: Any) -> None:
    """Runs ``kernel`` for the CPU and in the emulator, on copies, and compares."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected, found = kernel(*copies), emulated(kernel, **options)(*args)
    for e, f in zip([expected, *copies], [found, *args], strict=True):
        if isinstance(e, torch.Tensor):
            assert e.dtype == f.dtype
            torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4, equal_nan=True)


def calls() -> dict[str, tuple[Any, ...]]:
    torch.manual_seed(3)
    r = torch.randn
    return {
        "axpy": (gallery.axpy, 2.0, r(1003), r(1003)),
        "stencil": (gallery.stencil, r(21, 44)),
        "stencil, odd rows": (gallery.stencil, r(21, 43)),
        "softmax": (softmax.softmax, r(5, 33)),
        "layer_norm": (layer_norm.layer_norm, r(4, 19), r(19), r(19), 1e-5),
        "matmul": (gallery.matmul, r(12, 17), r(17, 9)),
        "histogram": (gallery.histogram, torch.rand(17_000), 16, 0.0, 1.0),
        "mandelbrot": (
            gallery.mandelbrot, torch.linspace(-2, 1, 20), torch.linspace(-1, 1, 15), 30,
        ),
        "newton_sqrt": (gallery.newton_sqrt, torch.rand(40), 1e-6),
        "resize": (gallery.resize, torch.rand(9, 7, 3), 12, 11),
        "running_sum": (gallery.running_sum, r(5, 12)),
        "transpose": (gallery.transpose, r(33, 18)),
        "total": (gallery.total, r(9001)),
        "largest": (gallery.largest, r(103)),
        "leaky_relu_": (gallery.leaky_relu_, r(9, 14)[:, ::2], 0.1),
        "collatz": (gallery.collatz, 57),
        "gray": (gallery.gray, torch.randint(0, 255, (9, 16, 3), dtype=torch.uint8)),
        "brick_wall": (brick_wall.brick_wall, torch.arange(12).view(3, 4), 20, 28, 2, 1, 5),
        "brick_wall, a warp between neighbours": (
            brick_wall.brick_wall, torch.arange(460).int().view(2, 230), 5, 600, 99, 1, 5,
        ),
        "brick_wall, narrow tiles": (
            brick_wall.brick_wall, torch.arange(12).int().view(3, 4), 5, 300, 2, 1, 5,
        ),
        "causal_conv": (causal_conv.causal_conv, r(3, 17), r(2, 3, 17), 0.25),
        "wkv": (wkv.wkv, *wkv.inputs(2, 7, 5)),
        "grid_sample": (grid_sample.grid_sample, *grid_sample.inputs(2, 3, 7, 5)),
        "bilateral": (
            bilateral.bilateral, torch.rand(7, 9, 3), torch.tensor(1.5), torch.tensor(0.2), 2,
        ),
        "swing": (spring.swing, *spring.inputs(3, 30)),
    }  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", calls())
def test_the_gallery(name: str, change: str) -> None:
    if change == "few threads" and name in ("total", "largest"):
        pytest.skip("a reduction always has few")
    same(*calls()[name])
    assert EmulatedCall.seen


def test_schedules_are_chosen_by_the_call() -> None:
    EmulatedCall.seen.clear()
    kernel = emulated(gallery.axpy)
    x, y = torch.randn(64), torch.randn(65)
    for args in ((x, y[:64]), (x, y[1:]), (x[:3], y[:3])):
        torch.testing.assert_close(kernel(2.0, *args), 2 * args[0] + args[1])
    vectors = [only(schedule, Vectorize) for schedule in EmulatedCall.seen]
    assert [vector and vector.copies for vector in vectors] == [4, None, None]
    assert all(only(s, IndexWidth) and only(s, Cover) for s in EmulatedCall.seen)


def test_numbers_decide_of_the_index_width() -> None:
    @weft.kernel
    def far(x: torch.Tensor, n: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[(i + n) % x.shape[0]]
        return out

    kernel = emulated(far)
    x = torch.randn(10)
    EmulatedCall.seen.clear()
    for n in (3, 1 << 33):
        torch.testing.assert_close(kernel(x, n), torch.roll(x, -(n % 10)))
    assert [bool(only(s, IndexWidth)) for s in EmulatedCall.seen] == [True, False]


def bits_of_negative_numbers(out, n: int):
    for i in range(out.shape[0]):
        out[i] = weft.math.bit_count(n - i)


def numbers_that_casts_wrap(out, n: int):
    for i in range(out.shape[0]):
        out[i] = (int(weft.i16(n)) - 40_000) * 50_000 + i


def bits_above_the_low_ones(out, n: int):
    for i in range(out.shape[0]):
        v = n - i
        out[i] = (v >> 40) + (1 << (i + 30)) + (v ^ (1 << 35)) + (v & 0xFFFFFFFF) + abs(v) // -1
        out[i] += ~(n + i) + v % -7 + (v | 0x80000000)


def products(out, n: int):
    for i in range(out.shape[0]):
        out[i] = (n - i) * (n + 3) * (n - i) + (n << 3) + n * 70000 // 3
        out[i] += min(n * n, 50) * max(i, n * 65536)


@pytest.mark.parametrize(
    "function",
    [bits_of_negative_numbers, numbers_that_casts_wrap, bits_above_the_low_ones, products],
)
def test_numbers_in_32_bits_are_those_in_64(function: Callable[..., None]) -> None:
    on_cpu = weft.kernel(function)
    on_gpu = emulated(on_cpu)
    for n in (5, 0, -3, 33_000, 40_000, -65536, 2**31 - 1, 2**31 - 4, -(2**31), 1 << 40):
        expected, found = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)
        on_cpu(expected, n)
        on_gpu(found, n)
        assert found.tolist() == expected.tolist(), n


@pytest.mark.parametrize("shape", [(0,), (1,), (8191,), (30_000,)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16]
)
@pytest.mark.sampled(9)
def test_reductions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    @weft.kernel
    def both(x):
        s = 0
        m = -100
        for i in range(x.shape[0]):
            s += x[i]
            m = max(m, x[i])
        return s, m

    x = (torch.randn(shape) * 3).to(dtype)
    same(both, x)


def test_reductions_over_several_dimensions() -> None:
    @weft.kernel
    def total(x):
        s = 1.5
        for i, j, k in x:
            s += x[i, j, k] * (i + 2 * j)
        return s

    same(total, torch.randn(3, 50, 70))
    same(total, torch.randn(40, 3, 2).permute(2, 0, 1))


def test_four_dimensions() -> None:
    @weft.kernel
    def scale(x):
        out = torch.empty_like(x)
        for i, j, k, m in x:
            out[i, j, k, m] = x[i, j, k, m] * (i + 10 * j + 100 * k + 1000 * m)
        return out

    same(scale, torch.randn(3, 4, 5, 6))
    same(scale, torch.randn(2, 3, 1, 7).permute(3, 0, 2, 1))


def test_loops_without_arguments_and_names_beyond_ascii() -> None:
    @weft.kernel
    def five():
        for i in range(10):
            assert i < 5, "five"

    @weft.kernel
    def удвоить(икс):
        for и in икс:
            икс[и] *= 2

    with pytest.raises(weft.KernelAssertionError, match="five"):
        emulated(five)()
    same(удвоить, torch.ones(4))


REVERSED = [(0, 0), (0, 4), (2, 2), (5, 4)]


@pytest.mark.parametrize("ends", REVERSED)
@pytest.mark.sampled(19)
def test_reversed_and_empty_ranges_of_several_axes(ends: tuple[int, int], change: str) -> None:
    """Iterations are counted axis by axis: two reversed ranges are no iterations."""

    @weft.kernel
    def stores(out, a: int, b: int, n: int):
        for i, j, k, m in weft.ndrange((2, a), (2, b), n, n):
            out[i, j, k, m] = 1.0

    @weft.kernel
    def strided(out, a: int, b: int, step: int):
        for i in range(2, a, 1):
            for j in range(2, b, step):
                for k in range(6, b, -2):
                    out[i, j, k, 0] += 1.0

    @weft.kernel
    def on_the_device(ends, out):
        for i, j, k, m in weft.ndrange((2, ends[0]), (2, ends[1]), (ends[1], ends[0]), 3):
            out[i, j, k % 8, m] = 1.0

    a, b = ends
    out = torch.zeros(8, 8, 8, 3)
    same(stores, out, a, b, 3)
    same(strided, out, a, b, 2)
    same(on_the_device, torch.tensor(ends), out)


@pytest.mark.parametrize("ends", REVERSED)
def test_reductions_over_reversed_and_empty_ranges(ends: tuple[int, int]) -> None:
    @weft.kernel
    def count(x, a: int, b: int, n: int):
        s = 0.0
        most = -1.0
        for i, j, k, m in weft.ndrange((2, a), (2, b), n, n):
            s += x[0] * (1 + i + j + k + m)
            most = max(most, x[0])
        return s, most

    same(count, torch.ones(1), *ends, 3)


def test_atomics_on_every_type() -> None:
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):

        @weft.kernel
        def scatter(x, where, out):
            for i in range(x.shape[0]):
                out[where[i]] += x[i]

        x = torch.randint(0, 3, (50,)).to(dtype)
        same(scatter, x, torch.randint(0, 4, (50,)), torch.zeros(5, dtype=dtype))


def test_a_failed_check_names_the_line() -> None:
    @weft.kernel
    def reach(x, n: int):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i + n]
        return out

    kernel = emulated(reach, debug=True)
    torch.testing.assert_close(kernel(torch.arange(5.0), 0), torch.arange(5.0))
    with pytest.raises(
        weft.KernelIndexError, match="subscript 5 of `x` is out of range: its dimension 0 has 5"
    ):
        kernel(torch.arange(5.0), 1)


def test_a_failed_assertion_in_a_reduction() -> None:
    @weft.kernel
    def total(x):
        s = 0.0
        for i in range(x.shape[0]):
            assert x[i] >= 0, "negative"
            s += x[i]
        return s

    kernel = emulated(total)
    torch.testing.assert_close(kernel(torch.ones(10)), torch.tensor(10.0))
    with pytest.raises(weft.KernelAssertionError, match="negative"):
        kernel(-torch.ones(10))


@pytest.fixture
def interpreted() -> Iterator[None]:
    EmulatedCall.interpreted = True
    yield
    EmulatedCall.interpreted = False


@pytest.mark.parametrize("draw", [generate.kernel, rows.kernel, nests.kernel, scans.kernel])
@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", range(2))
def test_the_ir_of_random_schedules(
    seed: int, draw: Callable[[Random], Any], change: str, interpreted: None
) -> None:
    """Of random kernels, by random schedules: the verifier accepts it, its text reads back, threads
    do not race, and it computes what the Python does, in the bits of the IR before, where the
    schedule keeps these."""
    if change == "scanned in parts":
        pytest.skip("too many threads for random rows: tests/schedule/test_split_scan.py has some")
    test_random_kernels(2000 + seed, draw, change)


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    "name", ["histogram", "total", "softmax", "brick_wall, narrow tiles", "running_sum", "stencil"]
)
def test_the_ir_of_schedules(name: str, change: str, interpreted: None) -> None:
    kernel, *args = calls()[name]
    small = [a[:600] if isinstance(a, torch.Tensor) else a for a in args]
    same(kernel, *small)
    assert EmulatedCall.seen


@pytest.mark.parametrize("draw", [generate.kernel, rows.kernel, nests.kernel, scans.kernel])
@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_kernels(seed: int, draw: Callable[[Random], Any], change: str) -> None:
    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        return emulated(kernel, **options)(*tensors, *rest)

    fuzz.check(Random(1000 + seed), call, draw)


def test_a_debug_call_by_reciprocals() -> None:
    """The emulator hands checked calls the reciprocals, too."""

    @weft.kernel
    def remainders(m: torch.Tensor, out: torch.Tensor, n: int) -> None:
        for i in range(m.shape[0]):
            out[i] = int(m[i]) % n

    m, out = torch.arange(-128, 128).to(torch.int8), torch.zeros(256)
    emulated(remainders, debug=True)(m, out, 7)
    assert torch.equal(out, (torch.arange(-128, 128) % 7).float())


def test_what_members_store_in_two_places_has_the_later_value() -> None:
    @weft.kernel(schedule={"cuda": "cooperate((), 32)"})
    def overwritten(x: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            for j in range(1, x.shape[1]):
                out[i, j] = x[i, j]
            for j in range(x.shape[1]):
                out[i, j] = 1.0

    out = torch.zeros(5, 77)
    emulated(overwritten)(torch.randn(5, 77), out)
    assert torch.equal(out, torch.ones(5, 77))


@weft.kernel
def row_sums(x, o, n: int, step: int):
    for i in range(x.shape[0]):
        s = 0.0
        for k in range(0, n, step):
            assert n < 50, "few"
            s += x[i, k]
        o[i] = s


@weft.kernel
def total_of_some(x, n: int, step: int):
    s = 0.0
    for k in range(0, n, step):
        assert step < 9, "short"
        s += x[0, k]
    return s


def test_assertions_in_front_of_a_loop() -> None:
    """Every thread makes them, and leaves where they fail."""
    x, o = torch.rand(3, 40, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    sums, total = emulated(row_sums), emulated(total_of_some)
    for n, step in ((40, 1), (39, 7)):
        sums(x, o, n, step)
        torch.testing.assert_close(o, x[:, :n:step].sum(1))
    for call, message in (
        (lambda: sums(x, o, 50, 1), "few"),
        (lambda: sums(x, o, 40, 0), "the step of a range is 0"),
        (lambda: total(x, 40, 9), "short"),
    ):
        with pytest.raises(weft.KernelAssertionError) as caught:
            call()
        assert caught.value.message == message
