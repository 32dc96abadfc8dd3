"""What a loop carries, and how that may be combined: values that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from weft import compiler
from weft.ir.core import walk
from weft.schedule.combiners import combiners
from weft.schedule.language import Cooperate, only
from weft.tools.cross import lowered_loops


def kinds(function: Callable[..., Any]) -> list[list[str | None]]:
    """The combiners of a kernel's loops."""
    x, out = torch.empty(4, 9, device="meta"), torch.empty(4, 4, device="meta")
    (loop,) = lowered_loops(weft.kernel(function), x, out)
    made = compiler.optimize(loop)
    return [combiners(op).kinds for op in walk(made.body) if op.name == "scf.for"]


def place_of_largest(x, out):
    for i in range(x.shape[0]):
        best = -math.inf
        place = -1
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                place = j
        out[i, 0] = best
        out[i, 1] = place


def last_of_smallest(x, out):
    for i in range(x.shape[0]):
        place = -1
        other = 0.25
        least = 1.0
        for j in range(1, x.shape[1]):
            value = x[i, j]
            if least >= value:
                other = x[i, j - 1]
                place = 2 * j
                least = value
        out[i, 0] = least
        out[i, 1] = place
        out[i, 2] = other


def both_ends(x, out):
    for i in range(x.shape[0]):
        high = -1.0
        low = 1.0
        where = 0
        there = 0
        total = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > high:
                high = x[i, j]
                where = j
            total += x[i, j]
            if x[i, j] < low:
                low = x[i, j]
                there = j
        out[i, 0] = where
        out[i, 1] = there
        out[i, 2] = total


def mean_and_variance(x, out):
    for i in range(x.shape[0]):
        mean = 0.0
        squares = 0.0
        for j in range(x.shape[1]):
            d = x[i, j] - mean
            mean += d / (j + 1)
            squares += d * (x[i, j] - mean)
        out[i, 0] = mean
        out[i, 1] = squares


def counted_mean(x, out):
    for i in range(x.shape[0]):
        mean = 2.0
        squares = 1.0
        n = 3
        for j in range(2, x.shape[1]):
            n += 1
            d = x[i, j] - mean
            mean = mean + d / n
            squares = (x[i, j] - mean) * d + squares
        out[i, 0] = mean
        out[i, 1] = squares
        out[i, 2] = n


FOUND: list[tuple[Callable[..., Any], list[list[str | None]]]] = [
    (place_of_largest, [["first.ogt", "with:0", "at.first:0"]]),
    (last_of_smallest, [["with:2", "with:2", "last.ole", "at.last:2"]]),
    (mean_and_variance, [["mean", "squares:0", "count:0"]]),
    (counted_mean, [["count:1", "mean", "squares:1"]]),
]


@pytest.mark.parametrize(("function", "found"), FOUND)
def test_values_that_belong_together(
    function: Callable[..., Any], found: list[list[str | None]]
) -> None:
    assert [sorted(map(str, each)) for each in kinds(function)] == [
        sorted(map(str, each)) for each in found
    ]
    assert None not in kinds(function)[0]


def test_two_extrema_and_a_sum() -> None:
    (found,) = kinds(both_ends)
    assert sorted(str(kind).partition(":")[0] for kind in found) == [
        "addf", "at.first", "at.first", "first.ogt", "first.olt", "with", "with",
    ]  # fmt: skip


# -- what has an order


def second_largest(x, out):
    for i in range(x.shape[0]):
        best = -1.0
        second = -1.0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                second = best
                best = x[i, j]
        out[i, 0] = second


def records(x, out):
    for i in range(x.shape[0]):
        best = -1.0
        n = 0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                n += 1
        out[i, 0] = n


def so_far(x, out):
    for i in range(x.shape[0]):
        best = -1.0
        place = 0
        total = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                place = j
            total += best
        out[i, 0] = total + place


def not_below(x, out):  # a NaN is taken
    for i in range(x.shape[0]):
        best = -1.0
        place = 0
        for j in range(x.shape[1]):
            if not x[i, j] <= best:
                best = x[i, j]
                place = j
        out[i, 0] = place


