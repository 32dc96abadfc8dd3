"""Objects that a device loop changes and that several names have: every name sees the change, as in
Python, or it is refused."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import weft


@dataclass
class Point:
    x: float
    y: float = 2.0

    def add(self, v):
        self.x += v
        return self


@dataclass
class Pair:
    p: Point
    q: Point

    def shift(self, v):
        self.p.add(v)
        self.q.x += v

    def swap(self):
        self.p, self.q = self.q, self.p


def moved(p, v):
    p.x += v
    return p.x


def pair_of(p):
    return Pair(p, Point(1.0))


def sum_of(a, b):
    a.x += 1
    return a.x + b.x


def other(p):
    p.x += 5
    p = Point(1.0)
    p.x = 7.0
    return p


def by_another_name(p, v):
    r = p
    p = Point(0.0)
    r.x += v
    p.x = 100.0


def all_of(points, v):
    for p in points:
        p.x += v
    points[0].y = 5.0


def early(p, n):
    for k in range(n):
        p.x += 1
        if p.x > 2:
            return k
    p.y = -1.0
    return -1


def two_names(x, out):
    for i in range(out.shape[0]):
        p = Point(x[i] * 2)
        q = p
        q.x += 1
        if x[i] > 0:
            p.y = q.x
        both = (q, 1.0)
        for k in range(3):
            p.x += k
        d = {"p": p, "n": 0}
        while d["p"].x < 9 and d["n"] < 5:
            q.add(1.0)
            d["n"] += 1
        out[i] = p.x + q.y + both[0].x * d["n"]


def inside_of_others(x, out):
    for i in range(out.shape[0]):
        p, q = Point(x[i] * 2), Point(5.0)
        o = Pair(p, q)
        r = pair_of(p)
        r.shift(2.0)
        o.swap()
        o.p.x += 3
        u, w = copy.copy(o), dataclasses.replace(o, q=Point(3.0))
        u.q.x *= 2
        w.p.y = 8.0
        o.p = o.q
        o.p.add(1.0)
        out[i] = p.x + 10 * q.x + 100 * o.q.x + q.y + r.p.x


def in_functions(x, out):
    for i in range(out.shape[0]):
        p = Point(x[i] * 2)
        r = other(p)
        by_another_name(p, x[i] * 3)
        out[i] = sum_of(p, p) + 10 * r.x + early(p, 3)
        q = (p.add(1.0), 1.0)
        moved(q[0], 1.0)
        moved(Point(1.0), 1.0)
        out[i] += p.x + p.y


def in_lists(x, out):
    for i in range(out.shape[0]):
        points = [Point(x[i] * k) for k in range(3)]
        q, twice = points[1], [points[2]] * 2
        for k, p in enumerate(points):
            p.x += k
        all_of(points, x[i] * 2)
        all_of([q, points[2]], 1.0)
        points[0].y += 1
        twice[1].x *= 2
        s = sum(moved(p, 1.0) for p in points)
        out[i] = s + sum(p.x * p.y for p in points) + q.x + 10 * twice[0].x


def in_turns(x, out):
    for i in range(out.shape[0]):
        last, s = Point(0.0), x[i] * 0
        for k in weft.static(range(4)):
            p = Point(x[i] + k)
            p.x += last.x
            last.x += 1
            s += last.x
            last = p
        out[i] = s + last.x


def in_local_functions(x, out):
    for i in range(out.shape[0]):
        p, d = Point(x[i] * 2), {"a": 1.0, "b": x[i] * 3}

        def put(q, v):
            q.x = q.x + v
            if v > 0:
                q.y = p.x  # noqa: B023
            return q.x

        def count(n):
            p.x += 1  # noqa: B023
            d["a"] += d["b"]  # noqa: B023
            return count(n - 1) + p.x if n > 0 else d["a"]  # noqa: B023

        def counted():
            p.add(2.0)  # noqa: B023
            return count(2) + p.x  # noqa: B023

        f = lambda q: moved(q, 1.0)  # noqa: E731
        first = p.x + 10 * put(p, 1.0) + 100 * p.x
        out[i] = first + f(p) + p.y + counted() + 1000 * p.x + d["a"]


def in_unrolled_loops(x, out):
    for i in range(out.shape[0]):
        p, last = Point(x[i] * 2), Point(1.0)
        r = p
        for z in (p, r, p):
            z.x = z.x * 2 + 1
        points = [Point(x[i] * k) for k in range(3)]
        for a in points:
            for b in points:
                if a.x > b.x:
                    a.x -= 0.25
                    b.add(0.25)
            for k in range(3):
                a.x += k
                if a.x > 2:
                    a.add(-1.0)
            last.y += a.x
            last = a
        seen = [moved(z, 1.0) for z in (p, r)]
        both = [z.add(1.0) for z in (p, r)]
        out[i] = p.x + seen[1] + both[0].x + sum(p.x * p.y for p in points) + last.x


def in_endless_loops(x, out):
    for i in range(out.shape[0]):
        k = 0
        while True:
            p = Point(x[i] + k)
            q = p
            q.x += 1
            k += 1
            if q.x > 3 or k > 4:
                break
        q.add(10.0)
        out[i] = p.x


ACCEPTED = [
    two_names, inside_of_others, in_functions, in_lists, in_turns, in_local_functions,
    in_unrolled_loops, in_endless_loops,
]  # fmt: skip


@pytest.mark.parametrize("plain", ACCEPTED, ids=lambda f: f.__name__)
def test_every_name_of_an_object_sees_a_change(plain: Callable[..., None]) -> None:
    x = torch.randn(5, dtype=torch.float64)
    expected = torch.zeros_like(x)
    plain(x.numpy(), expected.numpy())  # whose elements are numbers
    kernel = weft.kernel(plain)
    for call in (kernel, kernel.interpret, weft.kernel(debug=True)(plain)):
        found = torch.zeros_like(x)
        call(x, found)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("plain", [inside_of_others, in_lists, in_turns], ids=lambda f: f.__name__)
def test_gradients_of_shared_objects(plain: Callable[..., None]) -> None:
    def values(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        weft.kernel(plain)(x, out)
        return out

    assert torch.autograd.gradcheck(values, torch.rand(4, dtype=torch.float64, requires_grad=True))


def one_of_two(x):
    for i in range(1):
        p, q = Point(x[i] * 2), Point(1.0)
        r = p if x[i] > 0 else q
        r.x += 5
        x[i] = p.x


def named_anew(p):
    r = p
    p = Point(7.0)
    r.x += 5
    return p.x + r.x


def assigned_after(p):
    p.x += 5
    p = Point(7.0)
    return p.x


def assigned_in_a_branch(p):
    if p.x > 0:
        p = Point(7.0)
    p.x += 5
    return p.x


def lent_with_others(both):
    r = both[0]
    both = [Point(1.0), Point(2.0)]
    r.x += 5
    return both[0].x


def lent(change):
    def kernel(x):
        for i in range(1):
            p = Point(x[i] * 2)
            if x[i] > 0:
                p = Point(1.0)
            found = change(p)
            x[i] = p.x + found

    return kernel


def lent_in_a_list(x):
    for i in range(1):
        p = Point(x[i] * 2)
        if x[i] > 0:
            p = Point(1.0)
        both = [p, Point(0.0)]
        p = Point(3.0)
        x[i] = lent_with_others(both) + both[0].x + p.x


def lent_and_read(x):
    for i in range(1):
        p, q = Point(x[i] * 2), Point(1.0)
        x[i] = sum_of(p if x[i] > 0 else q, Point(named_anew(p if x[i] > 0 else q)))


def lent_in_a_comprehension(x):
    for i in range(1):
        p = Point(x[i] * 2)
        if x[i] > 0:
            p = Point(1.0)
        both = [p, Point(0.0)]
        p = Point(3.0)
        x[i] = sum([r.add(1.0).x for r in both])


@weft.dataclass
class Turned:
    x: weft.f64

    def turn(self):
        self.x = self.x * 2
        self = Turned(7.0)
        return self.x


def struct_and_assigned(x):
    for i in range(1):
        t = Turned(x[i])
        x[i] = t.turn() + t.x


def lent_to_a_local_function(x):
    for i in range(1):
        p = Point(x[i] * 2)
        if x[i] > 0:
            p = Point(1.0)

        def change(q):
            r = q
            q = Point(7.0)
            r.x += 5
            return q.x

        x[i] = change(p) + p.x


def of_an_earlier_turn(x):
    for i in range(1):
        last = Point(0.0)
        for k in range(3):
            p = Point(x[i] + k)
            p.add(last.x)
            last = p
        x[i] = last.x


def keyword(p, **others):
    p.x = 1.0
    return others["q"].x


def by_keyword(x):
    for i in range(1):
        p = Point(x[i] * 2)
        x[i] = keyword(p, q=p)


def bound_method(x):
    for i in range(1):
        p = Point(x[i] * 2)
        add = p.add
        p.x = 5.0
        add(1.0)
        x[i] = p.x


def default(x):
    for i in range(1):

        def f(v, p=Point(0.0)):  # noqa: B008
            p.x += v
            return p.x

        f(1.0)
        x[i] = f(2.0)


def twice(f, v):
    return f(v) + f(v)


def passed_on(x):
    for i in range(1):
        p = Point(x[i] * 2)

        def f(v):
            p.x += v  # noqa: B023
            return p.x  # noqa: B023

        x[i] = twice(f, 1.0)


def changed_then(f, p):
    p.x += 1
    return f()


def read_late(x):
    for i in range(1):
        p = Point(x[i] * 2)
        x[i] = changed_then(lambda: p.x, p)  # noqa: B023


@weft.func
def renamed(p):
    r = p
    r.x = 1.0
    return r.x


def in_a_func(x):
    for i in range(1):
        p = Point(x[i] * 2)
        x[i] = renamed(p) + p.x


def struct_in_a_local_function(x):
    for i in range(1):
        s = weft.Struct(a=1.0, b=2.0)

        def f(t):
            t.a = 5.0

        f(s)
        x[i] = s.a


def in_arguments(x):
    for i in range(1):
        p = Point(x[i] * 2)
        x[i] = sum_of(p, Point(moved(p, 1.0)))


def in_a_tuple(x):
    for i in range(1):
        p = Point(x[i] * 2)
        both = (p, moved(p, 1.0))
        x[i] = both[0].x


def of_its_method(x):
    for i in range(1):
        p = Point(x[i] * 2)
        x[i] = p.add(moved(p, 1.0)).x


REFUSED = {
    in_arguments: "`moved` changes an object that this statement has read before",
    in_a_tuple: "`moved` changes an object that this statement has read before",
    of_its_method: "`moved` changes an object that this statement has read before",
    one_of_two: "what is changed by the name `r` may be `p`, too",
    lent(named_anew): "what `named_anew` changes by another name than it was given by, or after",
    lent(
        assigned_after
    ): "what `assigned_after` changes by another name than it was given by, or after",
    lent(
        assigned_in_a_branch
    ): "what `assigned_in_a_branch` changes by another name than it was given by, or after",
    lent_in_a_list: "what `lent_with_others` changes by another name than it was given by",
    lent_to_a_local_function: "what is changed by the name `r` may be `p`, too",
    lent_and_read: "`named_anew` changes an object that this statement has read before",
    lent_in_a_comprehension: "what is changed by the name `r` may be `both`, too",
    struct_and_assigned: "`self`, which is the caller's, is changed here and assigned elsewhere",
    of_an_earlier_turn: "`p` may be `last`, too",
    by_keyword: "`others` holds an object that is changed, and does not see it",
    bound_method: "`add` holds an object that is changed, and does not see it",
    default: "`f` holds an object that is changed, and does not see it",
    passed_on: "`f` changes `p` of the function that defines it, and is called by another one",
    read_late: "`lambda` reads `p` of the function that defines it, which has been changed",
    in_a_func: "`renamed` changes `p`, and is a weft.func, which has copies",
    struct_in_a_local_function: "`t` is what the function was called with, and a copy of it",
}


def anew(p):
    p = Point(p.x)
    p.x += 5
    return p.x


def changed_twice(p):
    return moved(p, 1.0) * 2 + moved(p, 2.0)


def taken_out(pair):
    p = pair.p
    pair.p = Point(9.0)
    p.x += 5
    return p.x


def one_that_has_no_other_name(p):
    return named_anew(Point(p.x) if p.y > 0 else Point(3.0)) + assigned_after(
        Point(p.x + 1) if p.x > 0 else Point(4.0)
    )


def out_of_a_pair(p):
    pair = Pair(Point(p.x), p)
    if p.x > 0:
        pair.p = Point(4.0)
    return taken_out(pair) + pair.p.x


@weft.dataclass
class Corner:
    x: weft.f64
    y: weft.f64


@dataclass
class Box:
    corner: Corner
    size: float


def corner_of_a_box(p):
    box = Box(Corner(p.x, 2.0), 1.0)
    return cornered(box, p.x) + box.corner.x + box.size


def cornered(box, v):
    box.corner.x = v * 3
    box = Box(Corner(7.0, 8.0), v)
    box.corner.y = v * 5
    return box.size + box.corner.y


CHANGES = corner_of_a_box, anew, changed_twice, one_that_has_no_other_name, out_of_a_pair


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", [-1.0, 1.0])
def test_functions_change_what_is_one_of_several_objects(
    change: Callable[..., float], first: float
) -> None:
    found, expected = torch.tensor([first]), torch.tensor([first])
    lent(change)(expected.numpy())  # whose elements are numbers
    weft.kernel(lent(change))(found)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_a_change_that_a_name_would_not_see_is_refused(plain: Callable[..., None]) -> None:
    with pytest.raises(weft.KernelTypeError, match="help: ") as caught:
        weft.kernel(plain)(torch.ones(1))
    assert REFUSED[plain] in str(caught.value)
