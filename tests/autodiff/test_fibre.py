"""Whose iterations an element is read by: strides, steps, and bounds that come from data."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def forms(kernel):
    """How the gradients of a kernel are accumulated."""
    return {note for s in kernel.specializations if s.derived
            for a in s.derived.adjoints for note in a.notes.values()}  # fmt: skip


def check(kernel, *args):
    assert gradcheck(kernel, args)
    assert gradgradcheck(kernel, args)


@weft.kernel
def strided_and_dilated(x, w):
    n = (x.shape[0] - 2 * w.shape[0]) // 3 + 1
    out = x.new_empty(n)
    for i in range(n):
        s = 0.0
        for j in range(w.shape[0]):
            s += x[3 * i + 2 * j] * w[j]
        out[i] = s
    return out


@weft.kernel
def even(x):
    out = x.new_empty(x.shape[0] // 2, 3)
    for i, k in weft.ndrange(x.shape[0] // 2, 3):
        out[i, k] = x[2 * i] ** 2 * k
    return out


def test_several_strides_in_one_subscript():
    check(strided_and_dilated, draw(17), draw(4))
    assert forms(strided_and_dilated) == {"gather"}


@pytest.mark.parametrize("size", [0, 2, 7])
def test_elements_that_no_iteration_reads(size):
    check(even, draw(size))
    assert forms(even) == {"gather"}


@weft.kernel
def first_rows(x, w, counts):
    out = x.new_zeros(x.shape[0])
    for i in range(counts[0] % 8):
        s = 0.0
        for j in range(w.shape[0]):
            s += x[i + j] * w[j]
        out[i] = s
    return out


@pytest.mark.parametrize("count", [0, 4, 13])
def test_bounds_that_are_read_from_a_tensor(count):
    check(first_rows, draw(7), draw(2), torch.tensor([count]))
    assert forms(first_rows) == {"gather"}


@weft.kernel
def most(x, w, counts):
    out = x.new_zeros(x.shape[0])
    for i in range(counts[0]):
        out[i] = x[i] * w[0]
    return out


def test_long_sums_with_bounds_from_a_tensor():
    x, w = draw(30_000), draw(1)
    out = most(x, w, torch.tensor([29_900]))
    (found,) = torch.autograd.grad(out.sum(), w)
    torch.testing.assert_close(found, x.detach()[:29_900].sum()[None])
