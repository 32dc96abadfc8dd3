"""Whose iterations an element is read by: strides, steps, and bounds that come from data."""

import time

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


@pytest.mark.slow
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
@pytest.mark.slow
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


@weft.kernel
def clamped(x):
    H, W = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(H, W):
        across = x[i, max(j - 1, 0)] * 2 + x[i, min(j + 1, W - 1)] ** 2
        out[i, j] = (x[max(i - 1, 0), j] + x[min(i + 2, H - 1), j]) * across + x[i, j]
    return out


@weft.kernel
def window(x):
    """Both ends of both subscripts, inside of loops."""
    H, W = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(H, W):
        s = 0.0
        for a in range(-2, 3):
            for b in range(-1, 2):
                u = min(max(i + a, 0), H - 1)
                v = max(min(j + b, W - 1), 0)
                s += (x[u, v] - x[i, j]) ** 2 * (a + 3 * b + 1)
        out[i, j] = s
    return out


@weft.kernel
def mirrored(x):
    W = x.shape[0]
    out = torch.empty_like(x)
    for i in range(W):
        s = 0.0
        for k in range(-1, 2):
            j = abs(i + k)
            if j >= W:
                j = max(2 * W - 2 - j, 0)
            s += x[j] ** 2 * (k + 2)
        out[i] = s
    return out


@weft.kernel
def wrapped(x):
    n = x.shape[0]
    out = torch.empty_like(x)
    for i in range(n):
        before = i - 1 if i > 0 else n - 1
        after = 0 if i == n - 1 else i + 1
        out[i] = x[before] * x[i] + x[after] ** 2
    return out


@weft.kernel
def last(x, y):
    """Most iterations read one element."""
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        out[i] = x[min(i, x.shape[0] - 1)] * y[i]
    return out


@weft.kernel
def corner(x):
    """Three clamps, one of them with crossing ends where ``x`` has few rows."""
    A, B, C = x.shape
    out = torch.empty_like(x)
    for i, j, k in weft.ndrange(A, B, C):
        s = 0.0
        for a in range(2):
            s += x[max(min(i + a, A - 2), 0), max(j - a, 0), min(k + 2 * a, C - 1)] ** 2 * (a + 1)
        out[i, j, k] = s
    return out


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 1), (3, 1, 4)])
def test_more_clamps_than_are_taken_apart(shape):
    check(corner, draw(*shape))
    assert all(form.startswith("gather") for form in forms(corner))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 1), (3, 5)])
@pytest.mark.parametrize("kernel", [clamped, window])
@pytest.mark.sampled(9)
def test_clamped_subscripts(kernel, shape):
    check(kernel, draw(*shape))
    assert all(form.startswith("gather") for form in forms(kernel))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("kernel", [pytest.param(mirrored, marks=pytest.mark.slow), wrapped])
def test_subscripts_that_are_chosen(kernel, size):
    check(kernel, draw(size))
    assert all(form.startswith("gather") for form in forms(kernel))


def test_a_clamp_that_most_iterations_end_at():
    check(last, draw(3), draw(7))
    x, y = draw(2), draw(20_000)
    (found,) = torch.autograd.grad(last(x, y).sum(), x)
    torch.testing.assert_close(found, torch.stack([y[0], y[1:].sum()]).detach())


@weft.kernel
def every_third(x, w):
    out = x.new_zeros(x.shape[0])
    for i in range(1, x.shape[0] - w.shape[0], 2):
        s = 0.0
        for j in range(i % 2, w.shape[0], 3):
            s += x[i + j] * w[j] ** 2
        for j in range(w.shape[0] - 1, -1, -2):
            s += x[i + j] ** 2 * w[j]
        out[i] = s
    return out


@weft.kernel
def tiles(x, w):
    out = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for k in range(0, w.shape[0], 4):
            for j in range(k, min(k + 4, w.shape[0])):
                s += x[i] * w[j] ** 2
        out[i] = s
    return out


@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 1), (6, 3), (9, 5), (12, 7)])
@pytest.mark.parametrize("kernel", [every_third, tiles])
@pytest.mark.sampled(9)
def test_steps(kernel, n, m):
    check(kernel, draw(n), draw(m))
    assert "gather" in forms(kernel)
    assert not any(form.startswith("atomic") for form in forms(kernel))


@weft.kernel
def strided_by(x, w, stride: int, pad: int):
    n = x.shape[0]
    out = x.new_zeros(n)
    for i in range(n):
        s = 0.0
        for k in range(w.shape[0]):
            at = i * stride + k - pad
            if 0 <= at < n:
                s += x[at] ** 2 * w[k]
        out[i] = s
    return out


@pytest.mark.parametrize("stride", [1, 2, 3, 0, -1, -2])
@pytest.mark.sampled(3)
@pytest.mark.slow
def test_strides_that_are_arguments(stride):
    check(strided_by, draw(7), draw(3), stride, 1 if stride > 0 else -6)
    assert all(form.startswith("gather") for form in forms(strided_by))


def test_a_stride_that_is_an_argument_bounds_the_sums():
    """Each element is read by three iterations, not tried with all of them."""
    x, w = draw(60_000), draw(3)
    with torch.autograd.set_multithreading_enabled(False):
        out = strided_by(x, w, 1, 1).sum()
        torch.autograd.grad(out, x, retain_graph=True)  # compiles it, which may take a second
        start = time.thread_time()
        torch.autograd.grad(out, x)
        assert time.thread_time() - start < 1.0  # 2 ms; all of them: 3,600,000,000 conditions
