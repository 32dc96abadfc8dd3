"""Periodic subscripts: the number of turns is one more index to sum over."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft


@weft.kernel
def ring(x, n: int):
    """``x`` may be longer than the ring."""
    out = torch.zeros_like(x)
    for i in range(n):
        out[i] = x[(i + 1) % n] * x[i] + x[(i - 1 + n) % n] ** 2 + x[(i - 2) % n]
    return out


@weft.kernel
def spokes(x, y):
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        s = 0.0
        for k in range(3):
            s += x[(i + 2 * k) % 4] * y[i]
        out[i] = s * s
    return out


@weft.kernel
def torus(x):
    out = torch.empty_like(x)
    H, W = x.shape
    for i, j in weft.ndrange(H, W):
        s = 0.0
        for a in range(3):
            for b in range(3):
                s += x[(i + a - 1) % H, (j + b - 1) % W] ** 2 * (a + 2 * b + 1)
        out[i, j] = s * s
    return out


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def check(kernel, *args):
    assert gradcheck(lambda *a: kernel(*a), args)
    assert gradgradcheck(lambda *a: kernel(*a), args)
    (found,) = {a.notes["d.x"] for s in kernel.specializations if s.derived
                for a in s.derived.adjoints}  # fmt: skip
    assert found == "gather"


@pytest.mark.parametrize(("size", "n"), [(1, 1), (2, 2), (5, 5), (7, 3), (4, 0)])
def test_a_ring(size, n):
    check(ring, draw(size), n)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 4, 11])
def test_several_turns(size):
    check(spokes, draw(6), draw(size))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 5)])
@pytest.mark.slow
def test_a_torus(shape):
    check(torus, draw(*shape))
