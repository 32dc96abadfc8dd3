"""Names that each way out of a loop assigns have a value after it; others have none, also where the
loop's ``else`` gives them one."""

# ruff: noqa: F823, F841 -- names that are read before they are assigned, and not after that
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import weft

TRUE = True


@dataclass
class Point:
    x: float
    y: float


def number(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] > x[i] + 1:
                k, v = j, x[j] * 2
                break
            if x[j] < -1:
                k = v = 3
                break
        else:
            k, v = -1, 0.5
        out[i] = k + v


def object_(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] > x[i] + 1:
                p = Point(x[j] * 2, 1.0)
                break
        else:
            p = Point(0.5, x[i] * 1)
        p.x += 1
        out[i] = p.x + 10 * p.y


def else_goes_on(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] > x[i] + 1:
                k = j
                break
        else:
            out[i] = 5
            continue
        out[i] = k * 2


def found(x, v):
    for j in range(x.shape[0]):
        if x[j] > v:
            k = x[j]
            break
    else:
        return -1.0
    return k + j


def else_returns(x, out):
    for i in range(out.shape[0]):
        out[i] = found(x, x[i] + 1)


def endless(x, out):
    for i in range(out.shape[0]):
        j = 0
        while True:
            s = 0.0
            while True:
                t = x[(i + j) % x.shape[0]] * 2
                j += 1
                s += t
                if t > 0 or j > 5:
                    break
            if s > 1 or j > 7:
                r = s + t
                break
        out[i] = r


def unrolled(x, out):
    for i in range(out.shape[0]):
        for v in (0.1, 0.5, 1.0):
            if x[i] < v:
                k = v * 2
                break
        else:
            k = -1
        out[i] = k


def else_in_a_loop(x, out):
    for i in range(out.shape[0]):
        for a in range(3):
            for j in range(x.shape[0]):
                if x[j] > x[i] + a:
                    k = j
                    break
            else:
                k = -1
                break
            out[i] += k
        else:
            k = 77
        out[i] += k * 10


