"""Forms of Python in device loops: the undecorated function says what each means."""

# ruff: noqa: B023, B905 -- functions that are called where they are made; zip as people write it
from __future__ import annotations

import functools
import heapq

import pytest
import torch

import weft


def generators(x, out):
    n, m = x.shape
    for i in range(n):
        out[i, 0] = sum(x[i, j] * j for j in range(m)) + sum((k for k in range(i)), 0.5)
        out[i, 1] = max(x[i, j] for j in range(m)) - min(abs(v) for v in x[i])
        out[i, 2] = any(x[i, j] > 1 for j in range(m)) + 2 * all(v < 1 for v in x[i])
        out[i, 3] = sum(v for v in x[i] if v > 0) + sum(1 for v in x[i] if v > 0)
        out[i, 4] = sum(x[i, j] * x[i, k] for j in range(m) for k in range(j) if k != 1)
        out[i, 5] = max(v * w for v in x[i] if v < 9 for w in x[i])
        j = 7  # a generator's names are its own
        out[i, 6] = sum(j for j in range(3)) + j + sum([a * b for a, b in zip((1, 2), x[i])])


def comprehensions(x, out):
    for i in range(x.shape[0]):
        a = [x[i, j] * 2 for j in range(3)]
        b = [v + k for k, v in enumerate(a) if k != 1]
        k = i % 3
        out[i, 0] = a[k] + b[0] - b[1] + len(b)
        out[i, 1] = sum([p * q for p in a for q in (1, 2)])


def lists(x, out):
    for i in range(x.shape[0]):
        a, counts, flags = [0.0] * 4, [0] * 3, [False, True] * 2
        for j in range(x.shape[1]):
            a[j % 4] += x[i, j]
            counts[j % 3] += 1
            flags[j % 4] = x[i, j] > 0
        b = a
        b[0] = 7.0  # the same list
        s = [1, 2, 3]
        s[i % 3] = 0.5  # no longer of ints
        t = torch.zeros(3)
        t[1:] = x[i, :2]
        t[0] = t.sum()
        u = torch.full((2, 2), 3)
        u[i % 2, 1] += 4
        for v in t:
            u[0, 0] += int(v)
        out[i, 0] = a[0] + a[1] * a[3] + max(a) + sum(a)
        out[i, 1] = counts[0] * 100 + counts[1] * 10 + counts[2] + sum(counts)
        out[i, 2] = flags[0] + flags[1] * 2 + flags[2] * 4 + flags[3] * 8
        out[i, 3] = s[0] + s[1] * 10 + s[2] * 100 + u[0, 0] + u[0, 1] + u[1, 1]
        out[i, 4] = t[0] + t.max()
        low, mid, high = sorted((x[i, 0], x[i, 1], 0.5))
        out[i, 5] = low + 10 * mid + 100 * high + sorted([3, 1, 2], reverse=True)[0]


def functions(x, out):
    for i in range(x.shape[0]):
        scale = 2.0

        def f(v, k=1, *rest, bias=0.5, **named):
            for r in rest:
                if r > 2:
                    return -r
            return v * scale + k + bias + len(named)

        def clipped(v):
            def inside(w):
                return w if w > -1 else -1.0

            return inside(v) + i

        g = lambda v, w=scale: f(v) * w  # noqa: E731
        out[i, 0] = f(x[i, 0])
        scale = 3.0  # read when it is called
        out[i, 1] = f(x[i, 1], 2, 1, 3) + f(x[i, 1], bias=1.0, more=2)
        out[i, 2] = g(x[i, 0]) + (lambda v: v * v)(x[i, 1])
        out[i, 3] = clipped(x[i, 0])


def matched(x, out):
    for i in range(x.shape[0]):
        match i % 5:
            case 0:
                out[i, 0] = 1.0
            case 1 | 2:
                out[i, 0] = 2.0
                if i > 5:
                    continue
            case k if k == 3:
                out[i, 0] = k * 10
            case _:
                out[i, 0] = 4.0
        match (i % 2, i % 3):
            case (0, k) if k > 0:
                out[i, 1] = k
            case (a, 0):
                out[i, 1] = 10 + a
            case (first, *rest):
                out[i, 1] = first + len(rest) * 100
        s = 0
        for j in range(4):
            match j:
                case 1:
                    continue
                case 3:
                    break
            s += 1 + j
        out[i, 2] = s


