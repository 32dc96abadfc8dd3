"""Sums that a loop carries, whose values go on under another name."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from weft.autodiff.reverse import reverse
from weft.ir.core import walk
from weft.tools.cross import lowered_loops


@weft.kernel
def fibonacci(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        p, q = x[i, 0], x[i, 1]
        for _ in range(5):
            p, q = q, p + q
        out[i] = q
    return out


@weft.kernel
def one_before(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        before = 0.5
        for j in range(x.shape[1]):
            before = q
            q += x[i, j] * x[i, j]
        out[i] = before + 2 * q
    return out


@weft.kernel
def one_before_in_a_branch(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        before = 0.5
        for j in range(x.shape[1]):
            if j % 2 == 0:
                before = q
                q += x[i, j] * x[i, j]
        out[i] = before + 2 * q
    return out


@weft.kernel
def a_partial_sum(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        half = 0.0
        for j in range(x.shape[1]):
            q += x[i, j]
            half = q
            q += x[i, j] * x[i, j]
        out[i] = half * q
    return out


@weft.kernel
def the_new_sum_twice(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        r = 1.0
        for j in range(x.shape[1]):
            q += x[i, j] * x[i, j]
            r = q
        out[i] = r - 3 * q
    return out


@weft.kernel
def handed_on_by_a_branch(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        t = 0.0
        total = 0.0
        for j in range(x.shape[1]):
            if j > 0:
                t = q
                q += x[i, j] * x[i, j]
            else:
                t = 1.0
                q -= x[i, j]
            total += t
        out[i] = total + q
    return out


@weft.kernel
def nested(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        before = 0.0
        for j in range(x.shape[1]):
            before = q
            for k in range(j + 1):
                q += x[i, k] * x[i, j]
        out[i] = before * 2 + q
    return out


@weft.kernel
def nested_and_kept_inside(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        before = 0.0
        for j in range(x.shape[1]):
            for k in range(j + 1):
                before = q
                q += x[i, k] * x[i, j]
        out[i] = before * 2 + q
    return out


@weft.kernel
def in_a_while(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        before = 0.0
        j = 0
        while j < x.shape[1]:
            before = q
            q += x[i, j] * x[i, j]
            j += 1
        out[i] = before * 2 + q
    return out


@weft.kernel
def stored(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        q = 0.0
        for j in range(x.shape[1]):
            out[i, j] = q
            q += x[i, j] * x[i, j]
    return out


@weft.kernel
def three_in_a_ring(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        p, q, r = x[i, 0], x[i, 1], x[i, 2]
        for j in range(x.shape[1]):
            p, q, r = q, r, p + x[i, j]
        out[i] = p + 2 * q + 5 * r
    return out


@weft.kernel
def one_before_the_largest(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        m = -9.0
        before = 0.5
        for j in range(x.shape[1]):
            v = x[i, j]
            before = m
            m = v if v > m else m
        out[i] = before + 2 * m
    return out


@weft.kernel
def records(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        m = -math.inf
        s = 0.0
        for j in range(x.shape[1]):
            v = x[i, j]
            better = v > m
            m = v if better else m
            s += v * v if better else 0.0
        out[i] = m + 10 * s
    return out


@weft.kernel
def in_loops_one_after_the_other(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.5
        for j in range(x.shape[1]):
            for k in range(j):
                q += x[i, k] * x[i, j]
            q += x[i, j]
            for k in range(j, x.shape[1]):
                if x[i, k] > 0:
                    for n in range(2):
                        q -= x[i, n] * x[i, k] * x[i, j]
        out[i] = q
    return out


@weft.kernel
def read_between_loops(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        s = 0.0
        for j in range(x.shape[1]):
            for k in range(j + 1):
                q += x[i, k] * x[i, j]
            s += q * q
            for k in range(2):
                q += x[i, k]
        out[i] = q + s
    return out


@weft.kernel
def read_in_the_loop_inside(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        q = 0.0
        s = 0.0
        for j in range(x.shape[1]):
            for k in range(j + 1):
                q += x[i, k] * x[i, j]
                s += q * x[i, k]
        out[i] = q + s
    return out


@pytest.mark.parametrize(
    "kernel",
    [
        fibonacci, one_before, one_before_in_a_branch, a_partial_sum, the_new_sum_twice,
        handed_on_by_a_branch, nested, nested_and_kept_inside, in_a_while, stored,
        three_in_a_ring, one_before_the_largest, records, in_loops_one_after_the_other,
        read_between_loops, read_in_the_loop_inside,
    ],
)  # fmt: skip
@pytest.mark.sampled(5)
def test_gradients_flow_through_every_name(kernel):
    torch.manual_seed(0)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(kernel(x.detach()), kernel.interpret(x.detach()))
    assert gradcheck(kernel, [x])
    assert gradgradcheck(kernel, [x])


def test_a_plain_sum_still_has_no_tape():
    @weft.kernel
    def plain(x):
        out = torch.empty(x.shape[0], dtype=x.dtype)
        for i in range(x.shape[0]):
            q = 0.0
            for j in range(x.shape[1]):
                if x[i, j] > 0:
                    q += x[i, j] * x[i, j]
                else:
                    q -= x[i, j]
            out[i] = q
        return out

    assert "tape" not in str(plain.backward.inspect(torch.zeros(2, 3)))


def test_a_sum_over_a_window_is_no_sum_backwards():
    """Its loops went from the end of the window, which is where the image may end: the gradient was
    two loops, one for windows that do end there."""

    @weft.kernel
    def window(x, radius: int):
        out = torch.empty_like(x)
        rows, cols = x.shape
        for i, j in x:
            s = 0.0
            for a in range(max(i - radius, 0), min(i + radius + 1, rows)):
                for b in range(max(j - radius, 0), min(j + radius + 1, cols)):
                    s += x[a, b] * (a + 2 * b)
            out[i, j] = s
        return out

    x = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    window(x, 2).sum().backward()
    again = x.detach().requires_grad_()
    rows, cols = torch.arange(7)[:, None], torch.arange(6)
    weighted = torch.nn.functional.pad(again * (rows + 2 * cols), (2, 2, 2, 2))
    weighted.unfold(0, 5, 1).unfold(1, 5, 1).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    (function,) = lowered_loops(window, x.detach(), 2)
    (step,) = reverse(
        function, [0], [k for k, a in enumerate(function.args) if a.name == "out"]
    ).steps
    assert sum(op.name == "scf.for" for op in walk(step.body)) == 2
