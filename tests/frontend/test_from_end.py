"""Negative subscripts of run time count from the end in lists, local arrays, vectors and tuples, as
in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated

N = 7


def ring(x, out):
    for i in range(out.shape[0]):
        a = [0.0] * 5
        for k in range(5):
            a[k - 1] = x[i, k] + a[k - 2]
        out[i] = a[0] + 2 * a[1] + 3 * a[2] + 4 * a[3] + 5 * a[4] + a[i % 4 - 3]


def array(x, out):
    for i in range(out.shape[0]):
        a = weft.zeros(5, weft.f32)
        for k in range(5):
            a[-k - 1] += x[i, k]
        out[i] = a[i % 5 - 5] + a[i - 3]


def torch_array(x, out):
    for i in range(out.shape[0]):
        a = torch.zeros(5)
        for k in range(5):
            a[k] = x[i, k]
        k = -1
        while k >= -5:
            out[i] += a[k] * k
            k -= 1


def vector(x, out):
    for i in range(out.shape[0]):
        v = weft.Vector([x[i, 0], x[i, 1], x[i, 2]])
        v[i % 3 - 3] = 10.0
        v[-(i % 2) - 1] += 1.0
        out[i] = v[0] + 2 * v[1] + 3 * v[2] + v[i % 3 - 2]


def matrix(x, out):
    for i in range(out.shape[0]):
        m = weft.Matrix([[x[i, 0], x[i, 1], 1.0], [x[i, 2], x[i, 3], 2.0]])
        m[i % 2 - 2, i % 3 - 3] = 7.0
        m[-1 - i % 2, 0] += x[i, 4]
        out[i] = m[i % 2 - 1, i % 3 - 1] + 3 * m[0, 0] + 5 * m[1, 0] + m[1, 2]


def constants(x, out):
    weights = (0.5, 1.5, 2.5, 3.5)
    for i in range(out.shape[0]):
        out[i] = weights[i % 8 - 4] * x[i, 0] + (1.0, 2.0, 4.0)[-1 - i % 3]


def pairs(x, out):
    for i in range(out.shape[0]):
        a, b = ((x[i, 0], 1.0), (x[i, 1], 2.0), (x[i, 2], 3.0))[i % 6 - 3]
        out[i] = a * b


def grown(x, out):
    for i in range(out.shape[0]):
        a = []
        for k in range(i % 5 + 1):
            a.append(x[i, k])
        for k in range(len(a)):
            a[-k - 1] += k
        k = i % 5
        out[i] = a[k - len(a)] + 3 * a[-1 - k] + a.pop(-len(a))


def tuples(x, out):
    for i in range(out.shape[0]):
        best = [(1e30, -1)] * 3
        for k in range(5):
            if x[i, k] < best[k % 3 - 3][0]:
                best[k % 3 - 3] = (x[i, k], k)
        v, k = best[-1 - i % 3]
        out[i] = v + k


def nested(x, out):
    for i in range(out.shape[0]):
        t = [[0.0] * 4 for _ in range(3)]
        for k in range(5):
            t[k % 3 - 1][k % 4 - 2] += x[i, k]
        row = t[i % 3 - 2]
        out[i] = row[i % 4 - 4] + 2 * t[-1 - i % 3][1] + sum(row)


def chosen(x, out):
    for i in range(out.shape[0]):
        rows = [x[0], x[1], x[2]]
        out[i] = rows[i % 3 - 3][2] + rows[-1 - i % 2][i % 5]


def inner(v: weft.types.vector(3, weft.f32), k: int):
    return v[k - 2]


def given(x, out):
    for i in range(out.shape[0]):
        out[i] = inner(weft.Vector([x[i, 0], x[i, 1], x[i, 2]]), i % 4)


def narrow(x, out):
    for i in range(out.shape[0]):
        a = [0.0] * 200
        a[weft.i8(i - 4)] = x[i, 0]
        a[weft.i16(-1 - i)] += x[i, 1]
        out[i] = sum([k * a[k] for k in range(200)])


KERNELS = [
    ring, array, torch_array, vector, matrix, constants, pairs, grown, tuples, nested, chosen,
    given, narrow,
]  # fmt: skip


def found(run: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, dtype=x.dtype, device=x.device)
    run(x, out)
    return out


@pytest.mark.parametrize("plain", KERNELS)
@pytest.mark.parametrize("debug", [False, True])
def test_a_negative_subscript_counts_from_the_end(plain: Any, debug: bool) -> None:
    x = torch.rand(N, 5)
    expected = found(plain, x.clone())
    kernel = weft.kernel(debug=debug)(plain)
    torch.testing.assert_close(found(kernel, x), expected)
    torch.testing.assert_close(found(kernel.interpret, x), expected)


@pytest.mark.cpu
@pytest.mark.parametrize("plain", KERNELS)
def test_a_negative_subscript_counts_from_the_end_on_a_gpu(plain: Any) -> None:
    x = torch.rand(N, 5)
    torch.testing.assert_close(found(emulated(weft.kernel(plain)), x), found(plain, x.clone()))


@pytest.mark.parametrize("plain", [k for k in KERNELS if k not in (array, narrow)])
def test_gradients_go_to_the_elements_that_were_meant(plain: Any) -> None:
    x = torch.rand(N, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.arange(1.0, N + 1, dtype=torch.float64)
    expected, own = (
        torch.autograd.grad((found(run, x) * weights).sum(), x)[0]
        for run in (as_values(plain), weft.kernel(plain))
    )
    torch.testing.assert_close(own, expected)


def as_values(plain: Any) -> Any:
    """``plain``, of a copy of what it reads: torch has views, which may change in place."""
    return lambda x, out: plain(x * 1.0, out)


def test_vectors_of_the_host_part_count_from_the_end_and_race_checks_know_it() -> None:
    @weft.kernel
    def turned(x):
        v = weft.Vector([0.0, 0.0, 0.0])
        for i in range(3):
            v[i - 1] = x[i]
        return v[0], v[1], v[2]

    @weft.kernel
    def twice(x):
        v = weft.Vector([0.0, 0.0, 0.0])
        for i in range(4):
            v[i - 1] = x[i]
        return v[0]

    assert [float(v) for v in turned(torch.tensor([1.0, 2.0, 3.0]))] == [2.0, 3.0, 1.0]
    with pytest.raises(weft.RaceError):
        twice(torch.rand(4))


@pytest.mark.parametrize("start", [-4, 3])
def test_debug_mode_says_which_subscript_is_out_of_range(start: int) -> None:
    @weft.kernel(debug=True)
    def beyond(out, k: int):
        for i in range(1):
            a = [0.0] * 3
            a[k + i] = 1.0
            out[i] = a[0]

    with pytest.raises(weft.KernelIndexError):
        beyond(torch.zeros(1), start)


def test_tensors_have_no_subscripts_from_the_end() -> None:
    @weft.kernel(debug=True)
    def before(x, k: int):
        for i in range(1):
            x[i + k] = 1.0

    with pytest.raises(weft.KernelIndexError):
        before(torch.zeros(3), -1)


def test_what_is_not_negative_costs_nothing() -> None:
    @weft.kernel
    def sort(x, out):
        for i in range(x.shape[0]):
            a = weft.zeros(5, weft.f32)
            for k in range(5):
                a[k] = x[i, k]
                j = k
                while j > 0 and a[j - 1] > a[j]:
                    a[j - 1], a[j] = a[j], a[j - 1]
                    j -= 1
            for k in range(4, 0, -1):
                a[k - 1] += a[k]
            for k in range(12):
                a[2 - k // 4] += a[(19 - k) >> 2]
            out[i] = a[i % 5] + a[(i + 1) % 3]

    assert "select" not in sort.inspect(torch.rand(3, 5), torch.rand(3))["ir"]