def kept(v, most):
    count = 5
    match v:
        case (count, 1) if count > most:
            return count
        case (_, 3):
            count += 100
    return count * 10


def matched_and_refused(x, out):
    """What a pattern has captured stays where the guard fails."""
    for i in range(x.shape[0]):
        a, b = -1, -2
        match (i % 4, i % 3):
            case (a, b) if a > b:
                out[i, 0] = 1.0
            case (a, 1):
                out[i, 0] = 2.0
            case (0, b) if a < b:
                out[i, 0] = 3.0
            case _:
                out[i, 0] = 4.0
        out[i, 1] = 10 * a + b
        if i % 4 != 2:
            out[i, 2] = kept((i % 5, i % 4), i % 3)
        k = 0
        for j in range(3):
            match (i + j) % 4:
                case 0:
                    out[i, 3] = k
                case k if k == 2:
                    out[i, 4] = j


def else_of(x):
    for k in range(3):
        for v in x:
            if v > k:
                break
        else:
            return k
        if k == 7:
            return -1
    else:
        k = 50
    return k + 100


def loops(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > 1:
                out[i, 0] = j
                break
        else:
            out[i, 0] = -1
        j, found = 0, 0
        while j < x.shape[1]:
            j += 1
            if x[i, j - 1] < -1:
                break
            for k in range(2):
                if x[i, j - 1] > k:
                    break
            else:
                found += 1
                continue
            found += 10
        else:
            found += 100
        for k in reversed(range(1, 8, 3)):
            found = found * 2 + k
        out[i, 1] = found
        out[i, 2] = else_of(x[i])


def power(v, n):
    if n == 0:
        return 1.0
    half = power(v, n // 2)
    return half * half * (v if n % 2 else 1.0)


def recursive(x, out):
    for i in range(x.shape[0]):
        out[i, 0] = power(x[i, 0], 5)


@pytest.mark.parametrize(
    "function",
    [generators, comprehensions, lists, functions, matched, matched_and_refused, loops, recursive],
    ids=lambda f: f.__name__,
)
def test_it_means_what_it_means_in_python(function) -> None:
    kernel = weft.kernel(function)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(11, 5, dtype=dtype)
        expected, compiled, interpreted = (torch.full((11, 7), 7.0, dtype=dtype) for _ in range(3))
        function(x, expected)
        kernel(x, compiled)
        torch.testing.assert_close(compiled, expected)
        kernel.interpret(x[:3], interpreted[:3])
        torch.testing.assert_close(interpreted[:3], expected[:3])


def test_what_a_failed_guard_captured_is_handed_on() -> None:
    @weft.kernel
    def last(x):
        k = -5
        weft.loop_config(serialize=True)
        for i in range(x.shape[0]):
            match x[i]:
                case 7:
                    break
                case k if k < 0:
                    break
        return k

    for values in ([], [7], [1, 2], [3, 7, 4], [2, -1, 6]):
        x = torch.tensor(values, dtype=torch.int64)
        assert last(x) == last.function(x) == last.interpret(x)


def test_gradients_of_generators_lists_and_functions() -> None:
    @weft.kernel
    def f(x):
        out = x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            a = [0.0] * 3
            for j in range(x.shape[1]):
                a[j % 3] += x[i, j] ** 2
            g = lambda v: v * a[0]  # noqa: E731
            out[i] = sum(g(v) for v in x[i]) + max(v for v in x[i]) * a[1]
        return out

    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x,))


def test_what_is_refused() -> None:
    def unbounded(x):
        for i in range(x.shape[0]):
            x[i] = power(x[i], i)

    def empty(x):
        for i in range(x.shape[0]):
            x[i] = max(v for v in (1.0, 2.0) if x[i] > 5)

    def long(x):
        for _ in range(x.shape[0]):
            a = [v for v in range(300)]  # noqa: C416, F841

    def classes(x):
        for i in range(x.shape[0]):
            match i:
                case int(k):
                    x[i] = k

    def left(x):
        for i in range(x.shape[0]):
            for _ in range(3):
                x[i] += 1
            else:
                break

    expected = {
        unbounded: "`power` calls itself, more than 32 levels deep",
        empty: "`max` of no items",
        long: "a comprehension of more than 256 items",
        classes: "`match` cannot be compiled",
        left: "`break` out of a parallel loop",
    }
    for function, message in expected.items():
        with pytest.raises(weft.WeftError) as caught:
            weft.kernel(function)(torch.zeros(3))
        assert message in str(caught.value)


