"""Integer intervals: what the index arithmetic of a kernel can reach in one call.

``index_width.Program`` writes a kernel's index arithmetic as steps, when it is compiled;
``evaluate`` runs them on the sizes and numbers of a call, where nothing of the compiler need be
imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.trips import NUMBERS
from weft.ir.trips import trip_count as counted

Interval = tuple[int, int]
Step = tuple[int | str, ...]

ANY: Interval = (-(1 << 63), (1 << 63) - 1)
_LOW, _HIGH = -(1 << 31), (1 << 31) - 1


def evaluate(steps: Sequence[Step], slots: Callable[[int], Interval]) -> list[Interval]:
    """The interval of each step; ``slots(k)`` is that of word k of the argument block."""
    found: list[Interval] = []
    for operation, *operands in steps:
        if operation == "const":
            value = int(operands[0])
            found.append((value, value))
            continue
        if operation == "slot":
            found.append(slots(int(operands[0])))
            continue
        if operation in ("bits", "ubits"):
            bits = int(operands[0])
            found.append((0, (1 << bits) - 1) if operation == "ubits" else
                          (-(1 << bits - 1), (1 << bits - 1) - 1))  # fmt: skip
            continue
        if operation == "wrap":
            (low, high), end = found[int(operands[0])], 1 << int(operands[1]) - 1
            found.append((low, high) if -end <= low and high < end else (-end, end - 1))
            continue
        known = [found[int(k)] for k in operands]
        if operation == "any" or (ANY in known and operation not in _TOLERANT):
            found.append(ANY)
            continue
        low, high = MEANING[str(operation)](*known)
        found.append((low, high) if ANY[0] <= low and high <= ANY[1] else ANY)
    return found


_TOLERANT = ("min", "max", "and", "rem")  # they bound what is not known


def _hull(values: Sequence[int]) -> Interval:
    return min(values), max(values)


def _corners(f: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    return lambda a, b: _hull([f(x, y) for x in a for y in b])


def _div(a: Interval, b: Interval) -> Interval:
    ends = [y for y in (b[0], b[1], -1, 1) if b[0] <= y <= b[1] and y]
    values = [x // y for x in a for y in ends]
    return _hull([*values, 0] if b[0] <= 0 <= b[1] else values)


def _and(a: Interval, b: Interval) -> Interval:
    if a[0] < 0 and b[0] < 0:
        return ANY
    return 0, min(x[1] for x in (a, b) if x[0] >= 0)


def _rem(a: Interval, b: Interval) -> Interval:
    most = max(abs(b[0]), abs(b[1]))
    return (-most if a[0] < 0 else 0), most


def _shift(a: Interval, b: Interval, left: bool) -> Interval:
    if not 0 <= b[0] <= b[1] < 32:
        return ANY
    return _hull([x << y if left else x >> y for x in a for y in b])


MEANING: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda x, y: x * y),
    "div": _div,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "shr": lambda a, b: _shift(a, b, left=False),
    "shl": lambda a, b: _shift(a, b, left=True),
    "and": _and,
    "rem": _rem,
    "abs": lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
    "join": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "iv": lambda a, b: (a[0], max(a[0], b[1] - 1)),
}


def fits(interval: Interval) -> bool:
    return interval[0] >= _LOW and interval[1] <= _HIGH


def trip_count(lower: Interval, upper: Interval, step: Interval) -> int | None:
    """Iterations of a loop whose bounds are known; None where one of them is not."""
    if any(a != b for a, b in (lower, upper, step)):
        return None
    return counted(NUMBERS, lower[0], upper[0], step[0])