def of_another(x, out):
    for i in range(x.shape[0]):
        best = -1.0
        place = 0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = 2.0 * x[i, j]
                place = j
        out[i, 0] = place


def stored(x, out):
    for i in range(x.shape[0]):
        best = -1.0
        place = 0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                place = j
                out[i, 1] = j
        out[i, 0] = place


def steps_of_the_mean(x, out):
    for i in range(x.shape[0]):
        mean = 0.0
        most = 0.0
        for j in range(x.shape[1]):
            d = x[i, j] - mean
            mean += d / (j + 1)
            most = max(most, d)
        out[i, 0] = most + mean


def from_two(x, out):
    for i in range(x.shape[0]):
        mean = 0.0
        for j in range(2, x.shape[1]):
            mean += (x[i, j] - mean) / (j + 1)
        out[i, 0] = mean


def weighted(x, out):
    for i in range(x.shape[0]):
        mean = 0.0
        for j in range(x.shape[1]):
            mean += (x[i, j] - mean) / (j + 1) * 0.5
        out[i, 0] = mean


@pytest.mark.parametrize("function", [second_largest, records, so_far, not_below, of_another,
                                      stored, steps_of_the_mean, from_two, weighted])  # fmt: skip
def test_what_depends_on_the_order(function: Callable[..., Any]) -> None:
    (found,) = kinds(function)
    assert None in found


# -- what groups of threads compute

TEXTS = ("split_reduction((), 32, parts=3)", "split_reduction((), 32, columns=4, parts=2)",
         "cooperate((), 8)", "cooperate((), 64, columns=8)")  # fmt: skip
FUNCTIONS = [weft.kernel(function) for function in (*(f for f, _ in FOUND), both_ends)]


def some(length: int) -> torch.Tensor:
    """Rows with ties, infinities, zeros of both signs and NaN."""
    torch.manual_seed(length)
    x = torch.randint(-3, 4, (6, length)).float()
    x[1] = -math.inf
    x[2] = 0.0
    x[2, ::2] = -0.0
    x[3, ::3] = math.nan
    x[4] = torch.randn(length) + 100
    return x


@pytest.mark.slow
@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_numbers_are_those_of_the_loop(text: str, interpreted: bool) -> None:
    EmulatedCall.interpreted = interpreted
    try:
        for kernel in FUNCTIONS:
            made = emulated(weft.kernel(schedule={"cuda": text})(kernel.function))
            for length in (70,) if interpreted else (0, 1, 2, 300):
                x = some(length)[: 2 if interpreted else None]
                expected, out = torch.zeros(6, 4), torch.zeros(6, 4)
                kernel(x, expected)
                made(x, out)
                assert only(EmulatedCall.seen[-1], Cooperate) is not None
                exact = kernel.function in (place_of_largest, last_of_smallest)
                torch.testing.assert_close(
                    out, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-3,
                    equal_nan=True,
                )  # fmt: skip
                assert torch.equal(out.signbit() | out.isnan(), expected.signbit() | out.isnan())
    finally:
        EmulatedCall.interpreted = False


@pytest.mark.slow
def test_integers_of_every_kind() -> None:
    for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8, torch.float64):
        x = torch.randint(0, 5, (3, 100)).to(dtype)
        if dtype in (torch.int8, torch.int32, torch.int64):
            x -= 3

        @weft.kernel(schedule={"cuda": "split_reduction((), 32, parts=2)"})
        def place(x, out):
            for i in range(x.shape[0]):
                best = 1
                where = -1
                for j in range(x.shape[1]):
                    if x[i, j] >= best:
                        best = x[i, j]
                        where = j
                out[i] = where

        expected, out = torch.zeros(3).long(), torch.zeros(3).long()
        place(x, expected)
        emulated(place)(x, out)
        assert torch.equal(out, expected)


def test_strict_math_keeps_means_but_not_places() -> None:
    for function, shared in ((place_of_largest, True), (mean_and_variance, False)):
        x, out = torch.empty(4, 9, device="meta"), torch.empty(4, 4, device="meta")
        (loop,) = weft.compile_for("sm_90", weft.kernel(strict_math=True)(function), x, out).loops
        assert any("cooperate" in text for text in loop.facts.candidates) == shared
