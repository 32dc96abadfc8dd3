"""Functions and methods that set a member of what they are called with: Python's objects are the
caller's own, structs of a ``weft.func`` copies, as in Taichi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import weft as ti
from tests.frontend.test_generators import Own
from tests.fuzz.check import function


@dataclass
class Point:
    x: float
    y: float

    def add(self, v):
        self.x += v

    def add_twice(self, v):
        self.add(v)
        if v > 0:
            self.add(v)
        return self


@dataclass
class Pair:
    p: Point
    k: float


def put(p, v):
    p.x = v
    p.y += 1.0


def put_inner(o, v):
    o.p.x += v
    put(o.p, o.p.x)


def of_a_function(x, out):
    for i in range(out.shape[0]):
        p = Point(x[i] + 0, 0.0)
        if x[i] > 0:
            put(p, 3.0)
        out[i] = p.x + 10 * p.y


def of_methods(x, out):
    for i in range(out.shape[0]):
        p = Point(0.0, 1.0)
        for k in range(3):
            if x[k] > 0:
                p.add_twice(x[k] + 0)
            p.add(k)
        p = p.add_twice(1.0)
        out[i] = p.x


def of_members(x, out):
    for i in range(out.shape[0]):
        o = Pair(Point(x[i] + 0, 0.0), 1.0)
        put_inner(o, 2.0)
        put(o.p, o.p.x + 1)
        q = Point(o.p.x, o.p.y)  # another object
        q.y = 7.0
        out[i] = o.p.x + 10 * o.p.y + q.y


@dataclass
class Counter:
    s: int

    def next(self):
        self.s = (self.s * 5 + 3) % 1000
        return self.s


def in_order(x, out):
    for i in range(out.shape[0]):
        r = Counter(i)
        match r.next() % 3:
            case 0:
                out[i] = r.next() % 10
            case 1:
                out[i] = -(r.next() % 10)
            case _:
                r.s = 5
        drawn = [r.next() % 10 for _ in range(3)]
        out[i] += r.s % 100 + drawn[0] * r.next() + drawn[2]


def in_generators(x, out):
    for i in range(out.shape[0]):
        r = Counter(i)
        out[i] = sum(r.next() for _ in range(4)) + r.s
        if i > 0:
            out[i] += sum(w * r.next() for w in (i, 3))
        if i > 1:
            beyond = all(r.next() > w for w in (i, 3))
            out[i] += 1 if beyond else 2
        for k in range(2):
            out[i] += max(r.next() + k for _ in range(i + 1)) - min(r.next() for _ in (1, 2))
        out[i] += r.s


def in_generators_of_generators(x, out):
    for i in range(out.shape[0]):
        r = Counter(i)
        if i != 2:
            out[i] += sum(sum(w * r.next() for w in (1, v)) for v in range(3)) + r.s
        out[i] += max((r.next(), v) for v in (1, i))[0] + r.s
        if i != 3:
            out[i] += max((r.next(), v) for v in (1, i) if v < 3)[0]
        out[i] += r.s


def in_comprehensions(x, out):
    for i in range(out.shape[0]):
        r = Counter(i)
        if i != 2:
            drawn = [r.next() * w for w in (1, i)]
            out[i] += drawn[0] - drawn[1]
        if i != 3:
            many = [r.next() for _ in range(i)]
            out[i] += sum(many) + sorted([r.next() for _ in range(3)])[0]
        for _ in range(i):
            by_name = {k: r.next() for k in range(2)}
            out[i] += by_name[1]
        out[i] += r.s


def in_map_and_zip(x, out):
    for i in range(out.shape[0]):
        r = Counter(i)
        if i != 2:
            for v in (r.next() for _ in range(i)):
                out[i] += v
            for v in map(lambda w: w * r.next(), range(i)):  # noqa: C417
                out[i] += v
            for v, w in zip((r.next() for _ in (1, 2)), (2, 3), strict=True):
                out[i] += v * w
        out[i] += r.s


@pytest.mark.parametrize(
    "plain",
    [of_a_function, of_methods, of_members, in_order, in_generators, in_generators_of_generators,
     in_comprehensions, in_map_and_zip],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_an_object_of_python_is_the_callers(plain: Callable[..., None]) -> None:
    x, out = torch.randn(7, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    expected = out.clone()
    plain(x, expected)
    kernel = ti.kernel(plain)
    for call in (kernel, kernel.interpret):
        found = out.clone()
        call(x, found)
        torch.testing.assert_close(found, expected)


GLOBAL = Point(1.0, 2.0)


@ti.func
def put_func(p, v):
    p.x = v
    return p.x


def in_a_loop(x: torch.Tensor) -> None:
    for i in range(1):
        p, q = Point(1.0, 2.0), Point(3.0, 4.0)
        for k in range(3):
            q.x += 1.0
            if k == 1:
                q = p
        x[i] = p.x + q.x


def from_outside(x: torch.Tensor) -> None:
    for i in range(1):
        GLOBAL.add(1.0)
        x[i] = GLOBAL.x


def to_a_func(x: torch.Tensor) -> None:
    for i in range(1):
        p = Point(1.0, 2.0)
        x[i] = put_func(p, 3.0) + p.x


def in_a_condition(x: torch.Tensor) -> None:
    for i in range(1):
        r = Counter(i)
        x[i] = (r.next() if x[i] > 0 else 1) + r.s


def in_a_test(x: torch.Tensor) -> None:
    for i in range(1):
        r = Counter(i)
        while r.next() % 7 != 0:
            x[i] += 1
        x[i] += r.s


def in_a_generator_that_may_not_run(x: torch.Tensor) -> None:
    for i in range(1):
        r = Counter(i)
        x[i] = (sum(r.next() for _ in range(4)) if x[i] > 0 else 1) + r.s


def beside(r, v):
    return r.s + v


def read_before_a_generator(x: torch.Tensor) -> None:
    for i in range(1):
        r = Counter(i)
        x[i] = beside(r, sum(r.next() for _ in (1, 2)))


@ti.func
def counted(s: ti.template()):
    s += 1
    return s


def template_in_a_condition(x: torch.Tensor) -> None:
    for i in range(1):
        s = i
        x[i] = (counted(s) if x[i] > 0 else 1) + s


REFUSED = {
    read_before_a_generator: "`next` changes an object that this statement has read before",
    in_a_loop: "what is changed by the name `q` may be `p`, too",
    from_outside: "`self` is what the function was called with",
    to_a_func: "`p` is what the function was called with",
}


IN_PARTS = in_a_condition, in_a_test, in_a_generator_that_may_not_run


@pytest.mark.parametrize("plain", IN_PARTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_what_parts_that_need_not_run_change(plain: Callable[..., None], first: float) -> None:
    found, expected = torch.full((1,), first), torch.full((1,), first)
    plain(expected)
    ti.kernel(plain)(found)
    assert torch.equal(found, expected)


def test_a_template_that_a_part_changes() -> None:
    x = torch.tensor([1.0])
    ti.kernel(template_in_a_condition)(x)
    assert x.item() == 2.0  # `s`, which is 1 by then, and 1


PARTS = [
    "v = 0.5 if w > 1 else (q.inc(1.0) if w > 0 else q.inc(2.0)); out[i] = v + q.p",
    "v = w > 1 and q.inc(1.0) > 2; out[i] = q.p + (1.0 if v else 0.0)",
    "if w > 1 and q.inc(1.0) > 2 or q.inc(3.0) > 4: out[i] = q.p + 100",
    "v = q.inc(w) and q.inc(2.0) or w; out[i] = v + q.p",
    "while c < 5 and q.inc(1.0) < 2.5: c += 1\n        out[i] = c + q.p",
    "while q.inc(1.0) < 1.9 and c < 5: c += 1\n        out[i] = c + q.p",
    "while c < 9 and q.inc(1.0) > -5:\n            c += 1\n            if c == 2: continue\n"
    "            q.p -= 1.5\n            if q.p < -1: break\n        else:\n"
    "            c += 100\n        out[i] = c + q.p",
    "while c < 3:\n            c += 1\n            while q.inc(c) < 1.9 and c < 5: c += 1\n"
    "            q.p -= 3.0\n        out[i] = c + q.p",
    "s = sum((q.inc(v) if v > 1 else 0.0) for v in range(4)); out[i] = s + q.p",
    "b = w > 1.0 and any(q.inc(v) > 1.0 for v in range(3)); out[i] = q.p + (1.0 if b else 0.0)",
    "while c < 3 and any(q.inc(v) > 2.0 for v in range(3)):\n            c += 1; q.p = q.p - 3.0\n"
    "        out[i] = c + q.p",
    "v = 0.0 < q.inc(0.5) < 2.0 < q.inc(1.0); out[i] = q.p + (1.0 if v else 0.0)",
    "assert w < -5 or q.inc(1.0) > -50; out[i] = q.p",
    "f = lambda t: q.inc(t) if t > 0 else 0.0; out[i] = f(w) + q.p",
    "out[i] += (q.inc(1.0) if w > 1 else q.inc(2.0)) * q.p",
    "k = 1 if w > 1 and (t := q.inc(1.0)) > 1.2 else 2; out[i] = k + q.p",
]


@pytest.mark.parametrize("text", PARTS)
def test_a_call_in_a_part_changes_an_object_where_python_calls_it(text: str) -> None:
    plain = function(
        "def kernel(x, out):\n    for i in range(x.shape[0]):\n        w = x[i] + 0.5\n"
        f"        q = Own(w)\n        c = 0\n        {text}\n"
    )
    plain.__globals__["Own"] = Own
    x = torch.tensor([0.3, 2.0, -1.1, 0.7, 1.9], dtype=torch.float64)
    found, expected = torch.zeros_like(x), torch.zeros_like(x)
    plain(x, expected)
    ti.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_another_name_would_see_is_refused(plain: Callable[..., None]) -> None:
    with pytest.raises(ti.KernelTypeError, match="help: ") as caught:
        ti.kernel(plain)(torch.zeros(1))
    assert REFUSED[plain] in str(caught.value)


@ti.dataclass
class Ball:
    center: ti.types.vector(2, ti.f32)  # type: ignore
    radius: ti.f32  # type: ignore

    @ti.func
    def grow(self: Any, k: Any) -> Any:
        self.radius *= k
        self.center.x += 1.0
        return self.radius


@ti.func
def emptied(b: Any, v: Any) -> Any:
    b.radius = 0.0
    v.x = 100.0
    return b.center.x + v.x


@ti.kernel
def balls(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        b, v = Ball(ti.Vector([1.0, 2.0]), x[i]), ti.Vector([1.0, 2.0])
        a = b.grow(2.0)
        out[i, 0] = emptied(b, v) + v.x
        out[i, 1] = b.radius
        out[i, 2] = a + 10 * b.center.x


@ti.kernel
def balls_of_the_host(out: torch.Tensor) -> None:
    b, v = Ball(ti.Vector([1.0, 2.0]), 3.0), ti.Vector([1.0, 2.0])
    found = emptied(b, v) + v.x
    out[0] = found
    out[1] = b.radius


def test_a_struct_of_a_func_is_a_copy_and_a_methods_is_not() -> None:
    x = torch.rand(4)
    for call in (balls, balls.interpret):
        out = torch.zeros(4, 3)
        call(x, out)
        torch.testing.assert_close(out, torch.stack([x * 0 + 103, 2 * x, 2 * x + 20], 1))
    for call in (balls_of_the_host, balls_of_the_host.interpret):
        out = torch.zeros(2)
        call(out)
        assert out.tolist() == [102.0, 3.0]