def halved(x, out):
    for i in range(out.shape[0]):
        n = int(x[i] * 40) + 90
        while (d := n // 2) > i:
            n = d
        out[i] = d * 100 + n


def halved_until_a_break(x, out):
    for i in range(out.shape[0]):
        n = int(x[i] * 40) + 190
        d, total = 77, 0
        while (d := n // 2) > 0:
            n = d
            d += 1
            total += d
            if total > 100 + i:
                break
        else:
            total = -d
        out[i] = d * 1000 + total


def asked_in_order(x, out):
    for i in range(out.shape[0]):
        n, e = i, 5
        while (v := n * 0.5) < 4 and (e := n + 1) < 7 and v != 1.5:
            n += 1
        out[i] = v * 100 + e


def in_a_part_of_a_condition(x, out):
    for i in range(out.shape[0]):
        e = k = 5
        if x[i] > 0 and (e := i + 1) < 7:
            e += 10
        y = (k := i * 2) + 1 if x[i] > 0.5 else 3.5
        z = x[i] > 0 or (w := i * 0.5) or w
        out[i] = e + 100 * k + y + (z != 0)


def ways_that_go_on(x, out):
    def scaled(v):
        if v < -1:
            k, f = 0, 0.5
        elif v < 1:
            k, f = 1, v * 2
        else:
            return v
        return k + f

    for i in range(out.shape[0]):
        j = 0
        while j < 5:
            c = x[i] + j
            if c < 0:
                k, f = j, c * 2
            elif c < 1:
                if j > 3:
                    break
                k, f = 2, 0.25
            elif c < 2:
                if j == 1:
                    j += 2
                    continue
                if j == 2:
                    break
                k = 7
                f = 1.5
            else:
                j += 1
                continue
            if j + k > 8:
                break
            for q in range(k):
                if x[q % x.shape[0]] > 1:
                    f += q
            out[i] += k * f + scaled(c)
            j += 1
        if x[i] > 1:
            v = 1.0
        elif x[i] > 0:
            v = x[i] + 0
        else:
            continue
        out[i] += v


def constant_ways(x, out):
    for i in range(out.shape[0]):
        c = 0
        for j in range(5):
            if x[i] > 0.2 * j:
                if j <= abs(i - c):
                    continue
                k = j % 3
            elif TRUE:
                continue
            elif x[i] > 0.5:
                k = 2
            else:
                k = 1
            c += k
        out[i] = c


def of_the_last_turn(v):
    for k in range(3):
        w = v * k
        if w > 2:
            break
    return w + k


def last_turns(x, out):
    for i in range(out.shape[0]):
        for j in range(10, -1, -4):
            if x[i] > 0:
                v = j
                continue
            v = -j * 0.5
            if v < -3:
                break
        for a in range(2):
            for b in weft.serial(range(1, 3)):
                p = x[(a + b + i) % x.shape[0]] + 0
                q, r = p * a, b
        out[i] = v + j * 100 + p + q * 10 + r + a + b + of_the_last_turn(x[i])
        for _ in range(2):
            point, values = Point(x[i] + 0, 2.0), (p, q)
        out[i] += point.x * point.y + values[1]


KERNELS = [
    last_turns,
    ways_that_go_on,
    constant_ways,
    number,
    object_,
    else_goes_on,
    else_returns,
    endless,
    unrolled,
    else_in_a_loop,
    halved,
    halved_until_a_break,
    asked_in_order,
    in_a_part_of_a_condition,
]


@pytest.mark.parametrize("plain", KERNELS, ids=lambda f: f.__name__)
def test_what_each_way_out_of_a_loop_assigns_is_read_after_it(plain: Callable[..., None]) -> None:
    for n in (1, 6, 17):
        x = torch.randn(n, dtype=torch.float64)
        expected = torch.zeros(n, dtype=torch.float64)
        plain(x, expected)
        for call in (weft.kernel(plain), weft.kernel(debug=True)(plain)):
            out = torch.zeros(n, dtype=torch.float64)
            call(x, out)
            torch.testing.assert_close(out, expected)


def one_break_without(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] > x[i] + 1:
                k = j
                break
            if x[j] < -1:
                break
        else:
            k = -1
        out[i] = k


def break_in_an_else(x, out):
    for i in range(out.shape[0]):
        for _a in range(3):
            for j in range(x.shape[0]):
                if x[j] > x[i]:
                    break
            else:
                break
            if x[i] > 1.5:
                k = 1
                break
        else:
            k = -1
        out[i] = k


def some_branch_of_the_else(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] > x[i] + 1:
                k = j
                break
        else:
            if x[i] > 0:
                k = -1
        out[i] = k


def read_before(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if j > 3:
                out[i] = k  # noqa: F821
            if x[j] > x[i] + 1:
                k = j
                break
        else:
            k = -1
        out[i] = k


def some_turns(x, out):
    for i in range(out.shape[0]):
        for t in range(3):
            for v in (0.1, 0.5):
                if x[i] > 0:  # noqa: SIM102
                    if x[i] * t > v:
                        continue
                k = v + t
            out[i] += k


def turns_before_a_break(x, out):
    for i in range(out.shape[0]):
        for t in range(3):
            for v in (0.1, 0.5):
                if x[i] > 0:  # noqa: SIM102
                    if x[i] * t > v:
                        break
                k = v + t
            out[i] += k


def some_of_a_condition(x, out):
    for i in range(out.shape[0]):
        n = i
        while n < 3 and (k := n) < 2:
            n += 1
        out[i] = k


def read_by_its_condition(x, out):
    for i in range(out.shape[0]):
        while (k := k + 1) < 2:  # noqa: F821
            out[i] += 1


def some_ways_that_go_on(x, out):
    for i in range(out.shape[0]):
        for j in range(3):
            if x[i] < j:
                k = 1
            elif x[i] < 2 * j:
                if j > 1:
                    continue
            else:
                break
            out[i] += k


def a_way_that_goes_on_without(x, out):
    for i in range(out.shape[0]):
        for j in range(3):
            if x[i] > 0:
                if x[i] > 1:
                    k = 1
                    continue
            else:
                k = 2
            out[i] += k + j


def a_constant_way_without(x, out):
    for i in range(out.shape[0]):
        for j in range(3):
            if x[i] > 0:
                k = 1
            else:
                for _ in weft.static(range(2)):
                    break
            out[i] += k + j


def after_the_ways(x, out):
    for i in range(out.shape[0]):
        for j in range(x.shape[0]):
            if x[j] < 0:
                k = 1
            elif x[j] < 2:
                k = 2
            else:
                break
        out[i] += k


def of_no_turn(x, out):
    for i in range(out.shape[0]):
        for j in range(0):
            k = j
        out[i] = k


def in_some_turns(x, out):
    for i in range(out.shape[0]):
        for j in range(3):
            if j == 1:
                continue
            k = j
        out[i] = k


REFUSED = [
    of_no_turn, in_some_turns,
    some_ways_that_go_on, a_way_that_goes_on_without, a_constant_way_without, after_the_ways,
    one_break_without, break_in_an_else, some_branch_of_the_else, read_before, some_turns,
    turns_before_a_break, some_of_a_condition, read_by_its_condition,
]  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_a_name_that_one_way_out_does_not_assign_is_refused(plain: Callable[..., None]) -> None:
    with pytest.raises(weft.KernelNameError, match=r"`k` may have no value here|name `k` is not"):
        weft.kernel(plain)(torch.randn(5), torch.zeros(5))


def part_of_and(x, out):
    for i in range(out.shape[0]):
        out[i] = x[i] > 0 and (k := 3.0) > 1
        out[i] += k


def other_branch(x, out):
    for i in range(out.shape[0]):
        if x[i] > 0 and (k := 3.0) > 1:
            out[i] = 2.0
        else:
            out[i] = k


def part_of_or(x, out):
    for i in range(out.shape[0]):
        if x[i] > 0 or (k := 3.0) > 1:
            out[i] = k


def one_arm(x, out):
    for i in range(out.shape[0]):
        out[i] = (k := 3.0) if x[i] > 0 else 1.0
        out[i] += k


def end_of_a_chain(x, out):
    for i in range(out.shape[0]):
        out[i] = 0.0 < x[i] < (k := 3.0)
        out[i] += k


def asserted(x, out):
    for i in range(out.shape[0]):
        assert x[i] < 9 or (k := 3.0) > 1  # noqa: RUF018
        out[i] = k


def after_a_branch(x, out):
    for i in range(out.shape[0]):
        if i % 2 == 0:
            out[i] = x[i] > 0 and (k := 3.0) > 1
        else:
            k = 1.0
        out[i] += k


def _of_a_function(v):
    _ = v > 0 and (k := 3.0) > 1
    return k


def in_a_function(x, out):
    for i in range(out.shape[0]):
        out[i] = _of_a_function(x[i])


SKIPPED = [
    part_of_and, other_branch, part_of_or, one_arm, end_of_a_chain, asserted, after_a_branch,
    in_a_function,
]  # fmt: skip


@pytest.mark.parametrize("plain", SKIPPED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("debug", [False, True])
def test_a_name_of_a_part_that_may_be_skipped_is_refused(
    plain: Callable[..., None], debug: bool
) -> None:
    with pytest.raises(weft.KernelNameError, match=r"`k` may have no value here: `:=` assigns it"):
        weft.kernel(debug=debug)(plain)(torch.randn(5), torch.zeros(5))


def where_it_is_certain(x, out):
    for i in range(out.shape[0]):
        if x[i] > 0 and (k := x[i] * 2) > 0.5 and k < 2:
            out[i] = k
        if x[i] < 0 or (k := x[i] + 1) > 1.5:
            out[i] += 1
        else:
            out[i] += k
        if not (x[i] > 0.2 and (m := x[i] + 3) > 3.5):
            continue
        out[i] += m + (n if (n := x[i]) > 0.6 and (p := 2.0) > n else -n)
        assert x[i] > 0 and (q := 4.0) > x[i]  # noqa: PT018, RUF018
        out[i] += q
        k = 0
        while k < 4 and (r := k + x[i]) < 3:
            k += 1
            out[i] += r


def values_before(x, out):
    for i in range(out.shape[0]):
        k = m = 1.0
        out[i] = x[i] > 0 and (k := 3.0) > 1
        out[i] += k + (m if 0 < x[i] < (m := 0.5) else -m)


@pytest.mark.parametrize("plain", [where_it_is_certain, values_before], ids=lambda f: f.__name__)
def test_a_name_is_read_where_its_part_was_evaluated(plain: Callable[..., None]) -> None:
    x, found = torch.randn(64), torch.zeros(2, 64)
    plain(x, found[0])
    weft.kernel(plain)(x, found[1])
    torch.testing.assert_close(found[1], found[0])


before = 7  # names of the module, which functions below assign for themselves
sum = 5


def from_the_turn_before(v):
    s = 0.0
    for t in range(3):
        if t > 0:
            s += before * v
        before = t + v
    return s


def of_a_turn(x, out):
    for i in range(out.shape[0]):
        for j in range(3):
            if j > 0:
                out[i] += before
            before = x[j]


def of_a_function(x, out):
    for i in range(out.shape[0]):
        out[i] = from_the_turn_before(x[i])


def of_a_function_inside(x, out):
    before = 50.0

    def own(v):
        s = before if v > 0 else v
        before = v
        return s

    for i in range(out.shape[0]):
        out[i] = own(x[i])


def of_the_iteration(x, out):
    for i in range(out.shape[0]):
        out[i] = sum + x[i]
        sum = 3


@pytest.mark.parametrize(
    "plain", [of_a_turn, of_a_function, of_a_function_inside, of_the_iteration],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_a_function_assigns_is_no_name_of_its_module(plain: Callable[..., None]) -> None:
    with pytest.raises(weft.KernelNameError, match="may have no value here: it is assigned after"):
        weft.kernel(plain)(torch.ones(3), torch.zeros(3))


def test_names_of_the_module_are_read_beside_those_of_comprehensions() -> None:
    def plain(x, out):
        for i in range(out.shape[0]):
            out[i] = [before * x[i] for before in range(3)][2] + (lambda sum: sum)(2) + sum + before

    x, found = torch.randn(3), torch.zeros(2, 3)
    plain(x, found[0])
    weft.kernel(plain)(x, found[1])
    torch.testing.assert_close(found[1], found[0])
