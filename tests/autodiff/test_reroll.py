"""Accumulations of a window that is written out are one loop nest."""

import math

import pytest
import torch

import weft
from tests.autodiff.test_gather import notes
from weft.ir.core import walk


@weft.kernel
def stencil(x, w):
    n, m = x.shape
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(n, m):
        for k, h in weft.static(weft.ndrange(3, 5)):
            if 0 <= i + k - 1 < n and 0 <= j + h - 2 < m:
                out[i, j] += w[k, h] * x[i + k - 1, j + h - 2]
    return out


@weft.kernel
def summed(x, w):
    """The same sum in a local variable, and the window turned round."""
    n, m = x.shape
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(n, m):
        s = 0.0
        for k, h in weft.static(weft.ndrange(3, 5)):
            if 0 <= i + k - 1 < n and 0 <= j + h - 2 < m:
                s += w[2 - k, 4 - h] * x[i + k - 1, j + h - 2]
        out[i, j] = s
    return out


@weft.kernel
def picked(x, w):
    """Conditions on data, which no bounds of loops say."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange((1, x.shape[0] - 1), x.shape[1]):
        for k in weft.static(range(4)):
            if x[i + k // 2, j] > 0.25 * x[i, j]:
                out[i, j] += torch.tanh(w[k, 0]) * x[i + k // 2, j]
            if x[i - 1, j] > 0.0:
                out[i, j] += w[k, 1] * x[i, j] * x[i - 1, j]
    return out


@weft.kernel
def common(x, w):
    """The number 1 is a place of the window, and a distance that all have in common."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        for k in weft.static(range(4)):
            if i + 4 < x.shape[0]:
                out[i, j] += w[k, 0] * x[i + k, j] * x[i + 1, j]
    return out


@weft.kernel
def scaled(x, w):
    """Numbers of floats differ, too."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        for k in weft.static(range(4)):
            if i + 4 < x.shape[0]:
                out[i, j] += w[k, 0] * x[i + k, j] * (0.5 * k)
    return out


@weft.kernel
def corner(x, w):
    """No box: one element of the window is missing."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        for k, h in weft.static(weft.ndrange(3, 3)):
            if weft.static(k + h < 4) and i + 2 < x.shape[0] and j + 2 < x.shape[1]:
                out[i, j] += w[k, h] * x[i + k, j + h]
    return out


@weft.kernel
def squares(x, w):
    """Distances that are no multiples of the place, and two windows of one weight."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0] - 4, x.shape[1]):
        for k in weft.static(range(3)):
            out[i, j] += w[k, 0] * x[i + k * k, j] + w[k, 1] * x[i, j]
            out[i, j] += w[k, 1] * x[i + k, j]
    return out


def gradients(kernel, x, w, g):
    return torch.autograd.grad(kernel(x, w), (x, w), g)


def inputs(n=7, m=6, shape=(3, 5)):
    torch.manual_seed(n * m)
    x, w = torch.randn(n, m, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


@pytest.mark.parametrize("size", [(7, 6), (1, 1), (2, 9), (0, 4), (40, 33)])
@pytest.mark.parametrize("kernel", [stencil, summed])
def test_a_window_is_right_at_the_edges(kernel, size):
    x, w = inputs(*size)
    g = torch.randn_like(x)
    turned = w if kernel is stencil else w.flip(0, 1)
    padded = torch.nn.functional.pad(x, (2, 2, 1, 1))
    n, m = size
    expected = sum(turned[k, h] * padded[k : k + n, h : h + m] for k in range(3) for h in range(5))
    torch.testing.assert_close(kernel(x, w), expected)
    for found, right in zip(gradients(kernel, x, w, g),
                            torch.autograd.grad(expected, (x, w), g), strict=True):  # fmt: skip
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("kernel", [stencil, summed, picked, common, scaled, corner, squares])
def test_gradients(kernel):
    x, w = inputs(7, 5, (4, 5))
    assert torch.autograd.gradcheck(kernel, (x, w))


@pytest.mark.parametrize(
    ("kernel", "loops"), [(stencil, 2), (summed, 2), (common, 2), (scaled, 8), (corner, 16)]
)
def test_one_nest_sums_for_all_elements_of_the_window(kernel, loops):
    found, made = notes(kernel, torch.randn(9, 8), torch.randn(4, 5))
    assert found["d.w"] == "gather"
    own = next(f for f in made.steps if f.name.endswith("d_w"))
    assert sum(op.name == "scf.for" for op in walk(own.body)) == loops


def test_conditions_that_bound_the_loops_are_not_asked_again():
    _, made = notes(stencil, torch.randn(9, 8), torch.randn(3, 5))
    own = next(f for f in made.steps if f.name.endswith("d_w"))
    loops = [op for op in walk(own.body) if op.name == "scf.for"]
    assert not any(op.name == "scf.if" for loop in loops for op in walk(loop.body))


def test_sums_under_conditions_keep_no_copies_of_one_adjoint():
    _, made = notes(summed, torch.randn(9, 8), torch.randn(3, 5))
    assert not made.workspaces


def test_signs_of_zeros_are_kept():
    @weft.kernel
    def quotients(x, w):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            if i > 0:
                out[i] += w[0] / (x[i] * 0.0)
                out[i] += w[1] / (x[i] * -0.0)
                out[i] += w[2] / (x[i] * 0.0)
                out[i] += w[3] / (x[i] * -0.0)
        return out

    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    quotients(torch.ones(2, dtype=torch.float64), w).sum().backward()
    assert w.grad.tolist() == [math.inf, -math.inf, math.inf, -math.inf]


@weft.kernel
def contrast(x, space):
    """Colours around a pixel, and its own: contributions in two loops and behind them."""
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        here = weft.Vector([x[i, j, 0], x[i, j, 1], x[i, j, 2]])
        seen = weft.Vector([0.0, 0.0, 0.0])
        for a in range(max(i - 2, 0), min(i + 3, x.shape[0])):
            for b in range(max(j - 2, 0), min(j + 3, x.shape[1])):
                there = weft.Vector([x[a, b, 0], x[a, b, 1], x[a, b, 2]])
                seen += math.exp(-(there - here).norm_sqr() / space[()]) * there
        for c in weft.static(range(3)):
            out[i, j, c] = seen[c]
    return out


def test_what_each_channel_adds_in_a_loop_is_one_loop_beside_what_it_adds_behind():
    x = torch.rand(7, 6, 3, dtype=torch.float64).requires_grad_()
    space = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(contrast, (x, space))
    assert torch.autograd.gradgradcheck(contrast, (x[:3, :4], space))
    _, made = notes(contrast, x.detach(), space.detach())
    own = next(f for f in made.steps if f.name.endswith("d_x"))
    assert sum(op.name == "scf.for" for op in walk(own.body)) == 2  # six with one for each channel
