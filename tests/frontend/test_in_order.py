"""Loops in order at the top of a kernel: carried scalars, ``break``, ``return``."""

from __future__ import annotations

import math

import pytest
import torch

import weft


def cumulative(x, out, a: float):
    s, last, n = 0.0, -1, 0
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        s = a * s + x[i]
        out[i] = s
        if x[i] > 1:
            last = i
        if x[i] > 2:
            break
        n += 1
    return s, last, n


def first_above(x, bound: float):
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > bound:
                return i, x[i, j]
            if x[i, j] < -bound:
                return x, -1.0
    return -1, math.nan


def stops(x):
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        if x[i] < 0:
            return
        x[i] *= 2
    x += 100


def same(found, expected) -> None:
    assert type(found) is type(expected) or not isinstance(expected, tuple)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.as_tensor(a).double(), torch.as_tensor(b).double(), equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_scalars_are_carried(dtype: torch.dtype) -> None:
    kernel = weft.kernel(cumulative)
    for n in (0, 1, 2, 17):
        x = (torch.randn(n) * 2).to(dtype)
        for run in (kernel, kernel.interpret):
            expected, found = (torch.full((n,), 7.0) for _ in range(2))
            same(run(x, found, 0.5), cumulative(x, expected, 0.5))
            torch.testing.assert_close(found, expected)


def test_return_leaves_the_kernel() -> None:
    kernel, stop = weft.kernel(first_above), weft.kernel(stops)
    for bound in (0.5, 1.5, 5.0):
        x = torch.randn(4, 5)
        for run in (kernel, kernel.interpret):
            same(run(x, bound), first_above(x, bound))
    for values in ([1.0, 2.0], [1.0, -1.0, 2.0], [-1.0]):
        for run in (stop, stop.interpret):
            expected, found = torch.tensor(values), torch.tensor(values)
            stops(expected)
            assert run(found) is None
            assert torch.equal(found, expected)


def test_gradients_go_through_carried_scalars() -> None:
    @weft.kernel
    def filtered(x, a):
        out, s = torch.empty_like(x), 0.0
        weft.loop_config(serialize=True)
        for i in range(x.shape[0]):
            s = a[0] * s + x[i]
            out[i] = torch.tanh(s)
        return out, s

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    a = torch.randn(1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(filtered, (x, a))


def test_a_loop_that_is_in_order_when_asked() -> None:
    """Both forms of the loop are there: the parallel one adds up, the other one carries."""

    @weft.kernel
    def total(x, ordered: bool):
        s = 0.0
        weft.loop_config(serialize=ordered)
        for i in range(x.shape[0]):
            s += x[i]
        return s

    x = torch.randn(100, dtype=torch.float64)
    for ordered in (True, False):
        torch.testing.assert_close(total(x, ordered), x.sum())


def test_a_name_lives_on_into_the_next_turn_of_a_loop_around() -> None:
    """It is read further up, in the next turn, and nowhere below."""

    def marked(x, out):
        last = 0
        for k in weft.serial(range(3)):
            out[k : k + 1] += last
            weft.loop_config(serialize=True)
            for t in range(x.shape[0]):
                if x[t] > 0:
                    last = t + k
        while last < 9:
            out += last
            weft.loop_config(serialize=True)
            for t in range(x.shape[0]):
                if x[t] < 0:
                    last = last + 4 + t
                    break
        return out

    x = torch.tensor([1.0, -1.0, 2.0, -3.0])
    expected = marked(x, torch.zeros(3))
    for run in (weft.kernel(marked), weft.kernel(marked).interpret):
        torch.testing.assert_close(run(x, torch.zeros(3)), expected)
