# ruff: noqa: C417 - what is tested
"""Generators, ``map`` and ``filter``, in loops and elsewhere, and ``tuple`` of a list."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from tests.fuzz.check import function


def squared(v):
    return v * v + 1


def mapped(x, out):
    for i in range(x.shape[0]):
        s = sum(map(lambda v: v * v, [x[i, 0], x[i, 1]])) + max(map(squared, range(i + 2)))
        for v in map(abs, x[i]):
            s = s * 0.5 + v
        a = list(map(lambda u, v: u * v, x[i], [1.0, 2.0, 3.0]))
        p, q = map(squared, (x[i, 0], x[i, 2]))
        out[i] = s + a[0] + 2 * a[2] + len(a) + p - q


def filtered(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for v in filter(lambda v: v > 0.5, x[i]):
            s = s * 0.5 + v
        few = list(filter(lambda v: v < 0.5, x[i]))
        s += sum(filter(None, [0.0, x[i, 0], 1.0])) + len(few)
        out[i] = s + sum(v for v in filter(lambda w: w > 0.3, map(squared, x[i])))


def a_loop_sees_what_it_has_assigned(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for v in (x[i, j] * s + 1 for j in range(3)):
            s = s * 0.5 + v
        for v in (x[i, j] * s + 1 for j in range(x.shape[1]) if x[i, j] > s * 0.1):
            s = s * 0.5 + v
            if s > 2:
                break
        else:
            s += 10
        for k, v in enumerate(map(lambda w: w * s + 1, x[i])):
            if k == 1:
                continue
            s = s * 0.5 + v * k
        for a, b in zip(map(lambda w: w * s, x[i]), (s + j for j in range(4)), strict=False):
            s += a * b * 0.1
        out[i] = s


def a_loop_sees_what_it_has_stored(x, out):
    for i in range(x.shape[0]):
        t = [x[i, 0], 1.0, 2.0]
        t[0] = 3.0
        s = 0.0
        for v in filter(lambda w: w > 1.5, t):
            t[2] += 1.0
            s += v
        out[i] = s


def tuples(x, out):
    for i in range(x.shape[0]):
        a = []
        for v in x[i]:
            if v > 0.5:
                a.append(v)
        t = tuple(a)
        u = tuple(v * 2 for v in x[i])
        s = 0.0
        for v in t:
            s = s * 0.5 + v
        out[i] = s + len(t) + u[1] - u[-1]


def first_ones_and_defaults(x, out):
    for i in range(x.shape[0]):
        s = min((v for v in x[i] if v > 2), default=-1.0) + max((v for v in x[i]), default=x[i, 1])
        s += next(k for k in range(100) if k * k > i) + next((v for v in x[i] if v > 0.5), -2.0)
        s += next((10 * a + b for a in range(3) for b in range(a) if a * b > i), -3)
        j, v = next(((j, v) for j, v in enumerate(x[i]) if v < 0.5), (-1, 0.0))
        s += math.prod(v + 1 for v in x[i]) + math.prod((x[i, 0], 3), start=2) + j * v
        out[i] = s + max((), default=4) + max([2 * k for k in range(i)], default=0)


@pytest.mark.parametrize(
    "plain",
    [
        mapped,
        filtered,
        a_loop_sees_what_it_has_assigned,
        a_loop_sees_what_it_has_stored,
        tuples,
        first_ones_and_defaults,
    ],
    ids=lambda f: f.__name__,
)
def test_iterators_are_what_they_are_in_python(plain):
    x = torch.rand(4, 5, dtype=torch.float64)
    expected, found = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    plain(x.numpy(), expected.numpy())
    weft.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected)


def named(x):
    for i in range(3):
        g = (v for v in (x[i], 1.0))
        x[i] = sum(g) + sum(g)


def named_map(x):
    for i in range(3):
        g = map(abs, (x[i], 1.0))
        x[i] = sum(g) + sum(g)


def named_zip(x):
    for i in range(3):
        g = zip((x[i], 1.0), (2.0, 3.0), strict=True)
        for a, b in g:
            x[i] += a * b
        for a, b in g:
            x[i] += a * b


def with_a_test(x):
    for i in range(3):
        for k, v in enumerate(v for v in x if v > 0):
            x[i] = k * v


def several(x):
    for i in range(3):
        for v in (a * b for a in x for b in x):
            x[i] = v


USED_UP = "an iterator with a name: what has gone over it has used it up"
REFUSED = {
    named: USED_UP, named_map: USED_UP, named_zip: USED_UP,
    with_a_test: "a loop over `zip` or `enumerate` of a generator with an `if`",
    several: "a loop over a generator with several `for`",
}  # fmt: skip


def test_nothing_has_no_first_one():
    @weft.kernel
    def first(x, out):
        for i in out:
            out[i] = next(v for v in x if v > i)

    first(torch.arange(3.0), out := torch.empty(2))
    assert out.tolist() == [1.0, 2.0]
    with pytest.raises(weft.KernelAssertionError, match="`next` of no items"):
        first(torch.arange(3.0), torch.empty(3))


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_python_would_do_otherwise_is_refused(plain):
    with pytest.raises(weft.KernelSyntaxError, match="help: ") as caught:
        weft.kernel(plain)(torch.zeros(3))
    assert REFUSED[plain] in str(caught.value)


class Own:
    def __init__(self, p):
        self.p = p

    def inc(self, v):
        self.p = self.p * 0.5 + v
        return self.p


def put(x, j, v):
    x[j] = x[j] * 0.5 + v
    return x[j] * 1.0


def first_two(items, w):
    a, b = 0.0, 0.0
    for k, v in enumerate(items):
        if k == 0:
            a = v
        if k == 1:
            b = v * w
    return a - b


def best(items, key):
    return max(items, key=key)


def total(items):
    s = 0.0
    for v in items:
        s += v
    return s


def fold(items, f, s):
    for v in items:
        s = f(s, v)
    return s


EXTREMES = [
    "max((x[v] * w, v) for v in range(3))[1]",
    "min(((x[v] - w) ** 2, v) for v in range(n))[1]",
    "max((x[v] * w, v) for v in range(n) if v != i)[1]",
    "max(((x[v] * w, v) for v in range(n)), key=lambda t: -t[0] * w)[1]",
    "max((x[v] * w for v in range(n)), key=lambda t: abs(t - w))",
    "min((v for v in range(n)), key=lambda t: abs(x[t] - w))",
    "min((x[v] * w for v in range(n) if x[v] > 5), key=lambda t: t, default=w)",
    "max([(x[v], v) for v in range(n) if v != i], key=lambda t: t[0], default=(1.0, 2))[1]",
    "max((u * v for u in range(3) for v in range(u)), key=lambda t: -abs(t - w))",
    "sum(max((x[u] * w, u * v) for u in range(n))[1] for v in range(n))",
    "max((x[u] * w, max((x[t], -t) for t in range(u + 1))[1]) for u in range(n))[1]",
    "max(((x[v], w), v) for v in range(n))[0][0]",
    "first_two((x[v] * w for v in range(n)), w)",
    "best([x[v] for v in range(n)], lambda t: -t * w)",
    "fold((x[v] * s for v in range(n)), lambda a, b: a * s + b, w) + s",
    "total(total(x[u] * x[v] * w for u in range(v)) for v in range(n))",
    "max((total(x[u] * w for u in range(v)), v) for v in range(n))[1]",
    "total(q.inc(v) for v in range(n)) + q.p", "first_two((q.inc(v) for v in range(n)), w) + q.p",
    "sorted(((x[v] * w, v) for v in range(n)), key=lambda t: -t[0])[1][1]",
    # What their items change happens once for each, as in Python.
    "max((q.inc(v), v) for v in range(n))[0] + q.p",
    "sorted((q.inc(v), v) for v in range(3))[1][0]",
    "max((q.inc(v) for v in range(n)), key=lambda t: -t) + q.p",
    "min((put(out, i, v), v) for v in range(n))[0] + out[i]",
    # So does what they go over; a key is called as soon as an item is there, of a list at its end.
    "max((q.inc(v), v) for v in (0.5, put(out, i, w)))[1] + out[i] + q.p",
    "max((out[i] + v for v in range(n)), key=lambda t: put(out, i, t)) + out[i]",
    "max((put(out, i, v) for v in (w, 0.5)), key=lambda t: put(out, i, t)) + out[i]",
    "max([put(out, i, v) for v in (w, 0.5)], key=lambda t: put(out, i, t)) + out[i]",
    "max(((x[v], (v, w)) for v in range(n)), key=lambda t: put(out, i, t[0]))[1][0] + out[i]",
    "max((q.p + v for v in range(n)), key=lambda t: q.inc(t)) + q.p",
    "max((t for t in zip(x, range(n))), key=lambda t: t[0] * w)[1]",
    "sum(max((put(out, i, v), v) for v in range(n))[1] for t in range(2)) + out[i]",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXTREMES)
def test_the_greatest_of_a_generator_of_tuples_or_by_a_key(expression: str) -> None:
    plain = function(
        "def kernel(x, out):\n    n = x.shape[0]\n    for i in range(n):\n"
        "        w = x[i] + 0.5\n        q = Own(w)\n        s = 2.0\n"
        f"        s = {expression}\n        out[i] = s\n"
    )
    plain.__globals__.update(Own=Own, put=put, first_two=first_two, best=best, total=total,
                             fold=fold)  # fmt: skip
    x = torch.tensor([0.3, 2.0, -1.1, 0.7, 1.9])
    found, expected = torch.zeros(5), torch.zeros(5)
    plain(x, expected)
    weft.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected)


def of_ragged_lists(x, out):
    for i in range(x.shape[0]):
        a = [[x[i] * j + k for k in range(j + 1)] for j in range(3)]
        b = [sum(r) for r in a]
        s = sum(sum(r) for r in a) + sum([v for r in a for v in r]) + max(max(r) for r in a)
        for r in ((1,), (2, 3)):
            s += sum(len(r) * v for v in r) + sum(sum(q) for q in (r, (*r, 4), ()))
        out[i] = s + b[2] + any(len(r) == 2 for r in a) + sum(v for r in a if len(r) > 1 for v in r)


def test_comprehensions_go_over_lists_of_several_lengths() -> None:
    x = torch.tensor([0.3, 2.0, -1.1])
    found, expected = torch.zeros(3), torch.zeros(3)
    of_ragged_lists(x, expected)
    weft.kernel(of_ragged_lists)(x, found)
    torch.testing.assert_close(found, expected)


def test_what_a_generator_of_tuples_draws_is_drawn_once() -> None:
    @weft.kernel
    def drawn(out):
        for i in range(out.shape[0]):
            a, b = max((weft.random(), v) for v in range(4))
            out[i] = a + b

    found, expected = torch.zeros(5), torch.zeros(5)
    torch.manual_seed(3)
    drawn(found)
    torch.manual_seed(3)
    drawn.interpret(expected)
    torch.testing.assert_close(found, expected)
