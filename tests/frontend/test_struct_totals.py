"""Structs that a parallel loop accumulates into: the undecorated Python is the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import weft

Inner = weft.types.struct(low=weft.f64, count=weft.i32)
Moments = weft.types.struct(p=weft.types.vector(2, weft.f64), m=weft.f64, inner=Inner)


def typed(x):
    total = Moments()
    product = weft.Struct(a=1.0, b=1)
    for i in range(x.shape[0]):
        if x[i, 0] > -1:
            total += Moments(weft.Vector([x[i, 0], x[i, 1]]), 1.0, Inner(x[i, 2], i))
        product *= weft.Struct(a=x[i, 0], b=2)
    total = total + total
    return (
        total.p[0], total.p[1], total.m, total.inner.low, total.inner.count, product.a, product.b
    )  # fmt: skip


def carried_on(x):
    total = weft.Struct(a=0.5, v=weft.Vector([0.0, 1.0]), n=0)
    for i in range(x.shape[0]):
        total = total + weft.Struct(a=x[i, 0], v=weft.Vector([x[i, 1], x[i, 2]]), n=1)
    for i in range(x.shape[0]):
        total -= weft.Struct(a=x[i, 1], v=weft.Vector([0.5, x[i, 0]]), n=2)
    return total.a, total.v[0], total.v[1], total.n


def in_order(x):
    total = weft.Struct(a=0.5, n=0)
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        total = total * 0.5 + weft.Struct(a=x[i, 0], n=1)
    return total.a, total.n


@dataclass
class Plain:
    low: float
    count: int

    def clear(self):
        self.low = 0.25


def by_members(x):
    total = Moments(m=0.5)
    other = Plain(1.0, 2)
    for i in range(x.shape[0]):
        if x[i, 0] > -1:
            total.m += x[i, 0]
            total.p += weft.Vector([x[i, 1], 1.0])
        total.m += 2.0
        other.count -= i
        other.low *= x[i, 2]
    total += total
    for i in range(x.shape[0]):
        total.m -= x[i, 1]
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        other.low += 0.5 * i
    return total.p[0], total.p[1], total.m, total.inner.count, other.low, other.count


def changed_before(x):
    """What stands before a loop is done before its totals begin; names of members do not meet."""
    other = Plain(1.0, 2)
    other.clear()
    a = weft.Struct(b_c=0.0, v=weft.Vector([1.0, 2.0]))
    a_b = weft.Struct(c=1.0)
    a.v.fill(0.5)
    for i in range(x.shape[0]):
        other.low += x[i, 0]
        a.b_c += x[i, 1]
        a_b.c += x[i, 2]
        a.v += weft.Vector([x[i, 0], 1.0])
    return other.low, a.b_c, a_b.c, a.v[0], a.v[1]


def by_members_of_members(x):
    total = Moments(inner=Inner(0.5, 2))
    for i in range(x.shape[0]):
        total.inner.low += x[i, 0]
        if x[i, 1] > 0:
            total.inner.count -= i
        total.p += weft.Vector([x[i, 1], 1.0])
    total = total + total
    return total.inner.low, total.inner.count, total.p[0], total.p[1]


@pytest.mark.parametrize(
    "function", [typed, carried_on, in_order, by_members, changed_before, by_members_of_members]
)
@pytest.mark.parametrize("n", [0, 7])
@pytest.mark.parametrize("debug", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_struct_totals(function, n: int, debug: bool) -> None:
    x = torch.randn(n, 3, dtype=torch.float64)
    expected = [float(v) for v in function(x)]
    found = [float(v) for v in weft.kernel(debug=debug)(function)(x)]
    torch.testing.assert_close(found, expected)


def test_gradients_and_graphs() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    kernel = weft.kernel(carried_on)

    def total(x):
        return sum(k * v for k, v in enumerate(kernel(x)[:3], 1))

    assert torch.autograd.gradcheck(total, (x,))
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, total(x))
    torch.testing.assert_close(*(torch.autograd.grad(y, x)[0] for y in (compiled, total(x))))


@dataclass
class Best:
    value: float
    at: int


def test_an_object_is_no_total() -> None:
    @weft.kernel
    def largest(x):
        best = Best(-1.0, -1)
        for i in range(x.shape[0]):
            if x[i] > best.value:
                best = Best(x[i], i)
        return best.at

    message = "`best` comes from before the parallel loop and is assigned in it"
    with pytest.raises(weft.KernelSyntaxError, match=message):
        largest(torch.zeros(3))


def test_a_member_and_what_it_is_in_are_no_two_totals() -> None:
    @weft.kernel
    def both(x):
        total = Moments()
        for i in range(x.shape[0]):
            total.inner.low += x[i]
            total.inner += Inner(x[i], 1)
        return total.m

    with pytest.raises(weft.KernelTypeError, match=r"cannot assign to `\.low` of a Struct"):
        both(torch.zeros(3))
