"""What adjoints call their arguments, beside what a person, or a derivative before, calls them."""

from __future__ import annotations

import linecache
from collections import namedtuple

import pytest
import torch
from torch.autograd import gradgradcheck

import weft
from weft.autodiff.names import order_of
from weft.ir.core import Function
from weft.ir.types import MemRefType, f64

WORDS = ("d", "d2", "t", "work", "work2", "before", "tape1", "version1")
Held = namedtuple("Held", ["x", "own"])  # of any tensors

KERNEL = """
def kernel(WORD, x, start):
    out, own = torch.empty_like(x), start * 1.0
    for i in range(x.shape[0]):
        s = 1.0
        for turn in range(3):
            own[i] = own[i] * x[i] + WORD.own[i]
            s += s * own[i] * WORD.x[(i + 1) % x.shape[0]]
        out[i] = s
    return out
"""


def in_torch(a, b, x, own):
    s = torch.ones_like(x)
    for _ in range(3):
        own = own * x + b
        s = s + s * own * a.roll(-1)
    return s


def named(word):
    text, name = KERNEL.replace("WORD", word), f"<{word}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {"torch": torch}
    exec(compile(text, name, "exec", dont_inherit=True), scope)
    return weft.kernel(scope["kernel"])


def draw(n):
    return torch.rand(n, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("word", WORDS)
def test_an_argument_may_be_called_as_an_adjoint_calls_its_own(word):
    """The member `own` of `work` is `work.own`, as the copy is in which the loop is carried out
    again on what it overwrites: that is the argument `own`."""
    kernel = named(word)

    def call(a, b, x, own):
        return kernel(Held(a, b), x, own)

    values = [draw(5) for _ in range(4)]
    along = tuple(torch.rand_like(v) for v in values)
    found, expected = (
        torch.func.jvp(f, (*(v.detach() for v in values),), along) for f in (call, in_torch)
    )
    torch.testing.assert_close(found, expected)
    first, torchs = (torch.autograd.grad((f(*values) ** 2).sum(), values, create_graph=True)
                     for f in (call, in_torch))  # fmt: skip
    torch.testing.assert_close(first, torchs)
    found, expected = (
        torch.autograd.grad(sum((g**2).sum() for g in each), values) for each in (first, torchs)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.cpu
@pytest.mark.parametrize("word", WORDS)
def test_a_compiled_graph_keeps_them_apart(word):
    kernel = named(word)
    values = [draw(5) for _ in range(4)]

    def call(a, b, x, own):
        return kernel(Held(a, b), x, own)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(f(*values).sum(), values) for f in (compiled, in_torch))
    torch.testing.assert_close(found, expected)


@weft.kernel
def until_large(trips, x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s, k = x[i], 0
        while s < 3.0 and k < 50:
            s = s * s * trips[i] + 0.5 * s + 0.3
            k += 1
        out[i] = s
    return out


def test_an_argument_may_be_called_trips():
    """So was the argument in which trips of loops are counted, whose lengths depend on data."""
    trips, x = draw(7), draw(7)
    s = x
    for _ in range(50):
        s = torch.where(s < 3.0, s * s * trips + 0.5 * s + 0.3, s)
    found, expected = (torch.autograd.grad(f.sum(), (trips, x)) for f in (until_large(trips, x), s))
    torch.testing.assert_close(found, expected)


@weft.kernel
def never(y):
    own = torch.zeros(y.shape[0], 3, dtype=y.dtype) + 0.5
    weft.loop_config(serialize=True)
    for i in range(y.shape[0]):
        f = y[i]
        if i > 0 and i < 1:
            c = 1
            for k in range(1):
                c = c + 1
                f -= own[i, k % 3] * f
            own[i, 0] += f * own[i, c % 3]
        own[i, 1] = f * f
    return own


def test_the_derivative_of_an_adjoint_has_copies_of_its_own():
    """`work.own` of the first is an argument of the second, and no copy of what `own` was."""
    assert gradgradcheck(never, (draw(4),))


@pytest.mark.cpu
def test_numbers_of_derivatives():
    def function(*names, **attrs):
        return Function("f", [MemRefType(f64, 1)] * len(names), names, attrs)

    assert order_of(function("x", "d", "work")) == 1
    assert order_of(function("x", "d.x")) == 2
    assert order_of(function("x", "d.x", order=1)) == 2
    assert order_of(function("before.x", "work2.x", "tape3.v")) == 4
    assert order_of(function("d.x", "d2.x", order=1)) == 3
