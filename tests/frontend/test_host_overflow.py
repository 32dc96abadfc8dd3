"""Debug mode checks integers of the host part as it does those of loops."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.errors import KernelOverflowError

SYMBOLS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.lshift: "<<"}


def add(x: weft.template(), b: int, mixed: bool):
    a, b = x[0], b if mixed else x[1]
    return a + b


def subtract(x: weft.template(), b: int, mixed: bool):
    a, b = x[0], b if mixed else x[1]
    return a - b


def multiply(x: weft.template(), b: int, mixed: bool):
    a, b = x[0], b if mixed else x[1]
    return a * b


def shift(x: weft.template(), b: int, mixed: bool):
    a, b = x[0], b if mixed else x[1]
    return a << b


KERNELS = dict(zip(SYMBOLS, (add, subtract, multiply, shift), strict=True))


@pytest.mark.parametrize("form", [*SYMBOLS])
@pytest.mark.parametrize("dtype", [weft.i8, weft.u8, weft.i16, weft.u32, weft.i64], ids=str)
def test_what_wraps_is_an_error_and_nothing_else(form: Any, dtype: Any) -> None:
    checked, x = weft.kernel(debug=True)(KERNELS[form]), weft.field(dtype, 2)
    low = -(1 << (dtype.bits - 1)) if dtype.signed else 0
    high = low + (1 << dtype.bits) - 1
    values = [v for v in {low, low + 1, -1, 0, 1, 2, 5, 11, high // 2, high - 1, high} if v >= low]
    for a in values:
        for b in values if form is not operator.lshift else (0, 1, dtype.bits - 2, dtype.bits - 1):
            x.from_numpy(np.array([a, b], dtype=str(dtype.torch)[6:]))
            exact = form(a, b)
            for mixed in (False, True):
                if low <= exact <= high:
                    assert int(checked(x, b, mixed)) == exact
                    continue
                with pytest.raises(KernelOverflowError) as info:
                    checked(x, b, mixed)
                assert info.value.message == f"{a} {SYMBOLS[form]} {b} overflows {dtype.name}"
                assert info.value.span.text.strip().startswith("return a")


@weft.kernel(debug=True)
def statements(n: weft.i32, x: weft.template()):
    n += 1
    x[0] += n
    v = weft.Vector([n, n]) * 2
    v[0] -= -n
    small: weft.i8 = n
    return n, v[0], small, weft.u8(n), -n // -1


def test_statements_of_every_kind() -> None:
    x = weft.field(weft.i16, 2)
    found = statements(9, x)
    assert [int(v) for v in found] == [10, 30, 10, 10, 10]
    assert x[0] == 10
    for n, line, message in (
        (2**31 - 1, "n += 1", "2147483647 + 1 overflows i32"),
        (2**30, "v = weft.Vector", "1073741825 * 2 overflows i32"),
        (127, "small: weft.i8 = n", "128 does not fit in i8"),
        (-10, "return n", "-9 does not fit in u8"),
    ):
        with pytest.raises(KernelOverflowError) as info:
            statements(n, weft.field(weft.i64, 2))
        assert info.value.message == message
        assert info.value.span.text.strip().startswith(line)
    x.fill(2**15 - 1)
    with pytest.raises(KernelOverflowError, match=r"32767 . 1 overflows i16"):
        added_to_an_element(x)
    assert x[0] == 2**15 - 1


@weft.kernel(debug=True)
def added_to_an_element(x):
    x[0] += 1


@weft.kernel(debug=True)
def negated(n: weft.i32):
    return -n


@weft.kernel(debug=True)
def others(n: int, x: torch.Tensor):
    n = n * n
    x += 1
    x[0] += 100
    y = x * 2
    return n, y[0], n**2 // 3, "a" + "b"


def test_what_is_no_number_of_a_dtype_is_left_alone() -> None:
    with pytest.raises(KernelOverflowError, match="--2147483648 overflows i32"):
        negated(-(2**31))
    assert negated(-(2**31) + 1) == 2**31 - 1
    x = torch.zeros(2, dtype=torch.int8)
    n, y, more, text = others(2**40, x)
    assert (n, more, text) == (2**80, 2**160 // 3, "ab")
    assert x.tolist() == [101, 1]
    assert int(y) == -54  # torch's own arithmetic