def test_what_a_generator_stores_is_stored_once() -> None:
    def counted(x, calls):
        for _ in range(1):

            def of(v):
                calls[0] += 1
                return v * 2

            x[0] = max(of(v) for v in x[:]) + max(of(x[j]) for j in range(3))
            x[1] = sum(v for v in (of(x[1]), of(x[2])))
            x[2] = len([of(x[j]) for j in range(x.shape[0])])

    x, calls = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(1)
    found = x.clone(), calls.clone()
    counted(x, calls)
    weft.kernel(counted)(*found)
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], calls)


def popped(x, out):
    for i in range(out.shape[0]):
        a = [1.0, 2.0]
        out[i] = 10 * (0 < x[i] < a.pop() < 4 < a.pop())
        out[i] += len(a)


def guarded(x, out):
    for i in range(out.shape[0]):
        k = i - 2
        out[i] = 1 if 0 <= k < x[k] * 9 else 2
        out[i] += 5 * (0 <= k < 3 == len(out) - 2 + k > x[k])


def first_below(x, i):
    for k in range(6):
        if any(x[k, j] < x[i, j] - 1 for j in range(3)):
            return k
    return 10


def left_inside_of_what_is_left(x, out):
    for i in range(out.shape[0]):
        out[i] = any(all(x[i, j] < v for j in range(3)) for v in (0.5, 3.0, 0.1))
        out[i] += 2 * all(any(x[i, j] < x[k, j] for j in range(3)) for k in range(6))
        out[i] += 4 * next((k for k in range(6) if all(x[k, j] < 1.5 for j in range(3))), -1)
        c = 0
        for k in range(6):
            if any(x[k, j] < x[i, j] - 1 for j in range(3)):
                continue
            if all(x[k, j] < -0.5 for j in range(3)):
                break
            c += 1
        else:
            c = 50
        out[i] += 100 * c + 10000 * first_below(x, i)


def test_generators_that_end_early_stand_in_loops_that_do() -> None:
    for _ in range(3):
        x, found = torch.randn(6, 3), torch.zeros(2, 6)
        left_inside_of_what_is_left(x, found[0])
        weft.kernel(left_inside_of_what_is_left)(x, found[1])
        assert found[0].tolist() == found[1].tolist()


def together(*a):
    return sum((*a, 1.0)) + 10 * len((*a, *a)) + 100 * bool(a)


def spread_and_true(x, out):
    for i in range(out.shape[0]):
        a, b, c = [1.0, 2.0], [], ()
        a[0] = x[i] + 0
        if i > 2:
            b.append(2.0)
        t = (*a, 4.0, *c)
        a[0] = 50.0  # what a tuple holds stays
        out[i] = sum(t) + 10 * bool(b) + 100 * bool(a) + 1000 * bool(c) + (5 if a else 6)
        out[i] += together() + together(x[i], 2.0)


