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


def assigned(x):
    s = 0
    for i in range(x.shape[0]):
        s = s + x[i]
    return s


def assigned_from_the_right(x, out):
    for i in out:
        s = 1
        for j in range(x.shape[0]):
            s = x[j] * s
        out[i] = s


def digits(x, out):
    for i in out:
        s, power = 0, 0
        for j in range(x.shape[0]):
            s = s * 10 + (x[j] - 48)
        out[i] = s + power


def hashed(x, out):
    for i in out:
        s = 7
        for j in range(x.shape[0]):
            s = s * 33 ^ x[j]
        out[i] = s


def masked(x, out):
    for i in out:
        s = 7
        for j in range(x.shape[0]):
            s = (s * 33 + x[j]) & 255
        out[i] = s


def of_a_vector(x, out):
    for i in out:
        s = weft.Vector([0, 0])
        for j in range(x.shape[0]):
            s[0] += x[j]
        out[i] = s[0]


def of_a_wide_vector(x, out):
    for i in out:
        s = weft.Vector([0, 0])
        for j in range(x.shape[0]):
            s[0] += weft.i64(x[j])
        out[i] = s[0]


def counted_up(x, out):
    for i in out:
        c = 0
        c = x[i]
        c = c + 1
        out[i] = c


@pytest.mark.parametrize(
    ("kernel", "line"), [(assigned, 3), (assigned_from_the_right, 4), (of_a_vector, 4),
                         (digits, 4), (hashed, 4), (masked, 0), (of_a_wide_vector, 0),
                         (counted_up, 0)],
)  # fmt: skip
def test_other_forms_of_narrow_sums(kernel, line):
    x, out = torch.full((32,), 100, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    found = said(kernel, *[x, out][: kernel.__code__.co_argcount])
    text = "`s` has the type of what is accumulated, u8: it wraps at 8 bits"
    assert [(n, m.splitlines()[0]) for n, m in found] == (
        [(line, f"kernel `{kernel.__name__}`: {text}")] if line else []
    )


def largest(x):
    s = 0.0
    for v in x:
        s += max(v, 1.0)
    return s


def inside(x, out):
    for i in out:
        for v in x:
            out[i] += v


def products(x, out):
    for v, w in x:
        out[0] += v * w


@pytest.mark.parametrize(
    ("kernel", "line", "shape", "help"),
    [
        (largest, 3, (9,), "x[v] for the element, or `for v in range(x.shape[0])`"),
        (inside, 3, (9,), "x[v] for the element, or `for v in range(x.shape[0])`"),
        (products, 2, (3, 3), "x[v, w] for the element, or `for v, w in weft.ndrange(*x.shape)`"),
    ],
)
def test_other_forms_of_indices_that_are_taken_for_elements(kernel, line, shape, help):
    args = [torch.ones(shape), torch.zeros(2)][: kernel.__code__.co_argcount]
    assert said(kernel, *args) == [
        (line, f"kernel `{kernel.__name__}`: `v` is an index of `x`, not an element: no subscript "
         f"uses it\nhelp: write {help} if the index is meant"),
    ]  # fmt: skip


def meant(x, out):
    for v, w in weft.ndrange(*x.shape):
        out[0] += v * w


def kept(x, out):
    for i in out:
        last = i
        for v in x:
            last = v
        out[last] += 1.0


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


@pytest.mark.parametrize("kernel", [used, reversed_, bounds, through_a_function, counted, kept])
def test_indices_that_are_used_as_such_are_silent(kernel):
    args = [torch.ones(9) for _ in range(kernel.__code__.co_argcount)]
    assert said(kernel, *args) == []


def test_what_the_warning_says_to_write_is_silent():
    assert said(meant, torch.ones(3, 3), torch.zeros(2)) == []
