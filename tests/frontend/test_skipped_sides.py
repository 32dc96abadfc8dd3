"""``found = found or f(i)``, accumulated: Python calls ``f`` only until one is true."""

from __future__ import annotations

import pytest
import torch

import weft


def mark(x, out, k):
    out[k] = 1
    return x[k] > 0


def positive(v):
    assert v < 3, "large"
    return v > 0


def larger(v):
    a = [v, 1.0]
    for k in range(2):
        a[k] += 1
    return a[0] > 1


@weft.kernel
def stores(x, out):
    found = False
    for i in range(x.shape[0]):
        found = found or mark(x, out, i)
    return found


@weft.kernel
def asserts(x, out):
    found = True
    for i in range(x.shape[0]):
        found = found and positive(x[i])
    return found


@weft.kernel
def updates(x, out):
    found = False
    for _ in range(x.shape[0]):
        found = found or weft.atomic_add(out[0], 1) > 0
    return found


@weft.kernel
def in_order(x, out):
    found = False
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        found = found or mark(x, out, i)
    return found


@weft.kernel
def called_before(x, out):
    found = False
    for i in range(x.shape[0]):
        one = mark(x, out, i)
        found = found or one
    return found


@weft.kernel
def called_first(x, out):
    found = False
    for i in range(x.shape[0]):
        found = mark(x, out, i) or found
    return found


@weft.kernel
def of_its_own(x, out):
    found = True
    for i in range(x.shape[0]):
        found = found and larger(x[i])
    return found


X = torch.tensor([-1.0, 2.0, 3.0, 4.0, 0.0])


@pytest.mark.parametrize("kernel", [stores, asserts, updates], ids=["store", "assert", "atomic"])
@pytest.mark.parametrize("debug", [False, True])
def test_effects_are_refused(kernel: weft.Kernel, debug: bool) -> None:
    word = "and" if kernel is asserts else "or"
    with pytest.raises(weft.CompileError, match=f"evaluates all of `found = found {word}"):
        weft.kernel(debug=debug)(kernel.__wrapped__)(X, torch.zeros(5))


@pytest.mark.parametrize("kernel", [in_order, called_before, called_first, of_its_own],
                         ids=["in order", "before", "first", "own list"])  # fmt: skip
def test_what_python_calls_too(kernel: weft.Kernel) -> None:
    expected, out = torch.zeros(5), torch.zeros(5)
    assert bool(kernel(X, out)) == bool(kernel.interpret(X, expected))
    assert torch.equal(out, expected)
