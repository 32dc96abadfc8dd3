"""Scans of values that depend on each other: the maps of a turn are small matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from tests.schedule.test_scan import by, loop_of, same
from weft.errors import ScheduleError
from weft.schedule.language import Scan, only
from weft.schedule.recurrences import Recurrences, recurrences


def filtered(x, out):
    for i in range(x.shape[0]):
        before = 0.5
        last = 0.0
        for j in range(x.shape[1]):
            y = 1.2 * last - 0.52 * before + x[i, j]
            before = last
            last = y
            out[i, j] = y


def turned(x, out):
    """A rotation whose angle is data: a product of complex numbers."""
    for i in range(x.shape[0]):
        re = 1.0
        im = 0.0
        for j in range(x.shape[1]):
            c = math.cos(x[i, j])
            s = math.sin(x[i, j])
            re, im = c * re - s * im, s * re + c * im + 0.125
            out[i, j] = re - 2.0 * im


def lattice(x, out):
    """From the last turn on; each update asks for the one before it in the same turn."""
    for i in range(x.shape[0]):
        a = 0.0
        b = 1.0
        for j in range(x.shape[1] - 1, -1, -1):
            out[i, j] += a * b
            a = 0.5 * a - (b - x[i, j]) / (3.0 + x[i, j] * x[i, j])
            b += 0.25 * a - 0.5 * b


def three(x, out):
    for i in range(x.shape[0]):
        h = weft.Vector([1.0, 0.0, -1.0])
        m = weft.Matrix([[0.5, -0.3, 0.2], [0.25, 0.5, -0.3], [0.1, 0.4, 0.3]])
        for j in range(x.shape[1]):
            h = m @ h + x[i, j] * weft.Vector([1.0, 0.5, 0.0])
            out[i, j] = h[0] * h[1] - h[2]


def four(x, out):
    """A branch with another map, of a ring of four."""
    for i in range(x.shape[0]):
        a, b, c, d = 0.0, 0.25, 0.5, 1.0
        for j in range(x.shape[1]):
            if x[i, j] > 1.0:
                a, b, c, d = b, c, d, 0.5
            else:
                a, b, c, d = x[i, j] - 0.5 * d, 0.5 * a, b, c * 0.75 + a * 0.125
            out[i, j] = a + b - c * d


def between(x, out):
    """The group is the first and the third value; the second, and another one, follow it."""
    for i in range(x.shape[0]):
        a = 1.0
        f = 0.0
        b = -1.0
        top = -9.0
        total = 0.0
        for j in range(x.shape[1]):
            f = 0.5 * f + a
            a, b = 0.6 * a + 0.3 * b, 0.5 * b - 0.25 * a + x[i, j]
            top = max(top, f)
            total += top * b
            out[i, j] = f - top
        out[i, 0] = total


def pairs(x, out):
    """Two groups, whose places alternate; the same level, so that blocks may share them."""
    for i in range(x.shape[0]):
        a = 1.0
        c = 0.0
        b = -1.0
        d = 0.5
        for j in range(x.shape[1]):
            t = 0.5 * a - 0.5 * b + x[i, j]
            u = 0.75 * c + 0.25 * d
            b = a
            d = 0.25 * c - x[i, j]
            a = t
            c = u
            out[i, j] = a * c - b * d


def in_array(x, out):
    for i in range(x.shape[0]):
        h = weft.zeros(3)
        h[1] = 1.0
        for j in range(x.shape[1]):
            t = weft.zeros(3)
            for p in range(3):
                for q in range(3):
                    t[p] += 0.2 * (p - q + 1) * h[q]
            for p in range(3):
                h[p] = t[p] + x[i, j]
            out[i, j] = h[0] - h[1]


def fibonacci(x, out):
    for i in range(x.shape[0]):
        a = 0
        b = 1
        for j in range(x.shape[1]):
            a, b = b, a + b
            if x[i, j] > 0.0:
                b -= a * 3
            out[i, j] = a % 1024


GROUPS = {
    filtered: [(0, 1)], turned: [(0, 1)], lattice: [(0, 1)], three: [(0, 1, 2)],
    four: [(0, 1, 2, 3)], between: 2, pairs: 2, in_array: [(0, 1, 2)], fibonacci: [(0, 1)],
}  # fmt: skip


@pytest.mark.parametrize("function", GROUPS, ids=lambda f: f.__name__)
def test_groups(function: Callable[..., Any]) -> None:
    found = recurrences(loop_of(function))
    assert isinstance(found, Recurrences)
    joint = [group for group in found.families if len(group) > 1]
    assert joint == GROUPS[function] or len(joint) == {between: 1, pairs: 2}[function]
    assert {found.families[group] for group in joint} == {"affine"}


@pytest.mark.parametrize("function", GROUPS, ids=lambda f: f.__name__)
@pytest.mark.sampled(3)
def test_every_length(function: Callable[..., Any]) -> None:
    kernel = by("scan((), 32)", function)
    for length in (1, 130):
        same(kernel, torch.randn(2, length).clamp(-1.5, 1.5))
        assert only(EmulatedCall.seen[-1], Scan) is not None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("function", GROUPS, ids=lambda f: f.__name__)
def test_the_ir(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier accepts it, its text reads back, and threads do not race."""
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    same(by("scan((), 64, turns=2, width=2)", function), torch.randn(1, 136).clamp(-1.5, 1.5))


