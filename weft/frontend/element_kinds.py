"""What the names of a loop over elements may be: numbers of Python within bounds, or elements.

An element has a dtype, and is what torch makes of it; ``loose``: in Python it may still be a
number there, as a sum that begins with ``0.0`` is before the first turn. Bounds of integers are
those of all turns together. ``Stays`` is raised where compiled code might mean something else than
Python does.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence

import torch

from weft.values import frozen

# Integers that turns add small ones to are thought to stay in these bounds: 2**31 turns would be
# needed to leave 64 bits from there.
_WIDE = 1 << 62
_SMALL = 1 << 31
_EXACT = 1 << 53  # integers up to here are floats, exactly
_FLOATS = (torch.float32, torch.float64)
ELEMENTS = (*_FLOATS, torch.int64, torch.bool)


class Stays(Exception):
    """The loop stays one of Python."""


@frozen
class Int:
    low: int
    high: int


@frozen
class Float:
    """``mixed``: in Python it may still be an integer."""

    nonzero: bool = False
    mixed: bool = False


@frozen
class Bool:
    pass


@frozen
class Element:
    dtype: torch.dtype
    loose: bool = False


@frozen
class Unset:
    """What a ``return`` gives, where none was met."""


Kind = Int | Float | Bool | Element | Unset


def bounded(low: int, high: int) -> Int:
    """An integer between these; raises ``Stays`` where it might not be one of 64 bits."""
    most = _WIDE + 2 * _SMALL
    if -most <= low and high <= most:  # where it was widened, a small number more is no matter
        return Int(max(low, -_WIDE), min(high, _WIDE))
    if low < -(1 << 63) or high >= 1 << 63:
        raise Stays
    return Int(low, high)


def join(a: Kind, b: Kind) -> Kind:
    """The one type of a name that has been either."""
    if a == b or isinstance(b, Unset):
        return a
    match a, b:
        case Unset(), _:
            return b
        case Int(), Int():
            return Int(min(a.low, b.low), max(a.high, b.high))
        case (Int() | Float(), Int() | Float()):
            exact(a, b)
            return Float(mixed=any(isinstance(k, Int) or k.mixed for k in (a, b)))
        case Element(), Element() if a.dtype == b.dtype:
            return Element(a.dtype, a.loose or b.loose)
        case (Element(dtype), Int() | Float() as number) | (
            Int() | Float() as number,
            Element(dtype),
        ):
            small = isinstance(number, Int) and -_SMALL <= number.low <= number.high <= _SMALL
            if dtype in _FLOATS and (small or isinstance(number, Float)):
                return Element(dtype, True)
            if dtype == torch.int64 and small:
                return Element(dtype, True)
        case (Element(torch.bool), Bool()) | (Bool(), Element(torch.bool)):
            return Element(torch.bool, True)
        case _:
            pass
    raise Stays


def exact(*kinds: Kind) -> None:
    """Raises ``Stays`` where an integer may be none of the floats."""
    if any(isinstance(k, Int) and max(-k.low, k.high) > _EXACT for k in kinds):
        raise Stays


def widened(before: Kind, after: Kind) -> Kind:
    """``after``, with bounds that hold for all turns that follow if it has grown."""
    if isinstance(before, Int) and isinstance(after, Int) and before != after:
        low = after.low if after.low >= before.low else (0 if after.low >= 0 else -_WIDE)
        return Int(low, after.high if after.high <= before.high else _WIDE)
    return after


def binary(op: ast.operator, a: Kind, b: Kind) -> Kind:
    """The kind of an operation's result."""
    if isinstance(a, Bool | Unset) or isinstance(b, Bool | Unset):
        raise Stays
    if isinstance(a, Element) or isinstance(b, Element):
        return _of_elements(op, a, b)
    if isinstance(a, Int) and isinstance(b, Int):
        return _of_integers(op, a, b)
    exact(a, b)
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        _nonzero(b)
    elif not isinstance(op, ast.Add | ast.Sub | ast.Mult):
        raise Stays
    certain = any(isinstance(k, Float) and not k.mixed for k in (a, b))
    return Float(mixed=not (certain or isinstance(op, ast.Div)))


def _nonzero(b: Kind) -> None:
    """Python raises ``ZeroDivisionError`` where numbers are divided by 0."""
    if isinstance(b, Int) and (b.low > 0 or b.high < 0):
        return
    if not (isinstance(b, Float) and b.nonzero):
        raise Stays


