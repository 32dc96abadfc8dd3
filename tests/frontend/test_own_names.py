# ruff: noqa: B007, B023, PLW - as people write them
"""A name that several loops go over by: each has it for itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


def keys_twice(x, out):
    for i in range(out.shape[0]):
        d = {0: "p", 1: "q", 2: "r"}
        e = {"p": 1.5, "q": 2.0, "r": x[i]}
        s = 0.0
        for k in d:
            s += e[d[k]]
        for k in d:
            s = 2 * s - e[d[k]]
        for k in range(3):
            s += k * i
        for k in weft.static(range(2)):
            s += e[d[k]] * 3
        out[i] = s


def floats_and_integers(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for v in x[:]:
            s += v
        for v in range(3):
            s += x[v] * v
        for v in ("a", "b"):
            if v == "b":
                s *= 2
        for k, v in {1: 2.0, 2: 3.0}.items():
            s += x[k] * v
        for k, v in enumerate((4, x[i])):
            s += k * v
        out[i] = s


def in_loops_and_branches(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        d = {1: 2.0, 3: 4.0}
        for n in range(i):
            for k in d:
                if x[i] > 0:
                    s += d[k] * n
                if k == 3:
                    break
            for k in d:
                if x[k] > 1:
                    continue
                s -= d[k]
        if s > 0:
            for k in d:
                s += d[k]
        else:
            for k in d:
                s *= d[k]
        out[i] = s


def weighed(x, i, d):
    s = 0.0
    for k in d:
        s += d[k] * x[k]
    for k in d:
        if d[k] * x[k] > 1:
            return s
        s += x[i]
    return s * 2


def in_functions(x, out):
    for i in range(out.shape[0]):
        d = {1: 2.0, 3: 4.0}

        def scaled(t):
            for k in d:
                t = t + d[k]
            for k in d:
                t = t * d[k]
            return t

        out[i] = weighed(x, i, d) + scaled(x[i])


def read_after(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for k in (1, 2, 3):
            s += sum(k * j for j in range(3)) + sum(k for k in (1, 2))
        for k in (4, 5):
            s += x[i] * k
        for k in (1, 2):
            pass
        for f in (torch.sin, torch.cos):
            s += f(x[i])
        for f, w in ((torch.exp, 1.0), (torch.abs, 2.0)):
            s += f(x[i]) * w
        out[i] = s + k


def within_each_other(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for k in (1, 2):
            for k in (5, 6):
                s += k * x[i]
            s += k
        for row in ([1, 2], [3, 4]):
            s += row[0]
        for row in ([1, 2, 3], [3, 4, 5]):
            s += row[2] * x[i]
        out[i] = s


def functions_of_the_host_part(x, out):
    scale = 2.0

    def weighed(t, k=2):
        return t * t * scale + k

    def twice(t):
        return weighed(t) + weighed(t, 3)

    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    for i in range(out.shape[0]):
        out[i] = twice(x[i]) * 0.5 + factorial(4)
    scale = scale + 1
    for k in weft.serial(range(2)):
        for i in range(out.shape[0]):
            out[i] += weighed(x[i], k)


PROGRAMS = [functions_of_the_host_part, keys_twice,
            floats_and_integers, in_loops_and_branches, in_functions, read_after,
            within_each_other]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None], dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -0.25, 1.5, -2.0, 0.75], dtype=dtype)
    expected, out = torch.zeros(5, dtype=dtype), torch.zeros(5, dtype=dtype)
    plain(x, expected)
    weft.kernel(plain)(x, out)
    torch.testing.assert_close(out, expected)