def test_lists_are_spread_in_tuples_and_are_true_where_they_hold_something() -> None:
    x, found = torch.randn(5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    spread_and_true(x.numpy(), found[0].numpy())
    weft.kernel(spread_and_true)(x, found[1])
    torch.testing.assert_close(found[1], found[0])

    def of_any_length(x):
        for i in x:
            a = [1.0]
            a.append(x[i])
            x[i] = sum((*a, 1.0))

    with pytest.raises(weft.KernelTypeError, match="holds, whose number is not known") as caught:
        weft.kernel(of_any_length)(torch.zeros(3))
    assert caught.value.help == "make a list: [*a, b]"


def ranges_spread(x, numbers, out):
    first, second, third = range(3)
    for i in range(out.shape[0]):
        a = [*range(3), x[i]]
        b = (*reversed(range(2)), i)
        (c, d), *e = (range(2, 8, 3), 5, 6)
        f, *g = numbers
        a[1] = max(*range(4)) + len(set(range(5)))
        out[i] = sum(a) + 10 * b[-1] + c + 2 * d + e[1] + f * sum([*numbers, *g])
        out[i] += first + 3 * second + 5 * third


def test_a_range_is_unpacked_and_spread() -> None:
    x, found = torch.randn(5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    ranges_spread(x.numpy(), range(1, 4), found[0].numpy())
    weft.kernel(ranges_spread)(x, range(1, 4), found[1])
    torch.testing.assert_close(found[1], found[0])

    def of_any_length(x, n: int):
        for i in x:
            x[i] = sum([*range(n), x[i]])

    with pytest.raises(weft.KernelTypeError, match="whose number is not known") as caught:
        weft.kernel(of_any_length)(torch.zeros(3), 2)
    assert caught.value.help == "make a list: list(range(n)) + [b]"


def functions_one_after_another(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for k in range(3):
            f = lambda v: v * k  # noqa: E731
            s += f(x[i])
            f = lambda v: v + k  # noqa: E731
            s -= f(x[i]) * 0.5
        g = functools.partial(pow, 2)
        s += g(3)
        g = functools.partial(max, 0.5)
        for h in (abs, lambda v: v + 1):
            s = g(s) + h(x[i])
            g = h
        out[i] = s


def test_a_name_may_stand_for_one_function_after_another() -> None:
    x, found = torch.randn(5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    functions_one_after_another(x.numpy(), found[0].numpy())
    weft.kernel(functions_one_after_another)(x, found[1])
    torch.testing.assert_close(found[1], found[0])

    def by_a_branch(x):
        for i in x:
            f = lambda v: v * 2  # noqa: E731
            if i > 2:
                f = lambda v: v + 1  # noqa: E731
            x[i] = f(x[i])

    with pytest.raises(weft.KernelTypeError, match="`f` may be `lambda`, or another one"):
        weft.kernel(by_a_branch)(torch.zeros(3))


def known_to_fail(x, out):
    for i in range(out.shape[0]):
        a = [1.0, 2.0]
        least = 3.0  # known when the loop is compiled
        out[i] = 10 * (4.0 < least < a.pop())
        out[i] += len(a)


def added(x, k, v):
    x[k] = x[k] + v
    return v * 2


def called_by_attributes(x, out):
    for i in range(out.shape[0]):
        heap = [3.0, 4.0]
        out[i] = 10 * (0 < x[i] < heapq.heappop(heap))
        out[i] += len(heap)
        _ = 0 < x[i] < 9 < weft.atomic_add(out[i], 1.0)


@pytest.mark.parametrize("plain", [popped, guarded, known_to_fail, called_by_attributes])
@pytest.mark.parametrize("debug", [False, True])
def test_a_chain_of_comparisons_ends_with_the_first_that_fails(plain, debug: bool) -> None:
    x, found = torch.rand(5) - 0.3, torch.zeros(2, 5)
    plain(x, found[0])
    weft.kernel(debug=debug)(plain)(x, found[1])
    assert found[0].tolist() == found[1].tolist()


def read_before_what_is_called_stores(x, out):
    for i in range(out.shape[0]):
        a, b = [1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0]]

        def put(k, v):
            a[k] = v
            b[1][k] = v
            return v * 2

        a[0] += put(0, 5.0)
        a[1] /= put(1, x[i] + 7)
        a[2] -= put(1, 4.0)
        b[1][0] *= put(0, x[i] * 3)
        b[0][1] += added(a, 2, 0.5)
        out[i] = a[0] + 10 * a[1] + 100 * a[2] + b[1][0] + b[1][1] + b[0][1]


def subscripted_once(x, out):
    for i in range(out.shape[0]):
        v, m, k = weft.Vector([1.0, 2.0, 3.0]), weft.Matrix([[1.0, 2.0], [3.0, 4.0]]), -1
        v[(k := k + 1)] += x[i]
        m[(k := k + 1), (k := k - 1)] *= 5.0
        p = Pair(1.0, 2.0)
        p[(k := k + 1)] -= 7.0
        out[i] = v[0] + 10 * v[1] + 100 * v[2] + m[1, 0] + m[0, 1] + 1000 * k + p.a - p.b


class Pair:
    def __init__(self, a, b):
        self.a = a
        self.b = b

    def __getitem__(self, k):
        return self.a if k == 0 else self.b

    def __setitem__(self, k, v):
        if k == 0:
            self.a = v
        else:
            self.b = v


def defaults_of_each_turn(x, out):
    for i in range(out.shape[0]):
        fs = [lambda v, k=k: v * k for k in range(3)]
        gs = [lambda v, k=2 * k, *, j=k: v * k + j for k in range(3)]
        hs = [[lambda v, j=j, k=k: v * (10 * j + k) for j in range(2)] for k in range(2)]
        late = [lambda v: v * k for k in range(3)]
        out[i] = fs[1](x[i]) + gs[2](2.0, j=5) + gs[1](x[i]) + hs[0][1](3.0) + late[0](x[i])


def each_key_once(x, out):
    for i in range(out.shape[0]):
        a, seen = [2.0, 1.0, 3.0], []

        def key(v):
            seen.append(v)
            return -v

        b = sorted(a, key=key)
        out[i] = b[0] + 10 * max(a, key=key) + 100 * min(v for v in a)
        for k, v in enumerate(seen):
            out[i] += v * k


def named_where_parts_may_not_run(x, out):
    for i in range(out.shape[0]):
        k = j = n = 0
        a = 1.0 if x[i] > 0.5 else any((k := k + 1) > 3 for w in (1.5, 1.0))
        b = x[i] > 0.2 and all((j := j + 1) < 3 for w in (1.5, 1.0, 2.0, 4.0))
        c = sum((n := n + m) * 0.5 for m in range(i)) if x[i] < 0.8 else 2.0
        out[i] = k + 10 * j + 100 * n + 1000 * (a + 2 * b + c)


def named_in_generators(x, out):
    for i in range(out.shape[0]):
        k = 0
        low = min((k := k + 2) * w for w in x[:])
        first = max((w, k := k - 1) for w in x[:])[1]
        out[i] = k + 10 * first + 100 * low


def placed_before_its_value(x, out):
    for i in range(out.shape[0]):
        v, k = weft.Vector([1.0, 2.0]), 0
        v[k] -= (k := 1) * x[i]
        out[i] = v[0] + 10 * v[1] + 100 * k


@pytest.mark.parametrize("plain", [
    read_before_what_is_called_stores, subscripted_once, defaults_of_each_turn, each_key_once,
    named_where_parts_may_not_run, named_in_generators, placed_before_its_value,
])  # fmt: skip
def test_calls_inside_of_expressions_come_in_the_order_of_python(plain) -> None:
    x, found = torch.rand(5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    plain(x.numpy(), found[0].numpy())  # whose elements are no views
    weft.kernel(plain)(x, found[1])
    torch.testing.assert_close(found[1], found[0])


def test_a_list_that_calls_store_into_and_let_grow() -> None:
    def kernel(x, out):
        for i in range(out.shape[0]):
            heap, other = [3.0, 1.0, 2.0], [4.0, 1.0]
            heapq.heapify(heap)
            out[i] = heapq.heappop(heap) + 10 * heapq.heappop(heap) + 100 * len(heap)
            out[i] += heapq.heappop(other) + len(other) * x[i]

    x, found = torch.rand(5), torch.zeros(2, 5)
    kernel(x, found[0])
    weft.kernel(kernel)(x, found[1])
    torch.testing.assert_close(found[1], found[0])


def parts_of_what_is_not_assigned(x, out):
    for i in range(out.shape[0]):
        a = [x[i], 2 * x[i], 3 * x[i], 4 * x[i]]
        out[i] = sum(a[i - 2 :]) + 2 * len(a[: i - 4]) + (1.0, 2.0, 4.0, 8.0)[i:][0 - len(a[i:])]
        for v in a[:: -1 - i % 2]:
            out[i] = 0.5 * out[i] + v


def test_a_list_that_is_only_read_has_parts_of_run_time_bounds() -> None:
    x, found = torch.rand(4), torch.zeros(2, 4)
    parts_of_what_is_not_assigned(x, found[0])
    weft.kernel(parts_of_what_is_not_assigned)(x, found[1])
    torch.testing.assert_close(found[1], found[0])


NEVER = False


def left_on_each_way_that_there_is(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        if x[i] > 0:
            if x[i] > 0.5:
                continue
            elif NEVER:  # noqa: RET507
                v = 3
            else:
                continue
            s += v
        for k in range(3):
            if x[i] < -0.1:
                if x[i] < -0.5:
                    break
                elif NEVER:  # noqa: RET508
                    w = 3
                else:
                    break
                s += w
            s += k
        out[i] = s + by_the_way(x[i])


def by_the_way(x):
    if x < 0:
        if x < -0.2:
            return 1.0
        elif NEVER:  # noqa: RET505
            u = 2.0
        else:
            return 3.0
        return u
    return 4.0


def test_what_no_way_reaches_is_not_read() -> None:
    x, found = torch.randn(31) * 0.5, torch.zeros(2, 31)
    left_on_each_way_that_there_is(x, found[0])
    weft.kernel(left_on_each_way_that_there_is)(x, found[1])
    assert found[0].tolist() == found[1].tolist()
