"""Names that hold Python's ints of run time on one path, and elements of fewer bits on another: no
number is lost where nothing is computed. The Python is the oracle, on ints without a dtype."""

import dataclasses

import numpy as np
import pytest
import torch

import weft
from weft.frontend.advice import LoopWarning


@dataclasses.dataclass
class Held:
    v: int


def either(v, n):
    if v > 50:
        return v
    return n


def by_a_branch(x, n: int, out):
    for i in range(x.shape[0]):
        k = n
        if x[i] > 50:
            k = x[i]
        out[i] = k


def by_a_loop(x, n: int, out):
    for i in range(x.shape[0]):
        best = n
        for j in range(x.shape[0]):
            if x[j] < best:
                best = x[j]
                if best > 20:
                    break
        out[i] = best


def by_an_expression(x, n: int, out):
    for i in range(x.shape[0]):
        out[i] = n + 1 if x[i] < 50 else x[i]


def by_a_choice(x, n: int, out):
    for i in range(x.shape[0]):
        v = x[i]
        out[i] = v if v > 50 else n


def by_a_lambda(x, n: int, out):
    for i in range(x.shape[0]):
        f = lambda v: v if v > 50 else n  # noqa: E731
        out[i] = f(x[i])


def by_a_call(x, n: int, out):
    for i in range(x.shape[0]):
        out[i] = either(x[i], n)


def by_a_list(x, n: int, out):
    for i in range(x.shape[0]):
        a = [n, n]
        a[i % 2] = x[i]
        a.append(x[0])
        out[i] = a[1 - i % 2]


def by_an_empty_list(x, n: int, out):
    for i in range(x.shape[0]):
        a = []
        a.append(x[i])
        a.append(n)
        out[i] = a[-1]


def by_lists_of_tuples(x, n: int, out):
    for i in range(x.shape[0]):
        a = [(n, i)]
        a.append((x[i], x[i]))
        out[i] = a[i % 2][0]


def by_a_tuple(x, n: int, out):
    for i in range(x.shape[0]):
        p = (n, i)
        if x[i] > 50:
            p = (x[i], x[i])
        out[i] = p[i % 2]


def by_sorting(x, n: int, out):
    for i in range(x.shape[0]):
        low, high = sorted((x[i], n))
        out[i] = high if i % 2 else low


def by_an_object(x, n: int, out):
    for i in range(x.shape[0]):
        h = Held(n)
        if x[i] > 50:
            h.v = x[i]
        out[i] = h.v


def by_a_vector(x, n: int, out):
    for i in range(x.shape[0]):
        v = weft.Vector([n, x[i]])
        if x[i] > 50:
            v[0] = x[0]
        out[i] = v[i % 2]


def by_a_default(x, n: int, out):
    for i in range(x.shape[0]):
        out[i] = next((v for v in (x[i], x[0]) if v > 50), n)


def in_order(x, n: int, out):
    best = n
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        out[i] = best
        if x[i] < best:
            best = x[i]
    return best


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("plain", [
    by_a_branch, by_a_loop, by_an_expression, by_a_choice, by_a_lambda, by_a_call, by_a_list,
    by_an_empty_list, by_lists_of_tuples, by_a_tuple, by_sorting, by_an_object, by_a_vector,
    by_a_default, in_order,
])  # fmt: skip
def test_ints_of_run_time_are_not_narrowed(plain, debug):
    kernel = weft.kernel(debug=debug)(plain)
    numbers = {torch.int8: (1000, -129), torch.uint8: (-1, 256), torch.int16: (70000, -(1 << 40)),
               torch.int32: (1 << 40, -(1 << 31) - 1), torch.int64: (1 << 40, -1)}  # fmt: skip
    for dtype, most in numbers.items():
        for n in most:
            x, out = torch.tensor([1, 100, 30, 7]).to(dtype), torch.zeros(4, dtype=torch.int64)
            expected = np.zeros(4, dtype=object)
            result = plain(np.array(x.tolist(), dtype=object), n, expected)
            found = kernel(x, n, out)
            assert out.tolist() == expected.tolist(), (dtype, n)
            assert found == result
            other = torch.zeros(4, dtype=torch.int64)
            kernel.interpret(x, n, other)
            assert other.tolist() == expected.tolist(), (dtype, n)


def test_indices_beyond_the_dtype_of_pointers():
    def marked(p, out):
        for i in range(p.shape[0]):
            r = i
            if p[i] > 0:
                r = p[i]
            out[r] = 1

    def roots(p, out):
        for i in range(p.shape[0]):
            r = i
            while p[r] != r:
                r = p[r]
            out[i] = r

    def squares(x, p, out):
        for i in range(x.shape[0]):
            r = i
            if p[i] >= 0:
                r = p[i]
            out[i] = x[r] * x[r]

    p, out = torch.zeros(200, dtype=torch.int8), torch.zeros(600, dtype=torch.int64)
    weft.kernel(marked)(p, out[200:400])
    assert out[200:400].eq(1).all()
    assert out.sum() == 200
    out = torch.ones(200, dtype=torch.int64)
    weft.kernel(roots)(p, out)
    assert out.eq(0).all()
    x, out = torch.randn(200, dtype=torch.float64, requires_grad=True), torch.zeros(200).double()
    weft.kernel(squares)(x, torch.full((200,), -1, dtype=torch.int8), out)
    torch.testing.assert_close(out, x * x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 2 * x)


def test_sums_and_literals_have_the_dtype_of_elements():
    def total(x, out):
        for i in range(x.shape[0]):
            s, top = 0, 100
            for j in range(x.shape[0]):
                s += x[j]
                s += 1
                if x[j] > top:
                    top = x[j]
            out[i, 0] = s
            out[i, 1] = top

    x, out = torch.full((5,), 100, dtype=torch.int8), torch.zeros(5, 2, dtype=torch.int64)
    kernel = weft.kernel(total)
    with pytest.warns(LoopWarning):
        source = kernel.inspect(x, out)["source"]
    kernel(x, out)
    assert out.tolist() == [[505 - 512, 100]] * 5
    assert "s: i8" in source
    assert "top: i8" in source

    def host_total(x, n):
        for i in range(x.shape[0]):
            n += x[i]
        return n

    assert weft.kernel(host_total)(x, 12) == 512 - 512
