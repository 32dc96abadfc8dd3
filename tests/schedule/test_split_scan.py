"""Split scans: several blocks have a part each of a loop whose turns ask for what was carried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from benchmarks.recurrences import mapped, summed
from tests.cuda.emulator import EmulatedCall, emulated
from tests.schedule.test_scan import (
    FAMILIES,
    affine,
    by,
    cumsum,
    exclusive,
    largest,
    levels,
    not_finite,
    same,
)
from weft.errors import ScheduleError
from weft.schedule.language import Scan, only

PARTED = [function for function in FAMILIES if function not in (exclusive, levels)]


def two(x, out, ends):
    """What one loop stores and carries is asked for by the next one, and behind both."""
    for i in range(x.shape[0]):
        s = 0.5
        for j in range(x.shape[1]):
            s = 0.5 * s + x[i, j]
            out[i, j] = s
        t = s
        for j in range(x.shape[1] - 1, -1, -1):
            t = 0.25 * t + out[i, j]
            out[i, j] = t * x[i, j]
        ends[i] = s + t


def in_place(x, out, ends):
    for i in range(x.shape[0]):
        s = 0.0
        p = 1.0
        for j in range(x.shape[1]):
            s = x[i, j] * s + x[i, j]
            p = max(p, out[i, j])
            x[i, j] = s
            out[i, j] -= p
        ends[i] = s * p


def check(text: str, function: Callable[..., Any], x: torch.Tensor) -> None:
    """Also of what is written in place."""
    given = [x.clone(), torch.randn(x.shape), torch.zeros(x.shape[0])]
    expected = [t.clone() for t in given]
    weft.kernel(function)(*expected)
    EmulatedCall.seen.clear()
    emulated(by(text, function))(*given)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    taken = only(EmulatedCall.seen[-1], Scan)
    assert taken is not None
    assert taken.parts > 1


@pytest.mark.sampled(15)
@pytest.mark.parametrize("function", PARTED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("text", ["scan((), 64, turns=2, parts=3)", "scan((), 64, parts=5)"])
def test_every_length(function: Callable[..., Any], text: str) -> None:
    kernel = by(text, function)
    for length in (3, 130, 700):
        same(kernel, torch.randn(2, length).clamp(-1.5, 1.5))
    assert only(EmulatedCall.seen[-1], Scan) is not None
    same(kernel, torch.empty(0, 5))
    same(kernel, torch.empty(2, 0))


@pytest.mark.parametrize("function", [two, in_place])
@pytest.mark.sampled(5)
@pytest.mark.slow
def test_loops_that_follow_each_other_and_stores_in_place(function: Callable[..., Any]) -> None:
    for text in ("scan((), 64, turns=2, parts=3)", "scan((), 64, width=4, parts=5)"):
        for length in (0, 132, 900):
            check(text, function, torch.randn(2, length).clamp(-1.5, 1.5))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("function", [*PARTED, two, in_place], ids=lambda f: f.__name__)
def test_the_ir(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier accepts it, its text reads back, and threads do not race."""
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    text, x = "scan((), 64, width=4, parts=3)", torch.randn(1, 900).clamp(-1.5, 1.5)
    if function in (two, in_place):
        check(text, function, x)
    else:
        same(by(text, function), x)


def test_what_is_not_finite_is_as_turn_by_turn() -> None:
    """Also where turns overwrite what they read: blocks do not read what others had."""

    def over(a, b):
        for i in range(a.shape[0]):
            s = 0.0
            for j in range(a.shape[1]):
                s = a[i, j] * s + b[i, j]
                b[i, j] = s

    a, b, expected = not_finite(1100, reset=900)
    emulated(by("scan((), 64, parts=4)", over))(a, b)
    torch.testing.assert_close(b, expected, equal_nan=True)


@pytest.mark.slow
def test_bits_depend_on_sizes_only() -> None:
    x = torch.randn(3, 1 + 1536)[:, 1:].double()
    y = x.contiguous()
    for function in (cumsum, affine, largest):
        found: list[torch.Tensor] = []
        for given, width in ((x, 1), (y, 1), (y, 2), (y, 2)):
            out = torch.zeros(3, 1536, dtype=torch.float64)
            emulated(by(f"scan((), 64, width={width}, parts=4)", function))(given, out)
            found.append(out)
        assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize(("rows", "length", "parts"), [
    (1, 1 << 25, 512), (64, 1 << 20, 8), (65, 1 << 20, 1), (1, 1 << 15, 8), (1, (1 << 15) - 1, 1),
    (32, 1 << 15, 1), (32, 1 << 16, 16), (64, 1 << 16, 1), (64, 1 << 17, 8),
    (0, 1 << 25, 512),
])  # fmt: skip
def test_what_a_call_takes(rows: int, length: int, parts: int) -> None:
    x = torch.empty(rows, length, device="meta")
    for function in (cumsum, largest, in_place):
        more = [torch.empty(rows, device="meta")] * (function is in_place)
        table = weft.kernel(function).schedules(x, torch.empty_like(x), *more, device="cuda")
        for taken in table.taken:
            assert ("parts=0" in taken.schedule) == (parts > 1)
            if rows:
                assert taken.grid == (rows, parts, 1)
    (taken,) = weft.kernel(levels).schedules(x, x, device="cuda").taken or [None]
    assert taken is None or "parts" not in taken.schedule


@pytest.mark.parametrize(("kernel", "count"), [(summed, 1), (mapped, 2)])
def test_derived_gradients_are_split(kernel: weft.Kernel, count: int) -> None:
    args = [torch.empty(1, 1 << 22, device="meta", requires_grad=True) for _ in range(count)]
    (taken,) = kernel.backward.schedules(*args, device="cuda").taken
    assert "width=4, parts=0" in taken.schedule


def branch(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        if x[i, 0] > 0.0:
            for j in range(x.shape[1]):
                s += x[i, j]
                out[i, j] = s


def again(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        first = out[i, 0]
        for j in range(x.shape[1]):
            s += x[i, j]
            out[i, j] = s * first


@pytest.mark.parametrize("function", [levels, exclusive, branch, again])
def test_refused(function: Callable[..., Any]) -> None:
    x = torch.randn(2, 40)
    with pytest.raises(ScheduleError) as raised:
        emulated(by("scan((), 64, parts=2)", function))(x, torch.zeros_like(x))
    first = str(raised.value).splitlines()[0]
    assert first.endswith(
        "blocks scan loops that are in no other loop or branch, whose values do not depend on "
        "each other; only stores to other arrays come behind them"
    )


def test_refused_sizes() -> None:
    x = torch.randn(2, 40)
    for text in ("scan((), 32, parts=2)", "scan((), 64, parts=1025)"):
        with pytest.raises(ScheduleError, match="1024 blocks of several warps scan an iteration"):
            emulated(by(text, cumsum))(x, torch.zeros_like(x))
