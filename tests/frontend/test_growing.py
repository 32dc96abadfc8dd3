"""Lists of an iteration that grow and shrink: what they are in the undecorated Python."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence

import pytest
import torch

import weft


def depth_first(left, right, out):
    for i in range(out.shape[0]):
        stack = [i]
        s = 0
        while stack:
            node = stack.pop()
            s = 2 * s + node
            for child in (int(left[node]), int(right[node])):
                if child >= 0:
                    stack.append(child)
        out[i] = s


def chosen(x, out):
    for i in range(x.shape[0]):
        a = []
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                a.append(x[i, j])
        s = 0.0
        for v in a:
            s += v
        if len(a) > 1:
            s += a[-1] * a[0] + max(v * v for v in a)
        out[i] = s


def push(a, v):
    a.append(v)
    return len(a)


def by_a_function(x, out):
    for i in range(x.shape[0]):
        a = []
        n = 0
        for j in range(i + 1):
            n += push(a, x[i, j] * 2)
        out[i] = n + sum(v for v in a)


def queue(x, out):
    for i in range(x.shape[0]):
        q = [0.5, 1]
        q.extend((2.5, 3.5))
        s = 0.0
        while len(q) > 0:
            v = q.pop(0)
            s = s * 0.5 + v
            if s < 3:
                q.append(v + abs(float(x[i, 0])))
            if len(q) > 5:
                q.clear()
        out[i] = s


def of_a_size(x, out):
    for i in range(x.shape[0]):
        b = weft.zeros(i + 1, weft.f64, most=8)
        for j in range(len(b)):
            b[j] = float(x[i, j])
        b.append(1.0)
        c = b.pop()
        while len(b) > 2:
            c += b.pop(1)
        out[i] = c + b[0] + b[-1]


def anew(x, out):
    for i in range(x.shape[0]):
        s = 0
        for j in range(3):
            a = []
            for k in range(j):
                a += [k]
            if not a:
                a.append(7)
            s += len(a) + a[0]
        flags = []
        for j in range(2):
            flags.append(x[i, j] > 0)
        out[i] = s if flags[0] and not flags[1] else -s


def changed(x, out):
    for i in range(x.shape[0]):
        a = [x[i, 0]]
        a.insert(0, x[i, 1])
        a.insert(-1, x[i, 2])
        a.insert(100, 5)
        a.extend(x[i])
        a += [x[i, 1]]
        a.remove(x[i, 1])
        del a[1]
        del a[-2]
        a.reverse()
        a[1] = 0.25
        out[i] = (
            a.index(5) + 10 * a.count(x[i, 1]) + 100 * len(a) + sum(k * v for k, v in enumerate(a))
        )


def ordered(x, out):
    for i in range(x.shape[0]):
        a = [v for v in x[i] if v > 0 or v < -1]
        b = sorted(a, key=abs, reverse=True)
        a.sort()
        c = sorted(x[i, 1:], reverse=True)
        out[i] = c[0] - c[-1] + (a[0] * 2 - a[-1] * 3 + b[0] if a else 7.0)


def copied(x, out):
    for i in range(x.shape[0]):
        a = [1, 2, 3, 4]
        a.append(i)
        b, c, d = a[1:-1], a[::-2], a[:]
        d[0], b[1] = x[i, 0], 9
        a *= 2
        e = a + d + [0.5]
        e.extend(e)
        f = list(range(i)) + e.copy()
        g = [0.0] * 3
        g[1] = x[i, 1]
        h = g[1:]
        h[0] = 7.0
        out[i] = sum(b) + 2 * sum(c) + 3 * sum(f) + len(e) + d[0] + g[1] + h[0] + h[-1] * 5


def compared(x, out):
    for i in range(x.shape[0]):
        a = []
        for k in range(i):
            a.append(k)
        s = 0
        if a == [0, 1] or 3 in a:
            s += 1
        if a != [*a[:-1], i - 1]:
            s += 10
        if x[i, 1] in x[i, 2:] or x[i, 1] not in x[i]:
            s += 100
        for u, v in zip(a, [w * w for w in a if w != 1], strict=False):
            s += u * v
        out[i] = s + [u * v for u in a for v in (1, 2)].count(4)


def made_and_grown(x, out):
    for i in range(x.shape[0]):
        a = [v for v in [0.25] if v > x[i, 0]] + [2.0]
        b: list[float] = [v for v in a if v > 1.0]
        c, d = a[:1], [x[i, 1]] * 2
        for j in range(i + 1):
            a.append(x[i, j])
            b.insert(0, x[i, j])
            c.extend([x[i, j], 1.0])
            d.append(sum(v * 0.5 for v in d))
        out[i] = sum(a) + 2 * sum(b) + 3 * sum(c) + 4 * sum(d)


def annotated(x, out):
    sizes: tuple[int, ...] = (1, 2)
    for i in range(x.shape[0]):
        a: list[float] = []
        now: typing.List[float] = [0.0] * 3  # noqa: UP006
        then: Sequence[float] = [1.0, x[i, 0], 2.0]
        both: tuple[float, list[int]] = (x[i, 1], [i, 3])
        for j in range(3):
            a.append(twice_each([x[i, j]])[0])
            now[j] = then[j - 1] + a[j]
            now, then = then, now
        out[i] = sum(now) + both[0] + both[1][0] + sizes[i % 2]


def twice_each(a):
    b: list = []
    for v in a:
        b.append(v * 2)
    return b


@pytest.mark.parametrize("function", [
    depth_first, chosen, by_a_function, queue, of_a_size, anew, changed, ordered, copied, compared,
    made_and_grown, annotated,
])  # fmt: skip
@pytest.mark.parametrize("debug", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lists_are_what_they_are_in_python(function: Callable[..., None], debug: bool) -> None:
    args = [torch.randn(6, 6, dtype=torch.float64)]
    if function is depth_first:
        args = [torch.tensor([1, 3, -1, -1, -1, -1]), torch.tensor([2, 4, 5, -1, -1, -1])]
    expected, found = (torch.full((6,), 9.0, dtype=torch.float64) for _ in range(2))
    function(*args, expected)
    weft.kernel(debug=debug)(function)(*args, found)
    torch.testing.assert_close(found, expected)


def filled(n, out, popped):
    for i in range(1):
        a = []
        for j in range(n):
            a.append(j)
        for _ in range(popped):
            out[i] = a.pop()


def sized(n, out, popped):
    for i in range(1):
        a = weft.zeros(n, weft.i32, most=4)
        a.append(3)
        out[i] = len(a)


@pytest.mark.parametrize(("function", "n", "popped", "message"), [
    (filled, 64, 64, ""), (filled, 65, 0, "the list a is full: there is room for 64 elements"),
    (filled, 2, 3, "`pop` of the list a, which is empty"), (sized, 3, 0, ""),
    (sized, 4, 0, "full: there is room for 4 elements"),
    (sized, 5, 0, "the size of an array is not in 0..4, its `most`"),
    (sized, -1, 0, "the size of an array is not in 0..4, its `most`"),
])  # fmt: skip
def test_there_is_room_for_so_many(function, n: int, popped: int, message: str) -> None:
    out = torch.empty(1)
    if not message:
        weft.kernel(function)(n, out, popped)
        assert out.item() == (4 if function is sized else 0)
        return
    with pytest.raises(weft.KernelAssertionError, match=message):
        weft.kernel(function)(n, out, popped)
    if function is sized and n > 0:
        with pytest.raises(weft.KernelAssertionError):
            function(n, out, popped)


def test_debug_checks_subscripts_by_the_length() -> None:
    @weft.kernel(debug=True)
    def second(out, k: int):
        for i in out:
            a = [1.0]
            a.append(2.0)
            out[i] = a[k]

    out = torch.empty(1)
    second(out, 1)
    assert out.item() == 2
    with pytest.raises(weft.KernelIndexError, match="subscript 2 of `the list a`"):
        second(out, 2)


def grown_while_its_copies_are_gone_over(x, out):
    for i in range(out.shape[0]):
        a = [x[i, 0] + 0, 2.0]
        for v in a[:]:
            a.append(v + 1)
        for k in range(len(a)):
            a.append(a[k] * 0.5)
        for v in (len(a), 0.25):
            a.append(v)
        for v in a.copy():
            a.append(v * 0.125)
        for v in sorted(a):
            a.insert(0, v)
        for k, v in enumerate(a):
            out[i] += (k + 1) * v


def test_a_loop_over_what_is_made_of_a_list_may_change_it() -> None:
    x = torch.randn(4, 2, dtype=torch.float64)
    found = torch.zeros(2, 4, dtype=torch.float64)
    grown_while_its_copies_are_gone_over(x, found[0])
    weft.kernel(grown_while_its_copies_are_gone_over)(x, found[1])
    torch.testing.assert_close(found[1], found[0])


def test_a_loop_over_a_list_does_not_change_it() -> None:
    @weft.kernel
    def grows(out):
        for i in out:
            a = []
            push(a, 1.0)
            for v in a:
                if v < 5:
                    push(a, v + 1)
            out[i] = len(a)

    with pytest.raises(weft.KernelSyntaxError, match="a loop over the list a lets it grow"):
        grows(torch.empty(2))


def times(x, out):
    for i in out:
        a = [1.0, 2.0]
        a[0] = x[i]
        out[i] = (a * x[i])[0]


def missing(x, out):
    for i in out:
        a = [1.0, 2.0]
        a.remove(x[i])


@pytest.mark.parametrize(("function", "message"), [
    (times, "lists have `\\+` of two lists and `\\*` by an int"),
    (missing, "`index` or `remove` of what is not in the list"),
])  # fmt: skip
def test_what_lists_refuse(function, message: str) -> None:
    with pytest.raises(weft.WeftError, match=message):
        weft.kernel(function)(torch.zeros(3), torch.empty(3))


def test_gradients_of_what_is_sorted() -> None:
    @weft.kernel
    def median(x):
        out = torch.empty(x.shape[0], dtype=x.dtype)
        for i in out:
            a = sorted(x[i])
            out[i] = a[len(a) // 2] * x[i, 0]
        return out

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(median, (x,))


def test_gradients_of_what_is_in_lists() -> None:
    @weft.kernel
    def positive(x):
        out = torch.empty(x.shape[0], dtype=x.dtype)
        for i in out:
            a = []
            for j in range(x.shape[1]):
                if x[i, j] > 0:
                    a.append(x[i, j] * x[i, j])
            s = 0.0
            while a:
                s = s * x[i, 1] + a.pop() * x[i, 0]
            out[i] = s
        return out

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(positive, (x,))


def store(a, k, v):
    a[k] = v


def test_what_a_function_stores_into_a_list_widens_it() -> None:
    @weft.kernel
    def f(out):
        for i in out:
            a = [0] * 3
            a[1] = 2
            store(a, 0, 1.5)  # it was truncated
            out[i] = a[0]

    out = torch.empty(1)
    f(out)
    assert out.item() == 1.5