@pytest.mark.parametrize("function", [filtered, three, pairs], ids=lambda f: f.__name__)
def test_by_blocks(function: Callable[..., Any]) -> None:
    kernel = by("scan((), 64, turns=2, parts=5)", function)
    for length in (1, 1500):
        same(kernel, torch.randn(1, length).clamp(-1.5, 1.5))
        found = only(EmulatedCall.seen[-1], Scan)
        assert found is not None
        assert found.parts == 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(3, 200, dtype=torch.float64).to(dtype)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {}
    for function in (filtered, turned):
        expected, found = torch.zeros_like(x), torch.zeros_like(x)
        weft.kernel(function)(x, expected)
        emulated(by("scan((), 64)", function))(x, found)
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("text", ["scan((), 64, width=4)", "scan((), 64, turns=2, parts=3)"])
def test_what_is_not_finite_is_as_turn_by_turn(text: str) -> None:
    """Products of matrices overflow where the values do not; infinities and NaNs stay where they
    are, and are forgotten where the loop forgets them."""

    def grown(a, x, out):
        for i in range(x.shape[0]):
            s = 0.0
            r = 0.0
            for j in range(x.shape[1]):
                if a[i, j] > 90.0:
                    s = x[i, j]
                    r = 0.0
                else:
                    s, r = a[i, j] * r + x[i, j], s * a[i, j] - r
                out[i, j] = s - r

    n = 560
    a, x = torch.full((5, n), 2.5), torch.zeros(5, n)
    a[1], x[1] = torch.rand(n) - 0.5, torch.randn(n)
    x[1, 77], a[1, 300] = math.inf, 100.0
    a[2], x[2] = a[1], torch.randn(n)
    x[2, 301], a[2, 559] = math.nan, 100.0
    a[3] = torch.where(torch.arange(n) % 2 == 0, 1e-30, 1e30)
    x[3, 0] = 1.0
    a[4, 400], x[4, 0] = 100.0, 1.0
    expected, found = torch.zeros(5, n), torch.zeros(5, n)
    weft.kernel(grown)(a, x, expected)
    assert not expected[[1, 2, 4]].isfinite().all(1).any()
    emulated(by(text, grown))(a, x, found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_what_a_turn_stores_in_several_places() -> None:
    """One subscript alike is another one in each turn."""

    def states(x, out):
        for i in range(x.shape[0]):
            h = weft.zeros(2)
            for j in range(x.shape[1]):
                h[0] = 0.5 * h[1] + x[i, j]
                h[1] -= 0.25 * h[0]
                for p in range(2):
                    out[i, j, p] += h[p] * out[i, j, 0]

    x, out = torch.randn(2, 150), torch.randn(2, 150, 2)
    expected = out.clone()
    weft.kernel(states)(x, expected)
    emulated(by("scan((j), 64)", states))(x, out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    crossed = torch.empty(2, 150, 150, device="meta")

    def meeting(x, out):
        for i in range(x.shape[0]):
            s = 0.0
            for j in range(x.shape[1]):
                s = 0.5 * s + x[i, j]
                out[i, j, 0] = s
                out[i, 0, j] = s

    with pytest.raises(ScheduleError, match="touch what others of them write"):
        weft.compile_for("sm_90", by("scan((j), 64)", meeting), x.to("meta"), crossed)


def test_derived_gradients_are_scans() -> None:
    def filtered(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            h = weft.zeros(2)
            for j in range(x.shape[1]):
                y = x[i, j]
                for p in range(2):
                    y += c[p] * h[p]
                h[1] = h[0]
                h[0] = y
                out[i, j] = y
        return out

    x, c = (torch.empty(*n, device="meta", requires_grad=True) for n in ((64, 4096), (2,)))
    adjoint, _ = weft.kernel(filtered).backward.schedules(x, c, device="cuda").taken
    assert "scan((j, k1), 128, width=4)" in adjoint.schedule


def bilinear(x, out):
    for i in range(x.shape[0]):
        s = 0.5
        r = 0.5
        for j in range(x.shape[1]):
            s, r = s * r, r * 0.5 + s
            out[i, j] = s


def extreme(x, out):
    for i in range(x.shape[0]):
        s = 0.5
        r = 0.5
        for j in range(x.shape[1]):
            s = max(s, r)
            r = 0.5 * s + x[i, j]
            out[i, j] = r


def narrowed(x, out):
    for i in range(x.shape[0]):
        s = weft.f64(0.5)
        r = weft.f32(0.5)
        for j in range(x.shape[1]):
            s, r = s * 0.5 + r, weft.f32(s)
            out[i, j] = r


def five(x, out):
    for i in range(x.shape[0]):
        a, b, c, d, e = 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(x.shape[1]):
            a, b, c, d, e = 0.5 * e + x[i, j], a, b, c, d
            out[i, j] = a + b


REFUSED = [
    (bilinear, "`s`, `r` depend on each other along `j`, by no affine map"),
    (extreme, "`r` is carried along `j` by no sum, extremum or affine map"),
    (narrowed, "`s`, `r` depend on each other along `j`, by no affine map"),
    (five, "`a`, `b`, `c`, `d`, `e` depend on each other along `j`: 4 may, at most"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refused(function: Callable[..., Any], message: str) -> None:
    given = torch.empty(3, 9, device="meta"), torch.empty(3, 9, device="meta")
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", by("scan((j), 64)", function), *given)
    assert caught.value.message == f"`scan((j), 64)`: {message}"


def test_strict_math_keeps_the_written_order() -> None:
    given = torch.empty(3, 9, device="meta"), torch.empty(3, 9, device="meta")
    kernel = weft.kernel(strict_math=True, schedule={"cuda": "scan((j), 64)"})(filtered)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, *given)
    assert caught.value.message.startswith("`scan((j), 64)`: strict_math keeps the order of `")
    exact = weft.kernel(strict_math=True, schedule={"cuda": "scan((j), 64)"})(fibonacci)
    same(exact, torch.randn(3, 200))
    assert only(EmulatedCall.seen[-1], Scan) is not None
