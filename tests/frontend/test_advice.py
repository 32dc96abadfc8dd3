"""Loops that mean what they say, and probably not what was meant: a warning, once a line."""

import warnings

import pytest
import torch

import weft
from weft.frontend.advice import LoopWarning


def said(kernel, *args):
    fresh = weft.kernel(kernel)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            fresh(*args)
    assert all(w.category is LoopWarning and w.filename == __file__ for w in found)
    first = kernel.__code__.co_firstlineno
    return [(w.lineno - first, str(w.message)) for w in found]


def total(x):
    s = 0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def rows(x, out):
    for i in out:
        s = 0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s


def wide(x):
    s = weft.i64(0)
    for i in range(x.shape[0]):
        s += x[i]
    return s


@pytest.mark.parametrize(("dtype", "name", "bits"), [
    (torch.uint8, "u8", 8), (torch.int8, "i8", 8), (torch.int16, "i16", 16),
])  # fmt: skip
def test_sums_of_narrow_integers(dtype, name, bits):
    text = (
        f"`s` has the type of what is accumulated, {name}: it wraps at {bits} bits\n"
        "help: start from a wider number, `s = weft.i64(0)`, or accumulate weft.i64(...)"
    )
    assert said(total, torch.ones(9, dtype=dtype)) == [(3, f"kernel `total`: {text}")]
    out = torch.zeros(2, dtype=torch.int32)
    assert said(rows, torch.ones(2, 9, dtype=dtype), out) == [(4, f"kernel `rows`: {text}")]
    assert said(wide, torch.ones(9, dtype=dtype)) == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.bool])
def test_other_sums_are_silent(dtype):
    assert said(total, torch.ones(9, dtype=dtype)) == []


def elements(x):
    s = 0.0
    for v in x:
        s += v
    return s


def test_a_loop_over_a_tensor_gives_indices():
    assert said(elements, torch.ones(9)) == [
        (3, "kernel `elements`: `v` is an index of `x`, not an element: no subscript uses it\n"
            "help: write x[v] for the element, or `for v in range(x.shape[0])` if the index is "
            "meant"),
    ]  # fmt: skip


def used(x):
    for i in x:
        x[i] = i


def reversed_(x, out):
    for i in x:
        j = x.shape[0] - 1 - i
        out[j] = 1.0


def bounds(x, out):
    for i in x:
        for j in range(i):
            out[j] += 1.0


def helper(x, i):
    return x[i]


def through_a_function(x, out):
    for i in x:
        out[0] += helper(x, i)


def counted(x):
    s = 0
    for _ in x:
        s += 1
    return s


@pytest.mark.parametrize("kernel", [used, reversed_, bounds, through_a_function, counted])
def test_indices_that_are_used_as_such_are_silent(kernel):
    args = [torch.ones(9) for _ in range(kernel.__code__.co_argcount)]
    assert said(kernel, *args) == []