_CORNERS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def _of_integers(op: ast.operator, a: Int, b: Int) -> Kind:
    if isinstance(op, ast.Div):
        _nonzero(b)
        exact(a, b)
        return Float()
    if isinstance(op, ast.FloorDiv | ast.Mod):
        _nonzero(b)
    if isinstance(op, ast.Mod):
        if b.low < 0:
            raise Stays
        inside = a.low >= 0 and a.high < b.low
        return a if inside else Int(0, b.high - 1)
    if type(op) in _CORNERS:
        ends = [_CORNERS[type(op)](x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        if isinstance(op, ast.Mult) or max(-a.low, a.high, 0) <= _SMALL:
            return bounded(min(ends), max(ends))
        if max(-b.low, b.high) <= _SMALL or isinstance(op, ast.FloorDiv):
            return bounded(min(ends), max(ends))
        raise Stays  # two that may both be large: a sum doubles with every turn
    if isinstance(op, ast.Pow) and a.low >= 0 and b.low == b.high and 0 <= b.low <= 4:
        return bounded(a.low**b.low, a.high**b.low)
    if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor) and min(a.low, b.low) >= 0:
        if isinstance(op, ast.BitAnd):
            return Int(0, min(a.high, b.high))
        return bounded(0, (1 << max(a.high, b.high).bit_length()) - 1)
    raise Stays


def _of_elements(op: ast.operator, a: Kind, b: Kind) -> Kind:
    dtypes = {k.dtype for k in (a, b) if isinstance(k, Element)}
    certain = any(isinstance(k, Element) and not k.loose for k in (a, b))
    if torch.bool in dtypes:
        logical = isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor) and dtypes == {torch.bool}
        if not (logical and isinstance(a, Element) and isinstance(b, Element) and certain):
            raise Stays
        return Element(torch.bool)
    if dtypes == {torch.int64}:
        whole = not isinstance(a, Float) and not isinstance(b, Float)
        plain = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.BitAnd | ast.BitOr | ast.BitXor)
        divided = isinstance(op, ast.FloorDiv | ast.Mod) and isinstance(b, Int)
        if divided:
            _nonzero(b)
        if not (whole and certain and (plain or divided)):
            raise Stays
        return Element(torch.int64)
    if isinstance(op, ast.Pow):
        if not (certain and isinstance(a, Element) and not a.loose and a.dtype in _FLOATS):
            raise Stays
    elif not isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod):
        raise Stays
    elif not certain and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        _nonzero(b)  # both may be numbers
    exact(a, b)
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    return Element(dtype, not certain)


def updated(op: ast.operator, into: torch.dtype, value: Kind) -> None:
    """Whether an element of a tensor may be updated in place: torch refuses what does not fit."""
    found = binary(op, Element(into), value)
    if not isinstance(found, Element):
        raise Stays
    if found.dtype != into and not (found.dtype in _FLOATS and into in _FLOATS):
        raise Stays


def stored(into: torch.dtype, value: Kind) -> None:
    """Whether a value may be stored into a tensor: only where that loses nothing but digits."""
    match value:
        case Element(dtype):
            fits = dtype == into or (into in _FLOATS and dtype != torch.bool)
        case Int():
            fits = into in (*_FLOATS, torch.int64)
        case Float():
            fits = into in _FLOATS
        case Bool():
            fits = into == torch.bool
        case _:
            fits = False
    if not fits:
        raise Stays


def negated(a: Kind) -> Kind:
    match a:
        case Int():
            return bounded(-a.high, -a.low)
        case Float() | Element():
            if isinstance(a, Element) and a.dtype == torch.bool:
                raise Stays
            return a
        case _:
            raise Stays


def magnitude(a: Kind) -> Kind:
    if isinstance(a, Int):
        low = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
        return bounded(low, max(abs(a.low), abs(a.high)))
    return negated(a)


def extreme(name: str, kinds: Sequence[Kind]) -> Kind:
    """``min`` or ``max`` of these."""
    if all(isinstance(k, Int) for k in kinds):
        which = max if name == "max" else min
        ints = [k for k in kinds if isinstance(k, Int)]
        return Int(which(k.low for k in ints), which(k.high for k in ints))
    found = kinds[0]
    for kind in kinds[1:]:
        found = join(found, kind)
    if isinstance(found, Bool) or found == Element(torch.bool):
        raise Stays
    return found


def of_function(name: str, args: Sequence[Kind]) -> Kind:
    """What a function of torch gives for elements of floats."""
    if name == "where":
        condition, a, b = args
        if condition != Element(torch.bool):
            raise Stays
        if not any(isinstance(k, Element) and not k.loose for k in (a, b)):
            raise Stays
        found = join(a, b)
        return Element(found.dtype) if isinstance(found, Element) else found
    first = args[0]
    if any(k != first for k in args) or not isinstance(first, Element):
        raise Stays
    if first.loose or first.dtype not in _FLOATS:
        raise Stays
    return first
