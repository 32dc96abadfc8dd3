"""Methods and operators of Python's lists, in the language itself: inlined for the lists of a
device loop. ``made`` is a new list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def extend(made: list[Any], items: list[Any]) -> None:
    count = len(items)  # which may be ``made``
    for k in range(count):
        made.append(items[k])


def popleft(items: list[Any]) -> Any:
    return items.pop(0)


def appendleft(items: list[Any], value: Any) -> None:
    items.insert(0, value)


def gather(made: list[Any], items: Iterable[Any]) -> None:
    for item in items:
        made.append(item)


def repeat(made: list[Any], items: list[Any], times: int) -> None:
    for _ in range(times):
        for k in range(len(items)):
            made.append(items[k])


def part(
    made: list[Any], items: list[Any], start: int | None, stop: int | None, step: int
) -> None:  # fmt: skip
    """``items[start:stop:step]``."""
    assert step != 0, "a slice of a list by steps of 0"
    count = len(items)
    up = step > 0
    lower, upper = (0, count) if up else (-1, count - 1)
    first = lower if up else upper
    if start is not None:
        first = min(start, upper) if start >= 0 else max(start + count, lower)
    end = upper if up else lower
    if stop is not None:
        end = min(stop, upper) if stop >= 0 else max(stop + count, lower)
    while (first < end) if up else (first > end):
        made.append(items[first])
        first += step


def put(items: list[Any], start: int | None, stop: int | None, new: list[Any]) -> None:
    """``items[start:stop] = new``."""
    count = len(items)
    first = 0
    if start is not None:
        first = min(start, count) if start >= 0 else max(start + count, 0)
    end = count
    if stop is not None:
        end = min(stop, count) if stop >= 0 else max(stop + count, 0)
    tail = items[max(first, end) :]
    while len(items) > first:
        items.pop()
    extend(items, new)
    extend(items, tail)


def contains(items: Iterable[Any], value: Any) -> bool:
    return any(item == value for item in items)


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(a[k] == b[k] for k in range(len(a)))


def place(items: list[Any], value: Any) -> int:
    """``items.index(value)``."""
    found = -1
    for k in range(len(items)):
        if items[k] == value:
            found = k
            break
    assert found >= 0, "`index` or `remove` of what is not in the list"
    return found


def count(items: list[Any], value: Any) -> int:
    found = 0
    for k in range(len(items)):
        if items[k] == value:
            found += 1
    return found


def insert(items: list[Any], at: int, value: Any) -> None:
    length = len(items)
    first = min(at, length) if at >= 0 else max(at + length, 0)
    items.append(value)
    k = length
    while k > first:
        items[k] = items[k - 1]
        k -= 1
    items[first] = value


def remove(items: list[Any], value: Any) -> None:
    items.pop(place(items, value))


def delete(items: list[Any], at: int) -> None:
    """``del items[at]``."""
    length = len(items)
    k = at if at >= 0 else at + length
    assert 0 <= k < length, "`del` of what is not in the list"
    items.pop(k)


def reverse(items: list[Any]) -> None:
    count = len(items)
    for k in range(count // 2):
        items[k], items[count - 1 - k] = items[count - 1 - k], items[k]


def sort(items: list[Any], key: Callable[[Any], Any] | None, falls: bool) -> None:
    """Stable: by insertion. ``key`` is called once for each item, in their order, as in Python."""
    if key is not None:
        keys = [key(item) for item in items]
        for k in range(1, len(items)):
            value, rank = items[k], keys[k]
            at = k
            while at > 0 and _before(rank, keys[at - 1], falls):
                items[at], keys[at] = items[at - 1], keys[at - 1]
                at -= 1
            items[at], keys[at] = value, rank
    else:
        for k in range(1, len(items)):
            value = items[k]
            at = k
            while at > 0 and _before(value, items[at - 1], falls):
                items[at] = items[at - 1]
                at -= 1
            items[at] = value


def extreme(first: Any, items: Iterable[Any], key: Callable[[Any], Any] | None, falls: bool) -> Any:
    """``max(items, key=key)`` where it ``falls``, else ``min``: the first that none is beyond.
    ``key`` is called once for each item."""
    found = first
    if key is not None:
        best = key(first)
        for k, item in enumerate(items):
            if k > 0:
                rank = key(item)
                if _before(rank, best, falls):
                    found, best = item, rank
    else:
        for item in items:
            if _before(item, found, falls):
                found = item
    return found


def extreme_or(
    items: list[Any], key: Callable[[Any], Any] | None, falls: bool, default: Any
) -> Any:  # fmt: skip
    found = default
    if len(items) > 0:
        found = extreme(items[0], items, key, falls)
    return found


def _before(a: Any, b: Any, falls: bool) -> bool:
    return a > b if falls else a < b
