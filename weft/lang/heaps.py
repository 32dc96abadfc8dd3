"""Python's ``heapq`` and ``bisect``, in the language itself: the algorithms of CPython's
``Lib/heapq.py`` and ``Lib/bisect.py``, so that lists hold the same in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _down(heap: list[Any], start: int, place: int) -> None:
    """Moves the item at ``place`` towards ``start``, until what is above it is not larger."""
    item = heap[place]
    while place > start:
        above = (place - 1) // 2
        if not item < heap[above]:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = item


def _up(heap: list[Any], start: int) -> None:
    """Moves the smaller child up until a leaf is reached, where the item of ``start`` begins."""
    count, item, place = len(heap), heap[start], start
    child = 2 * place + 1
    while child < count:
        if child + 1 < count and not heap[child] < heap[child + 1]:
            child = child + 1
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = item
    _down(heap, start, place)


def heappush(heap: list[Any], item: Any) -> None:
    heap.append(item)
    _down(heap, 0, len(heap) - 1)


def heappop(heap: list[Any]) -> Any:
    item = heap.pop()
    if len(heap) > 0:
        last = item
        item = heap[0]
        heap[0] = last
        _up(heap, 0)
    return item


def heapreplace(heap: list[Any], item: Any) -> Any:
    assert len(heap) > 0, "heapreplace of an empty list"
    first = heap[0]
    heap[0] = item
    _up(heap, 0)
    return first


def heappushpop(heap: list[Any], item: Any) -> Any:
    found = item
    if len(heap) > 0 and heap[0] < item:
        found = heap[0]
        heap[0] = item
        _up(heap, 0)
    return found


def heapify(x: list[Any]) -> None:
    for k in range(len(x) // 2 - 1, -1, -1):
        _up(x, k)


def bisect_left(a: Sequence[Any], x: Any, lo: Any = 0, hi: Any = None) -> Any:
    assert lo >= 0, "lo must be non-negative"
    end = len(a) if hi is None else hi
    while lo < end:
        middle = (lo + end) // 2
        if a[middle] < x:
            lo = middle + 1
        else:
            end = middle
    return lo


def bisect_right(a: Sequence[Any], x: Any, lo: Any = 0, hi: Any = None) -> Any:
    assert lo >= 0, "lo must be non-negative"
    end = len(a) if hi is None else hi
    while lo < end:
        middle = (lo + end) // 2
        if x < a[middle]:
            end = middle
        else:
            lo = middle + 1
    return lo


def insort_left(a: list[Any], x: Any) -> None:
    a.insert(bisect_left(a, x), x)


def insort_right(a: list[Any], x: Any) -> None:
    a.insert(bisect_right(a, x), x)
