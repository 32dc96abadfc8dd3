"""Scan: threads share loops whose every turn asks for what was carried so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from benchmarks.recurrences import mapped, summed
from tests.cuda.emulator import EmulatedCall, emulated
from weft import compiler
from weft.errors import ScheduleError
from weft.ir.core import walk
from weft.schedule import apply_cuda, grid
from weft.schedule.language import Scan, only, parse, show
from weft.schedule.recurrences import Recurrences, recurrences
from weft.tools.cross import lowered_loops

inf, nan = math.inf, math.nan


def cumsum(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            out[i, j] = s


def exclusive(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] += s
            s = s - x[i, j]
        out[i, 0] += s


def backward(x, out):
    for i in range(x.shape[0]):
        s = 1.0
        for j in range(x.shape[1] - 1, -1, -1):
            s *= 1.0 + 0.1 * x[i, j]
            out[i, j] = s


def largest(x, out):
    for i in range(x.shape[0]):
        s = -1e9
        for j in range(x.shape[1]):
            s = max(s, x[i, j])
            out[i, j] = s


def affine(x, out):
    for i in range(x.shape[0]):
        s = 0.5
        for j in range(1, x.shape[1]):
            s = x[i, j - 1] * s + x[i, j]
            out[i, j] = 2.0 * s


def reset(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > 1.0:
                s = 0.25
            else:
                s += x[i, j]
            out[i, j] = s


def before(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - s
            s = x[i, j]


def levels(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        r = 1.0
        total = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            r = 0.5 * r + s
            total += r * x[i, j]
            out[i, j] = r - s
        out[i, 0] = total


def counted(x, out):
    for i in range(x.shape[0]):
        c = 0
        for j in range(x.shape[1]):
            if x[i, j] > 0.0:
                c += 1
            else:
                c = 0
            out[i, j] = c


def inner(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            t = 0.0
            for k in range(3):
                t += x[i, (j + k) % x.shape[1]]
            s = 0.9 * s + t
            out[i, j] = s


def adjoint(x, out):
    """As gradients of affine maps are: from the last turn on."""
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            k = x.shape[1] - 1 - j
            t = s + x[i, k]
            out[i, k] += t
            s = t * x[i, k]


def shared(x, out):
    """Quotients by what no turn changes, of what is carried and of what is not."""
    for i in range(x.shape[0]):
        s = 0.5
        d = 1.5 + i
        for j in range(x.shape[1]):
            s = (s + x[i, j] / 1.75) / d
            out[i, j] = s / 3.0


FAMILIES = {
    cumsum: ["sum"], exclusive: ["sum"], backward: ["mulf"], largest: ["ogt"], affine: ["affine"],
    reset: ["affine"], before: ["affine"], levels: ["sum", "affine"], counted: ["affine"],
    inner: ["affine"], adjoint: ["affine"], shared: ["affine"],
}  # fmt: skip


def loop_of(function: Callable[..., Any]) -> Any:
    """The first serial loop, after the passes for a GPU."""
    given = torch.empty(3, 9, device="meta"), torch.empty(3, 9, device="meta")
    (loop,) = lowered_loops(weft.kernel(function), *given)
    made = compiler.optimize(loop)
    parallel = apply_cuda.outermost(made)
    assert parallel is not None
    return next(op for op in walk(parallel.body) if op.name == "scf.for")


@pytest.mark.parametrize("function", FAMILIES, ids=lambda f: f.__name__)
def test_families(function: Callable[..., Any]) -> None:
    found = recurrences(loop_of(function))
    assert isinstance(found, Recurrences)
    assert [found.families[k] for k in sorted(found.families)] == FAMILIES[function]
    assert found.last == len(found.families) - 1


def by(text: str, function: Callable[..., Any]) -> weft.Kernel:
    return weft.kernel(schedule={"cuda": text})(function)


def same(kernel: weft.Kernel, x: torch.Tensor) -> None:
    expected, found = torch.randn(x.shape).mul_(0), torch.zeros(x.shape)
    weft.kernel(kernel.function)(x, expected)
    EmulatedCall.seen.clear()
    emulated(kernel)(x, found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("function", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("text", ["scan((), 32)", "scan((), 64, turns=2)"])
def test_every_length(function: Callable[..., Any], text: str) -> None:
    kernel = by(text, function)
    for length in (1, 2, 31, 130, 300) if function is not inner else (3, 130):
        same(kernel, torch.randn(2, length).clamp(-1.5, 1.5))
        assert only(EmulatedCall.seen[-1], Scan) is not None
    same(kernel, torch.empty(0, 5))
    if function not in (exclusive, levels):  # which store to a row's first element
        same(kernel, torch.empty(2, 0))


@pytest.mark.sampled(15)
@pytest.mark.parametrize("function", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("width", [1, 4])
def test_the_ir(function: Callable[..., Any], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier accepts it, its text reads back, and threads do not race."""
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    same(by(f"scan((), 64, width={width})", function), torch.randn(2, 272).clamp(-1.5, 1.5))
    found = only(EmulatedCall.seen[-1], Scan)
    assert found is not None
    assert found.width == width


