# ruff: noqa: C416 - as people write them
"""``heapq``, ``bisect``, deques and letters of strings in a device loop, as in Python."""

from __future__ import annotations

import bisect
import collections
import heapq
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import pytest
import torch

import weft

POINTERS = torch.tensor([0, 2, 4, 7, 8, 10, 11, 12, 12])
TARGETS = torch.tensor([1, 2, 2, 3, 3, 4, 5, 6, 5, 7, 6, 7])


def shortest_paths(x, pointers, targets, out):
    for s in range(out.shape[0]):
        dist = [1e9] * 8
        dist[s] = 0.0
        heap = [(0.0, s)]
        while heap:
            d, u = heappop(heap)
            if d > dist[u]:
                continue
            for e in range(int(pointers[u]), int(pointers[u + 1])):
                v = int(targets[e])
                further = d + float(x[s, e % x.shape[1]]) + 3
                if further < dist[v]:
                    dist[v] = further
                    heappush(heap, (further, v))
        out[s] = sum(d for d in dist if d < 1e9)


def heaps(x, pointers, targets, out):
    for i in range(out.shape[0]):
        h = []
        for v in x[i]:
            heapq.heappush(h, v + 0)
        while len(h) > 4:
            out[i] = out[i] * 0.5 + heapq.heappop(h)
        g = [v for v in x[i]]
        heapq.heapify(g)
        out[i] += sum(k * v for k, v in enumerate(g))
        heapq.heapreplace(g, 0.25)
        out[i] += heapq.heappushpop(g, -5.0) + heapq.heappushpop(g, 0.1)
        out[i] += sum(k * v for k, v in enumerate(g))


def places(x, pointers, targets, out):
    for i in range(out.shape[0]):
        ordered, found = sorted(int(4 * v) for v in x[i]), []
        for v in x[i]:
            bisect.insort(found, int(4 * v))
        for k, v in enumerate(found):
            out[i] += k * v
        out[i] += bisect.bisect_left((1, 3, 5, 7), int(4 * x[i, 0]))
        out[i] += 10 * bisect.bisect(ordered, 1) + 100 * bisect.bisect_right(ordered, 0, 1, 5)


def breadth_first(x, pointers, targets, out):
    for s in range(out.shape[0]):
        queue, seen = deque([(s, 0)]), [False] * 8
        seen[s] = True
        while queue:
            u, d = queue.popleft()
            out[s] += d * x[s, 0]
            for e in range(int(pointers[u]), int(pointers[u + 1])):
                v = int(targets[e])
                if not seen[v]:
                    seen[v] = True
                    queue.append((v, d + 1))


def largest_of_three(x, pointers, targets, out):
    for i in range(out.shape[0]):
        q = collections.deque()
        for j in range(x.shape[1]):
            while q and x[i, q[-1]] <= x[i, j]:
                q.pop()
            q.append(j)
            if q[0] <= j - 3:
                q.popleft()
            out[i] = out[i] * 0.5 + x[i, q[0]]
        q.appendleft(7)
        out[i] += q[0] + len(q)


def letters(x, pointers, targets, out):
    for i in range(out.shape[0]):
        for letter in "abca":
            if letter == "a":
                out[i] += x[i, 0]
            elif letter in "bc":
                out[i] -= x[i, 1] * ord(letter)


PROGRAMS = [shortest_paths, heaps, places, breadth_first, largest_of_three, letters]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None], dtype: torch.dtype) -> None:
    x = torch.randn(4, 9, dtype=dtype)
    expected, out = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype)
    plain(x, POINTERS, TARGETS, expected)
    weft.kernel(plain)(x, POINTERS, TARGETS, out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_a_negative_bound_is_an_error_as_in_python() -> None:
    @weft.kernel
    def found(x, n: int):
        for i in range(1):
            x[i] = bisect.bisect_left((1, 2, 3), 2, n)

    found(x := torch.zeros(1), 1)
    assert x == 1
    with pytest.raises(weft.KernelAssertionError, match="lo must be non-negative"):
        found(x, -1)
