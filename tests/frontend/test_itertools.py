"""``itertools``, ``functools`` and ``operator`` in a device loop: what they are in Python."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable

import pytest
import torch

import weft
from tests.refusals import check_refused


def products(x, n, out):
    for i in range(out.shape[0]):
        for a, b in itertools.product(range(n), range(x.shape[1])):
            out[i] += a * x[i, b]
        for a, b, c in itertools.product((-1, 2), x[i], range(2)):
            out[i] += a * b + c
        for a, b in itertools.product((-1, 2), repeat=2):
            out[i] = out[i] * 0.5 + a * b * x[i, 0]
        for a in itertools.product(range(n)):
            out[i] += a[0]


def neighbours(x, n, out):
    for i in range(out.shape[0]):
        for a, b in itertools.pairwise(x[i]):
            out[i] += a * b
            if b > 1:
                break
        for a, b in itertools.pairwise(range(n)):
            out[i] += a * b
        rest = [v for v in x[i] if v > 0]
        for a, b in itertools.pairwise(rest):
            out[i] += a - 2 * b
        out[i] += sum(b - a for a, b in itertools.pairwise((1, 2, 4, 7)))


def chains(x, n, out):
    for i in range(out.shape[0]):
        for v in itertools.chain((1, 2), (3.5,), (x[i, 0],)):
            out[i] = out[i] * 2 + v
        for v in itertools.chain(x[i], range(n), x[i, 1:]):
            out[i] = out[i] * 0.5 + v
        for a, b in itertools.zip_longest((1, 2, 3), (4, 5), fillvalue=0):
            out[i] += a * b
        for a, b in itertools.zip_longest(x[i], x[i, 2:], fillvalue=0.5):
            out[i] += a * b


def choices(x, n, out):
    for i in range(out.shape[0]):
        for a, b in itertools.combinations(range(3), 2):
            out[i] += x[i, a % x.shape[1]] * b
        for a, b, c in itertools.permutations((x[i, 0], 2.0, 3.0)):
            out[i] = out[i] * 0.5 + a * b - c
        for a, b in itertools.combinations_with_replacement((1, 2, 3), 2):
            out[i] = out[i] * 0.5 + a * b
        for v in itertools.compress((1, x[i, 0], 3), (True, 0, 1)):
            out[i] += v


def without_end(x, n, out):
    for i in range(out.shape[0]):
        for k, v in zip(itertools.count(1), x[i]):
            out[i] += k * v
        for k, v in zip(itertools.cycle((1, -1)), x[i]):
            out[i] += k * v
        for v in itertools.repeat(x[i, 0], n):
            out[i] += v
        for k in itertools.count(n, 2):
            if k > 10:
                break
            out[i] += k
        for v in itertools.islice(x[i], 1, None):
            out[i] = out[i] * 0.5 + v
        for v in itertools.islice(x[i], n):
            out[i] = out[i] * 0.5 + v
        for k in itertools.islice(itertools.count(), 2, 9, 3):
            out[i] = out[i] * 0.5 + k


def sums(x, n, out):
    for i in range(out.shape[0]):
        for v in itertools.accumulate((1, 2, 3), operator.mul, initial=2):
            out[i] += v
        for v in itertools.accumulate(x[i, j] for j in range(2)):
            out[i] = out[i] * 0.5 + v
        for v in itertools.accumulate([x[i, 0], x[i, 1]], max):
            out[i] = out[i] * 0.5 + v
        for v in itertools.starmap(operator.mul, ((1, 2), (3, x[i, 0]))):
            out[i] += v
        out[i] += functools.reduce(operator.mul, (x[i, 0], 2.0, x[i, 1]), 1.0)
        out[i] += functools.reduce(lambda a, b: a * 0.5 + b, x[i])
        out[i] += functools.reduce(lambda a, b: a * 2 + b, range(n), 1)
        out[i] += functools.reduce(max, [v * v for v in x[i]], 0)
        pairs = [(v * 1.0, 2) for v in x[i]]  # whose number is known when it runs
        out[i] += functools.reduce(lambda a, b: (a[0] + b[0], a[1] * b[1]), pairs)[1]
        out[i] += functools.reduce(
            lambda a, b: (a[0] - b[0], a[1] + b[1]), ((v * 2, k) for k, v in enumerate(x[i]))
        )[0]


def scaled(a, b, x, k=1.0):
    return (a * x + b) * k


SCALED = functools.partial(scaled, 2.0, k=0.5)


def parts(x, n, out):
    by = functools.partial(scaled, 0.5, 1.0)
    for i in range(out.shape[0]):
        f = functools.partial(scaled, x[i, 0], k=2.0)
        g = functools.partial(f, 1.0)
        named = {"b": x[i, 1], "x": 3.0}
        out[i] = g(x[i, 0]) + f(3.0, x[i, 1], k=4.0) + by(x[i, 1]) + SCALED(1.0, x[i, 0])
        out[i] += scaled(2.0, **named)
        points = [(x[i, 0], 1), (x[i, 1], 2), (0.25, 3)]
        high, low = max(points, key=operator.itemgetter(0)), min(points, key=lambda p: p[0])
        out[i] += high[1] * 10 + low[1]
        out[i] += (
            operator.itemgetter(0, 1)(x[i])[1] + sorted(points, key=operator.itemgetter(0))[0][1]
        )


PROGRAMS = [products, neighbours, chains, choices, without_end, sums, parts]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None], dtype: torch.dtype) -> None:
    for n, size in ((0, 2), (1, 3), (4, 5)):
        x = torch.randn(3, size, dtype=dtype)
        expected, out = torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype)
        plain(x, n, expected)
        weft.kernel(plain)(x, n, out)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plain", [neighbours, sums, parts], ids=lambda f: f.__name__)
def test_gradients(plain: Callable[..., None]) -> None:
    x = torch.tensor([[0.5, -0.25, 1.5], [-2.0, 0.75, 0.3]], dtype=torch.float64)

    def made(x):
        out = torch.zeros(2, dtype=torch.float64)
        weft.kernel(plain)(x, 3, out)
        return out

    assert torch.autograd.gradcheck(made, x.requires_grad_())


def totals_of_a_row(x):
    for i in range(1):
        for v in itertools.accumulate(x):
            x[i] = v


def pairs_of_a_row(x):
    for i in range(1):
        for a, b in itertools.combinations(x[:], 2):
            x[i] = a * b


def taken(x):
    for i in range(1):
        for v in itertools.takewhile(lambda v: v < 1, x):
            x[i] = v


def with_a_name(x):
    for i in range(1):
        pairs = itertools.pairwise((1, 2, 3))
        for a, b in pairs:
            x[i] = a * b


def of_nothing(x):
    for i in range(1):
        x[i] = functools.reduce(max, ())


def getter_of_runtime(x):
    for i in range(1):
        x[i] = operator.itemgetter(i)((1, 2))


REFUSED = {
    totals_of_a_row: ("`itertools.accumulate` of a number of items that is known at run time",
                      "keep a running total: total += v"),
    pairs_of_a_row: ("`itertools.combinations` of a number of items that is known at run time",
                     "write loops: for j in range(n): for k in range(j + 1, n)"),
    taken: ("`itertools.takewhile` cannot be called in a device loop", "write a loop with `break`"),
    with_a_name: ("an iterator with a name: what has gone over it has used it up",
                  "make a list of it: [... for ...], list(...)"),
    of_nothing: ("`functools.reduce` of no items",
                 "give it a start: reduce(function, items, start)"),
    getter_of_runtime: ("`operator.itemgetter` of what is known at run time",
                        "write a lambda: lambda v: v[k]"),
}  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused_says_what_to_write(plain: Callable[..., None]) -> None:
    check_refused(plain, torch.zeros(3), *REFUSED[plain])


def test_islice_of_a_negative_bound() -> None:
    @weft.kernel
    def part(x, n: int, out):
        for i in range(1):
            for v in itertools.islice(x[:], n, None):
                out[i] += v

    part(torch.ones(3), 1, out := torch.zeros(1))
    assert out == 2
    with pytest.raises(weft.KernelAssertionError, match=r"a bound of .itertools\.islice. is neg"):
        part(torch.ones(3), -1, out)


def test_reduce_of_no_items_of_run_time() -> None:
    @weft.kernel
    def largest(x, out):
        for i in range(1):
            out[i] = functools.reduce(max, x)

    with pytest.raises(weft.KernelAssertionError, match=r"functools\.reduce. of no items"):
        largest(torch.zeros(0), torch.zeros(1))