def not_finite(n: int, reset: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors, summands and sums, whose products overflow, meet zeros, and are ``reset``."""
    a, b = torch.full((6, n), 2.0), torch.zeros(6, n)
    b[1, 540] = 1.0  # 2^540 before it, times 0
    a[2, 100] = inf
    b[3, 7], a[3, 300] = nan, 0.0
    a[4], b[4] = torch.rand(n), torch.randn(n)
    b[4, 50], a[4, reset] = inf, 0.0
    a[5] = torch.where(torch.arange(n) % 2 == 0, 1e-30, 1e30)
    b[5, 0] = 1.0
    s, expected = torch.zeros(6), torch.zeros(6, n)
    for j in range(n):
        s = a[:, j] * s + b[:, j]
        expected[:, j] = s
    return a, b, expected


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_what_is_not_finite_is_as_turn_by_turn(threads: int) -> None:
    """Products overflow, meet zeros, and infinities are reset: as in the written order."""

    def mapped(a, b, out):
        for i in range(a.shape[0]):
            s = 0.0
            for j in range(a.shape[1]):
                s = a[i, j] * s + b[i, j]
                out[i, j] = s

    a, b, expected = not_finite(560, reset=400)
    found = torch.zeros_like(b)
    emulated(by(f"scan((), {threads}, width=4)", mapped))(a, b, found)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_reset_forgets_what_is_not_finite() -> None:
    x = torch.randn(3, 300).clamp(-2, 1)
    x[0, 17], x[1, 200], x[:, 250], x[2, 3] = nan, inf, 1.5, -inf
    for text in ("scan((), 32)", "scan((), 64, width=4)"):
        same(by(text, reset), x)
        same(by(text, largest), x)
        same(by(text, before), x)


def test_bits_depend_on_sizes_only() -> None:
    """Not on the alignment that a call happens to have, nor on the run."""
    x = torch.randn(3, 1 + 512)[:, 1:].double()  # vectors of two: twice in a thread's turns
    y = x.contiguous()
    found: list[torch.Tensor] = []
    for function in (cumsum, affine):
        for given, width in ((x, 1), (y, 1), (y, 2), (y, 2)):
            out = torch.zeros(3, 512, dtype=torch.float64)
            emulated(by(f"scan((), 64, width={width})", function))(given, out)
            found.append(out)
        assert all(torch.equal(found[0], other) for other in found[1:])
        found.clear()


def test_what_a_call_takes() -> None:
    """A group for a row, where neighbouring turns are neighbours in memory; few iterations."""
    assert grid.scanned([65536], 512, 4, along=True) == 256
    assert grid.scanned([65536], 8192, 4, along=True) == 32
    assert grid.scanned([1 << 25], 1, 4, along=False) == 512
    assert grid.scanned([48], 512, 4, along=True) == 0
    assert grid.scanned([1024], 65536, 4, along=False) == 0
    assert grid.scanned([None], 4, 4, along=True) == 0
    out = torch.empty(512, 65536, device="meta")
    for x, text in (
        (out, "scan((j), 256, width=4); align(x, 16); align(out, 16)"),
        (torch.empty(512, 65538, device="meta")[:, 1:65537], "scan((j), 256);"),
    ):
        (taken,) = weft.kernel(cumsum).schedules(x, out, device="cuda").taken
        assert text in taken.schedule
    kernel = weft.kernel(strict_math=True)(cumsum)
    (taken,) = kernel.schedules(out, out, device="cuda").taken
    assert "scan" not in taken.schedule


def test_columns_are_left_to_threads() -> None:
    def columns(x, out):
        for i in range(x.shape[1]):
            s = 0.0
            for j in range(x.shape[0]):
                s += x[j, i]
                out[j, i] = s

    for width, scanned in ((8192, False), (8, True)):
        x = torch.empty(65536, width, device="meta")
        (taken,) = weft.kernel(columns).schedules(x, x, device="cuda").taken
        assert ("scan" in taken.schedule) == scanned


@pytest.mark.parametrize(("kernel", "count"), [(summed, 1), (mapped, 2)])
def test_derived_gradients_are_scans(kernel: weft.Kernel, count: int) -> None:
    """By vectors, also of rows that are gone through from their ends."""
    args = [torch.empty(64, 4096, device="meta", requires_grad=True) for _ in range(count)]
    (table,) = (kernel.backward.schedules(*args, device="cuda"),)
    (taken,) = table.taken
    assert "scan(" in taken.schedule
    assert "width=4" in taken.schedule
    assert "align(d.out, 16)" in taken.schedule


def curved(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s = s * s + x[i, j]
            out[i, j] = s


def decided(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            if s < 1.0:
                s += x[i, j]
            out[i, j] = s


def stored(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, 0] = s
            s += x[i, j]


def whole(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i, 0] = s


def last_seen(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * s
            s = 0.5 * s + out[i, j]


def beside(x, out):
    """``h`` asks for the ``s`` of a branch that makes of ``h``, too, what it will be: this code of
    GPUs was not valid, and LLVM ended the process."""
    for i in range(x.shape[0]):
        s = 1.0
        h = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                s = s * 0.5
            else:
                h = h * 0.25
            h = h * 0.5 + s
            out[i, j] = h


REFUSED = [
    (beside, "scan((j), 64)",
     "`s` comes of a branch or loop along `j` with what is known later: give each its own"),
    (curved, "scan((), 64)", "no loop may go in any order"),
    (curved, "scan((j), 64)", "`s` is carried along `j` by no sum, extremum or affine map"),
    (decided, "scan((j), 64)", "`s` is carried along `j` by no sum, extremum or affine map"),
    (stored, "scan((j), 64)", "iterations along `j` touch what others of them write"),
    (whole, "scan((j), 64)",
     "no loop asks at every turn for what was carried so far: cooperate(...) shares them"),
    (cumsum, "scan((j), 16)", "a group that scans has whole warps: 32 threads or more"),
    (cumsum, "scan((j), 64, columns=8)", "groups that scan do not stand side by side"),
    (cumsum, "scan((j), 64, width=8)",
     "a thread has 1, 2, 4, 8 or 16 turns, by vectors of no more than these"),
    (cumsum, "scan((j), 48)", "a group has a power of two of threads, 2 to 1024"),
    (cumsum, "scan((j), 64); keep_row(1, 1)", "it does not go with `keep_row(1, 1)`"),
    (cumsum, "cooperate((j), 64)", "`s` is carried along `j` by no associative combination"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "text", "message"), REFUSED)
def test_refused(function: Callable[..., Any], text: str, message: str) -> None:
    given = torch.empty(3, 9, device="meta"), torch.empty(3, 9, device="meta")
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", by(text, function), *given)
    step = show(parse(text)[:1])
    assert caught.value.message in (f"`{step}`: {message}", f"`{text}`: {message}")


def test_strict_math_keeps_the_written_order() -> None:
    given = torch.empty(3, 9, device="meta"), torch.empty(3, 9, device="meta")
    for function in (cumsum, affine, backward):
        kernel = weft.kernel(strict_math=True, schedule={"cuda": "scan((j), 64)"})(function)
        with pytest.raises(ScheduleError) as caught:
            weft.compile_for("sm_90", kernel, *given)
        assert caught.value.message == (
            "`scan((j), 64)`: strict_math keeps the order of `s` along `j`"
        )
    exact = weft.kernel(strict_math=True, schedule={"cuda": "scan((j), 64)"})(largest)
    same(exact, torch.randn(3, 200))
    assert only(EmulatedCall.seen[-1], Scan) is not None


def test_its_text() -> None:
    for text in ("scan((j), 512)", "scan((j, k), 64, width=4)", "scan((), 32, turns=8)"):
        assert show(parse(text)) == text
