"""Lists of an iteration that hold tuples, and how tuples are ordered: what they are in the
undecorated Python."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import weft


class Node(NamedTuple):
    at: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Part:
    low: int
    high: int
    weight: float = 1.0


@dataclasses.dataclass
class Open:
    a: int


def depth_first(x, out):
    n = x.shape[0]
    for i in range(n):
        stack = [(i, 0)]
        total = 0.0
        while stack:
            node, depth = stack.pop()
            total += x[node] / (depth + 1)
            if 2 * node + 1 < n:
                stack.append((2 * node + 1, depth + 1))
            if 2 * node + 2 < n:
                stack.append((2 * node + 2, depth + 1))
        out[i] = total


def three_best(x, out):
    for i in range(x.shape[0]):
        best = []
        for j in range(x.shape[0]):
            best.append((x[(i + j) % x.shape[0]] * (j % 3), j))
            if len(best) > 3:
                best.sort(key=lambda p: p[0], reverse=True)
                best.pop()
        s = 0.0
        for v, j in best:
            s += v * j
        out[i] = s + best[0][0] + best[-1][1]


def named_tuples(x, out):
    for i in range(x.shape[0]):
        todo = [Node(i, 0)]
        seen = 0
        while len(todo) > 0:
            n = todo.pop(0)
            seen += n.at * (n.depth + 1)
            if n.depth < 3:
                todo.append(Node(at=n.at + 1, depth=n.depth + 1))
                todo.append(Node((n.at * 2) % 7, n.depth + 1))
        out[i] = seen


def frozen_objects(x, out):
    for i in range(x.shape[0]):
        parts = []
        parts.append(Part(0, 8))
        t = 0.0
        while parts:
            s = parts.pop()
            if s.high - s.low > 1:
                m = (s.low + s.high) // 2
                parts.append(Part(s.low, m, s.weight * 0.5))
                parts.append(Part(m, s.high, s.weight * x[i]))
            else:
                t += s.weight * s.low
        out[i] = t


def methods(x, out):
    for i in range(x.shape[0]):
        a = [(j, x[i] * j) for j in range(4)]
        a.append((9, x[i]))
        a.insert(1, (7, 0.5))
        a.reverse()
        b = a[1:4]
        a += [(3, 2.0), (5, 1.5)]
        a.extend(b)
        del a[0]
        a[2] = (11, a[2][1] + 1)
        c = a + b
        r = 0.0
        for k, (p, q) in enumerate(sorted(c, key=lambda t: (t[0], t[1]))):
            r += p * q * (k + 1)
        if (11, a[2][1]) in a:
            r += 100
        r += a.count((3, 2.0)) * 1000 + a.index((5, 1.5)) * 10000
        r += sum(q for p, q in a) + max(p for p, q in c)
        if a == c or any(p > 10 for p, _ in a):
            r += 7
        for (p, q), k in zip(reversed(c), range(100), strict=False):
            r = r * 0.5 + p * q * k
        a.clear()
        if not a:
            r += 1
        out[i] = r + len(a) + len(c)


def nested_tuples(x, out):
    for i in range(x.shape[0]):
        q = [((i, i + 1), x[i])]
        q.append(((2, 3), 1))
        head = 0
        t = 0.0
        while head < len(q) and head < 10:
            (a, b), v = q[head]
            head += 1
            t += v * (a - b) + (a if b > 2 else 0)
            if v > 0.1:
                q.append(((b, a), v * 0.5))
        out[i] = t


def push(stack, a, b):
    if a > 0:
        stack.append((a, b))


def by_a_function(x, out):
    for i in range(x.shape[0]):
        stack = []
        for j in range(5):
            push(stack, x[i] - 0.1 * j, j)
        n = 0.0
        for a, b in stack:
            n = n * 0.5 + a * b
        out[i] = n + len(stack)


def widened(x, out):
    for i in range(x.shape[0]):
        st = [(0, 0)]
        for _ in range(3):
            a, b = st[-1]
            st.append((a + 1, b + x[i]))
        out[i] = st[-1][1] + st[1][0]


def heap(x, out):
    for i in range(x.shape[0]):
        h = []
        for j in range(6):
            h.append(((x[i] * (j * 7 % 5)) % 0.3, j))
            k = len(h) - 1
            while k > 0 and h[k] < h[(k - 1) // 2]:
                h[k], h[(k - 1) // 2] = h[(k - 1) // 2], h[k]
                k = (k - 1) // 2
        t = 0.0
        w = 1
        while h:
            d, j = h[0]
            t += d * w + j * w * w
            w += 1
            last = h.pop()
            if h:
                h[0] = last
                k = 0
                while 2 * k + 1 < len(h):
                    c = 2 * k + 1
                    if c + 1 < len(h) and h[c + 1] < h[c]:
                        c += 1
                    if h[k] <= h[c]:
                        break
                    h[k], h[c] = h[c], h[k]
                    k = c
        out[i] = t


def in_order(x, out):
    for i in range(x.shape[0]):
        a, b = (x[i], i), (0.5, 2)
        r = 0
        if a < b:
            r += 1
        if a <= b:
            r += 2
        if a > b:
            r += 4
        if a >= b:
            r += 8
        if (i % 2, i % 3) < (1, 1):
            r += 16
        if (i % 2, i % 3) >= (1, 1, 0):
            r += 32
        if (i % 2, i % 3) <= (1, 1, 0):
            r += 64
        if (i % 2, (i % 3, 1)) > (1, (1, 0)):
            r += 128
        if Node(i, 2) < Node(2, i):
            r += 256
        out[i] = r


def extremes(x, out):
    for i in range(x.shape[0]):
        a = [(x[j % x.shape[0]], j) for j in range(min(i + 1, 5))]
        a.append((x[i] * 2, i))
        v, at = max(a)
        w, bt = min(a, key=lambda p: p[0] * (p[1] - 2))
        n = [v * 2 for v, _ in a]
        r = max(n, key=lambda v: -abs(v - 0.5)) + min(n, default=3)
        n.clear()
        r += max(n, default=9.0)
        p = max((x[i], 1), (0.5, 2))
        q = min([(3, x[i]), (2, 1.0), (2, 0.5)])
        r += p[1] * 10 + q[1] * 100 + max((i, 3, 5), key=lambda v: (v * 3) % 5) * 1000
        r += max(x[i], 0.5, key=lambda v: -v) + min(x, key=lambda v: abs(v - 0.4))
        out[i] = v + at * 10 + w * 100 + bt * 1000 + r


def insert(best, v, at):
    if v < best[2][0]:
        best[2] = (v, at)
        if best[2][0] < best[1][0]:
            best[1], best[2] = best[2], best[1]
        if best[1][0] < best[0][0]:
            best[0], best[1] = best[1], best[0]


def nearest(x, out):
    """Items are assigned where the list does not grow."""
    n = x.shape[0]
    for i in range(n):
        best = [(1e30, -1)] * 3
        for j in range(n):
            insert(best, abs(x[i] - x[j]) + 1e-3 * j, j)
        last = best[-1]
        best[-1] = best[0]
        r = float(last[1] + len(best))
        for v, at in best[:2]:
            r += min(v, 2.0) * (at + 1)
        out[i] = r


def assigned_at_run_time(x, out):
    for i in range(x.shape[0]):
        nodes = [Node(5, k) for k in range(3)]
        parts = [Part(k, 2) for k in range(2)]
        for j in range(4):
            k = 2
            while k > 0 and nodes[k - 1].at > (i * j) % 5:
                nodes[k] = nodes[k - 1]
                k -= 1
            nodes[k] = Node((i * j) % 5, j)
            parts[j % 2] = Part(parts[j % 2].low + j, 3, x[i])
        fixed = [Part(1, i), Part(2, 3, 0.5)]
        s = fixed[i % 2].weight * fixed[(i + 1) % 2].high
        for node in nodes:
            s += node.at * 10.0**node.depth
        out[i] = s + parts[0].low * parts[1].weight


def read_before(x, out):
    for i in range(x.shape[0]):
        stack, seen, last = [], [], []
        out[i] = 0.0
        for j in range(x.shape[0]):
            if stack:
                top = stack[-1]
                out[i] += top[0] * 0.5
            for pair in seen:
                out[i] += pair[1]
            if len(last) > 1:
                gone = last.pop()
                out[i] -= gone[0]
            stack.append((x[j], j))
            seen.append((j, x[(i + j) % x.shape[0]]))
            last.append((x[j] * 2, i))


def turn(o, a, b):
    return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])


def is_old(t, j):
    return t[1] < j - 2


def handed_before(x, out):
    for i in range(x.shape[0]):
        hull, heap = [], []
        out[i] = 0.0
        for j in range(x.shape[0]):
            q = (j, x[j])
            while len(hull) >= 2 and turn(hull[-2], hull[-1], q) <= 0:
                hull.pop()
            hull.append(q)
            while heap and is_old(heap[0], j):
                heapq.heappop(heap)
            heapq.heappush(heap, (x[j], j))
            out[i] += heap[0][0]
        out[i] += len(hull)


def joined(p, v):
    return Part(p.low, v, p.weight * 0.5)


class Run(NamedTuple):
    of: float
    begin: int
    end: int


def asked_before(x, out):
    for i in range(x.shape[0]):
        parts, runs = [], []
        for j in range(x.shape[0]):
            if parts and parts[-1].weight > 0.3:
                parts[-1] = joined(parts[-1], j)
            else:
                parts.append(Part(j, i))
            if not runs or (runs[-1].of > 0) != (x[j] > 0):
                runs.append(Run(x[j], j, j + 1))
            else:
                runs[-1] = runs[-1]._replace(end=j + 1)
        longest = max(runs, key=lambda r: r.end - r.begin)
        out[i] = longest.begin + 10 * longest.end
        for p in parts:
            out[i] += p.weight * p.high


KERNELS = [depth_first, three_best, read_before, handed_before, asked_before, named_tuples,
            frozen_objects, methods, nested_tuples,
           by_a_function, widened, heap, in_order, extremes, nearest,
           assigned_at_run_time]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lists_of_tuples_are_pythons(kernel: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled, checked = weft.kernel(kernel), weft.kernel(debug=True)(kernel)
    for n in (1, 2, 3, 17):
        x = torch.rand(n, dtype=dtype)
        found, expected = x.new_full((2, n), float("nan"))
        kernel(x, expected)
        compiled(x, found)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        checked(x, found.fill_(float("nan")))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@weft.kernel
def spread(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        stack = [(x[i], 1)]
        t = x[i] * 0
        while stack:
            v, d = stack.pop()
            t += v * v / d
            if d < 4:
                stack.append((v * x[i] + 0.1 * d, d + 1))
                if d % 2 == 1:
                    stack.append((v - x[i] ** 2, d * 2))
        out[i] = t
    return out


def test_numbers_that_a_stack_of_tuples_holds_have_derivatives() -> None:
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spread, (x,))
    assert torch.autograd.gradgradcheck(spread, (x,))
    whole = torch.compile(spread, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(x), spread.function(x))


def two_forms(x):
    for i in range(x.shape[0]):
        a = []
        a.append((i, 1))
        a.append(3)


def two_forms_later(x):
    for i in range(x.shape[0]):
        a = []
        a.append(3)
        a.append((i, 1))


def two_lengths(x):
    for i in range(x.shape[0]):
        a = [(i, 2)]
        a.append((1, 2, 3))


def open_objects(x):
    for i in range(x.shape[0]):
        a = []
        a.append(Open(i))


def texts(x):
    for i in range(x.shape[0]):
        a = []
        a.append((i, "x"))


def in_a_tuple(x):
    for i in range(x.shape[0]):
        a = ((i, 2), (3, 4))
        a[0] = (4, 5)


def by_another_name(x):
    for i in range(x.shape[0]):
        a = [(i, 2), (3, 4)]
        b = a
        b[0] = (4, 5)


def part_of_an_item(x):
    for i in range(x.shape[0]):
        a = [(i, 2)]
        a.append((4, 5))
        a[0][1] = 7


@pytest.mark.parametrize(
    ("kernel", "message", "help"),
    [
        (two_forms, "the number 3 in a list that holds a tuple of 2", "a list holds items of one "
         "form"),
        (two_forms_later, "a tuple of 2 in a list that holds numbers", "a list holds items of one "
         "form"),
        (two_lengths, "a tuple of 3 in a list that holds a tuple of 2", "a list holds items of one "
         "form"),
        (open_objects, "a list that grows holds what cannot be changed, and `Open` can",
         "write @dataclass(frozen=True), or append a tuple"),
        (texts, "a list that grows holds numbers or tuples of numbers, and this is a string",
         "keep a list for each member, and append to all of them"),
        *((f, "an element of a tuple of 2 cannot be assigned here", "make a new one, or use a "
           "weft.Vector, a local array, or a name for each item")
          for f in (part_of_an_item, in_a_tuple, by_another_name)),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_what_such_a_list_does_not_hold(
    kernel: Callable[..., Any], message: str, help: str
) -> None:
    with pytest.raises(weft.KernelTypeError) as caught:
        weft.kernel(kernel)(torch.zeros(2))
    assert (caught.value.message, caught.value.help) == (message, help)


def too_many(x):
    for i in x:
        a = []
        for j in range(100):
            a.append((j, 1))
        x[i] = len(a)


def too_few(x):
    for i in x:
        a = [(1, 2)]
        a.pop()
        x[i] = a.pop()[0]


def nothing(x):
    for i in x:
        a = [(1, 2)]
        a.pop()
        x[i] = max(a)[1]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(too_many, "the list a is full: there is room for 64 elements"),
     (too_few, "`pop` of the list a, which is empty"),
     (nothing, "`max` of no items")],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_what_is_checked_when_it_runs(kernel: Callable[..., Any], message: str) -> None:
    with pytest.raises(weft.KernelAssertionError, match=message):
        weft.kernel(kernel)(torch.zeros(1))


def test_a_list_does_not_grow_in_a_loop_over_it() -> None:
    @weft.kernel
    def kernel(x):
        for i in range(x.shape[0]):
            a = [(i, 2)]
            for p in a:
                a.append(p)

    with pytest.raises(weft.KernelSyntaxError, match="a loop over the list a lets it grow"):
        kernel(torch.zeros(2))


@dataclasses.dataclass(frozen=True)
class Amount:
    of: float

    def __add__(self, other):
        return Amount(self.of + other.of)


def amounts(x, out):
    for i in range(x.shape[0]):
        held = [Amount(x[i] * 1.0), Amount(0.0)]
        held[0] += Amount(2.0)
        for j in range(3):
            held[j % 2] += Amount(x[j] * 1.0)
        out[i] = held[0].of + 10 * held[1].of


def test_items_that_are_objects_are_added_to() -> None:
    x = torch.rand(4, dtype=torch.float64)
    out, expected = torch.full_like(x, torch.nan), torch.empty_like(x)
    weft.kernel(amounts)(x, out)
    amounts(x, expected)
    torch.testing.assert_close(out, expected)
