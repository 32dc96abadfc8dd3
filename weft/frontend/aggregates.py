"""Small vectors and matrices: they are taken apart into scalars while a kernel is lowered."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from weft.errors import KernelIndexError, KernelTypeError, Span
from weft.frontend import complexes, from_end, overflow
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    NumberPinned,
    Operand,
    Part,
    Range,
    Scalar,
    Static,
    Tensor,
    Tup,
    Varying,
    Vec,
    describe,
    dtype_of,
    is_complex,
    is_float,
    promote,
)
from weft.frontend.room import dtype_with_room
from weft.ir import types as ir
from weft.ir.core import Block
from weft.ir.views import constant_of
from weft.lang import elimination
from weft.lang.inverses import CLOSED
from weft.lang.vectors import letters

FEW = 8  # constants that comparisons choose among; more are looked up in memory
_WRITTEN_OUT = 1024  # numbers of a range, at most


def rows(x: Vec) -> Iterator[Operand]:
    """What iterating over a vector (its items) or a matrix (its rows) gives."""
    if len(x.shape) == 1:
        yield from x.items
    else:
        width = x.shape[1]
        for k in range(x.shape[0]):
            yield Vec(x.items[k * width : (k + 1) * width], (width,))


def unpack(x: Operand, count: int, span: Span) -> list[Operand]:
    if isinstance(x, Static) and isinstance(x.value, (tuple, list, range)):
        x = static_tuple(x.value)
    if isinstance(x, Range):
        known = numbers(x)
        x = x if known is None else Tup([*known])
    items = x.iterated() if isinstance(x, Tup) else list(rows(x)) if isinstance(x, Vec) else None
    if items is None:
        raise KernelTypeError(f"{describe(x)} cannot be unpacked into {count} names", span,
                              help="unpack a tuple or a vector of that length")  # fmt: skip
    if len(items) != count:
        raise KernelTypeError(
            f"{len(items)} values cannot be unpacked into {count} names",
            span,
            help="write as many names as there are values",
        )
    return items


def numbers(x: Range) -> list[Static] | None:
    """Those of a range that is known at compile time, and not too long to be written out."""
    ends = [end.value for end in (x.lower, x.upper, x.step) if isinstance(end, Static)]
    if len(ends) < 3 or not ends[2]:
        return None
    known = range(*ends)
    return None if known[_WRITTEN_OUT:] else list(map(Static, known))


def static_tuple(values: Sequence[Any]) -> Tup:
    return Tup([static_tuple(v) if isinstance(v, (tuple, list)) else Static(v) for v in values])


def build(x: Operand, span: Span) -> Vec:
    """A vector from a tuple of numbers, a matrix from a tuple of rows."""
    if isinstance(x, Vec):
        return Vec(list(x.items), x.shape)
    if isinstance(x, Static) and isinstance(x.value, (tuple, list)):
        x = Tup([Static(v) for v in x.value])
    if isinstance(x, Tup) and x.items and x.in_order:
        if all(dtype_of(item) for item in x.items):
            return Vec(list(x.items), (len(x.items),))
        parts = [build(item, span) for item in x.items]
        if all(len(p.shape) == 1 and p.shape == parts[0].shape for p in parts):
            return Vec([i for p in parts for i in p.items], (len(parts), parts[0].shape[0]))
    raise KernelTypeError(
        f"a vector cannot be made of {describe(x)}",
        span,
        help="write weft.Vector([a, b, c]) or weft.Matrix([[a, b], [c, d]])",
    )


def is_nested(x: Operand) -> bool:
    """Whether ``x`` is a tuple or a list, which beside a vector or matrix stands for one."""
    return isinstance(x, Tup) or (isinstance(x, Static) and isinstance(x.value, (tuple, list)))


def elementwise(f: Callable[..., Operand], arguments: Sequence[Operand], span: Span) -> Operand:
    """``f`` on each element; scalars stand for all elements, vectors must have one shape."""
    shapes = {a.shape for a in arguments if isinstance(a, Vec)}
    if not shapes:
        return f(*arguments)
    arguments = [build(a, span) if is_nested(a) else a for a in arguments]
    shapes |= {a.shape for a in arguments if isinstance(a, Vec)}
    if len(shapes) > 1:
        a, b = sorted(shapes)[:2]
        raise KernelTypeError(
            f"shapes {'x'.join(map(str, a))} and {'x'.join(map(str, b))} do not fit",
            span,
            help="element by element needs equal shapes; `@` multiplies matrices",
        )
    shape = shapes.pop()
    columns = [a.items if isinstance(a, Vec) else [a] * math.prod(shape) for a in arguments]
    items = [f(*each) for each in zip(*columns, strict=True)]
    return Vec(items, shape)  # type: ignore[arg-type]


def binary(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    a, b = (build(x, span) if is_nested(x) else x for x in (a, b))
    if symbol == "@":
        return matmul(cx, a, b, span)
    return elementwise(lambda x, y: overflow.arithmetic(cx, symbol, x, y, span), [a, b], span)


def compare(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    return elementwise(lambda x, y: cx.scalars.compare(symbol, x, y, span), [a, b], span)


def both(cx: Lowering, a: Operand, b: Operand, span: Span) -> Operand:
    """Whether two conditions hold, as far as that is known."""
    if isinstance(a, Static):
        return b if a.value else a
    if isinstance(b, Static):
        return a if b.value else b
    return binary(cx, "&", a, b, span)


def unary(cx: Lowering, op: ast.unaryop, x: Vec, span: Span) -> Operand:
    if isinstance(op, ast.USub):
        return elementwise(lambda v: overflow.negated(cx, v, span), [x], span)
    if isinstance(op, ast.Invert):
        return elementwise(lambda v: cx.scalars.invert(v, span), [x], span)
    return x


def dot(cx: Lowering, a: Operand, b: Operand, span: Span) -> Operand:
    product = binary(cx, "*", a, b, span)
    assert isinstance(product, Vec)
    return reduce(lambda x, y: cx.scalars.binary("+", x, y, span), list(product.items))


def matmul(cx: Lowering, a: Operand, b: Operand, span: Span) -> Operand:
    if not (isinstance(a, Vec) and isinstance(b, Vec)):
        raise KernelTypeError(
            "`@` needs two vectors or matrices", span, help="use `*` with a scalar"
        )
    if len(a.shape) == 1 and len(b.shape) == 1:
        return dot(cx, a, b, span)
    left = list(rows(a)) if len(a.shape) == 2 else [a]
    if len(b.shape) == 2:
        right = [Vec(b.items[k :: b.shape[1]], (b.shape[0],)) for k in range(b.shape[1])]
    else:
        right = [b]
    items = [dot(cx, row, column, span) for row in left for column in right]
    if len(a.shape) == 2 and len(b.shape) == 2:
        return Vec(items, (a.shape[0], b.shape[1]))  # type: ignore[arg-type]
    return Vec(items, (len(items),))  # type: ignore[arg-type]


def swizzle(x: Operand, name: str) -> list[int] | None:
    """The elements that ``x.name`` names, where ``x`` is a vector, or one of the host part."""
    shape = x.element if isinstance(x, Tensor) and x.backing else ()
    if isinstance(x, Part) and len(x.indices) == x.tensor.lattice:
        shape = x.tensor.element
    shape = x.shape if isinstance(x, Vec) else shape
    return letters(name, shape[0]) if len(shape) == 1 else None


def get_attribute(cx: Lowering, x: Vec, name: str, span: Span) -> Operand | None:
    """``v.x``, ``v.xy``, ``v.n``; None for anything else (a method)."""
    if name == "n":
        return Static(x.shape[0])
    if name == "m" and len(x.shape) == 2:
        return Static(x.shape[1])
    if name == "shape":
        return Tup([Static(n) for n in x.shape])
    places = swizzle(x, name)
    if places is None:
        return None
    items = [x.items[k] for k in places]
    return items[0] if len(items) == 1 else Vec(items, (len(items),))


def _positions(cx: Lowering, x: Vec, node: ast.expr, span: Span) -> list[Operand]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    if not 0 < len(nodes) <= len(x.shape):
        raise KernelIndexError(f"{len(nodes)} subscripts of {describe(x)}", span,
                               help=f"write {len(x.shape)}")  # fmt: skip
    positions = [
        _settled(cx.expression(n), extent) for n, extent in zip(nodes, x.shape, strict=False)
    ]
    for k, (position, extent) in enumerate(zip(positions, x.shape, strict=False)):
        if isinstance(position, Static):
            check_position(position, extent, span)
        positions[k] = from_end.position(cx, position, extent, span)
    return positions


def check_position(position: Static, extent: int, span: Span) -> None:
    """Refuses a subscript that none of ``extent`` elements has."""
    if not (isinstance(position.value, int) and -extent <= position.value < extent):
        raise KernelIndexError(f"subscript {position.value!r} of {extent} elements", span,
                               help=f"the last one is {extent - 1}")  # fmt: skip


def _settled(position: Operand, extent: int) -> Operand:
    """A constant in range as a number: an unrolled loop's index that other loops assign, too."""
    value = constant_of(position.value) if isinstance(position, Scalar) else None
    if isinstance(value, int) and 0 <= value < extent:
        return Static(int(value))
    return position


def item(cx: Lowering, x: Vec, node: ast.Subscript, span: Span) -> Operand:
    """``v[i]``, ``m[i, j]``, ``m[i]`` (a row), ``v[1:]``, ``m[0:2, j]``."""
    nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(n, ast.Slice) for n in nodes):
        return _part(cx, x, nodes, node.value, span)
    positions = _positions(cx, x, node.slice, span)
    items: list[Operand] = list(rows(x))
    chosen = pick(cx, items, positions[0], node.value, span)
    if len(positions) == 2:
        assert isinstance(chosen, Vec)
        return pick(cx, list(chosen.items), positions[1], node.value, span, axis=1)
    return chosen


def _part(cx: Lowering, x: Vec, nodes: list[ast.expr], owner: ast.expr, span: Span) -> Operand:
    """What slices name: a vector of one, a matrix of two. Their bounds are constants."""
    if len(nodes) > len(x.shape):
        raise KernelIndexError(f"{len(nodes)} subscripts of {describe(x)}", span,
                               help=f"write {len(x.shape)}")  # fmt: skip
    kept: list[range] = []
    for n, extent in zip(nodes, x.shape, strict=False):
        if isinstance(n, ast.Slice):
            part = slice(*(_bound(cx, b) for b in (n.lower, n.upper, n.step)))
            if part.step == 0:
                raise KernelIndexError("the step of a slice is 0", span, help="write another step")
            kept.append(range(extent)[part])
    kept += [range(extent) for extent in x.shape[len(nodes) :]]
    if not all(map(len, kept)):
        raise KernelIndexError(f"a slice of {describe(x)} that holds nothing", span,
                               help="vectors have one element or more")  # fmt: skip
    lines: list[Operand] = list(rows(x))
    if len(x.shape) == 1:
        return Vec([x.items[k] for k in kept[0]], (len(kept[0]),))
    if isinstance(nodes[0], ast.Slice):
        lines = [lines[k] for k in kept[0]]
    else:
        (position,) = _positions(cx, x, nodes[0], span)
        lines = [pick(cx, lines, position, owner, span)]
    taken: list[Operand] = []
    for line in lines:
        assert isinstance(line, Vec)
        if len(nodes) == 2 and not isinstance(nodes[1], ast.Slice):
            (position,) = _positions(cx, line, nodes[1], span)
            taken.append(pick(cx, list(line.items), position, owner, span, axis=1))
        else:
            taken += [line.items[k] for k in kept[-1]]
    return Vec(taken, tuple(map(len, kept)))  # type: ignore[arg-type]


def _bound(cx: Lowering, node: ast.expr | None) -> int | None:
    """A bound of a slice."""
    if node is None:
        return None
    x = cx.expression(node)
    value = x.value if isinstance(x, Static) else math.nan
    if isinstance(x, Scalar):  # an unrolled loop's index, perhaps
        known = constant_of(x.value)
        value = math.nan if known is None else int(known)
    if value is None or type(value) is int:
        return value
    raise KernelTypeError("a bound of a slice that is only known at run time", cx.span(node),
                          help="vectors have a constant size: write constants")  # fmt: skip


def pick(
    cx: Lowering, items: list[Operand], position: Operand, owner: ast.expr, span: Span,
    *, axis: int = 0,
) -> Operand:  # fmt: skip
    """``items[position]``; a run-time position selects among all of them. They are those along
    ``axis`` of what ``owner`` says."""
    if isinstance(position, Static):
        return items[position.value]
    check(cx, owner, axis, position, len(items), span)
    return select(cx, items, position, span)


def are_alike(items: Sequence[Operand]) -> bool:
    """Whether ``items`` are numbers, or vectors or matrices of one shape, one of which ``pick``
    gives."""
    shapes = {x.shape if isinstance(x, Vec) else () if _is_number(x) else None for x in items}
    return len(shapes) == 1 and None not in shapes


def _is_number(x: Operand) -> bool:
    return dtype_of(x) is not None or is_complex(x)


def select(cx: Lowering, items: list[Operand], position: Operand, span: Span) -> Operand:
    """One of ``items`` by a number of run time; the last one where it is out of range."""
    if any(map(is_complex, items)):
        parts = zip(*(complexes.parts(x) for x in items), strict=True)
        chosen = [select(cx, [*part], position, span) for part in parts]
        return complexes.of_parts(cx.scalars, chosen, span)
    if len(items) > FEW and (found := _looked_up(cx, items, position, span)) is not None:
        return found
    index = cx.scalars.cast(position, "int", span)
    result = items[-1]
    for k in range(len(items) - 2, -1, -1):
        here = cx.scalars.compare("==", index, Static(k), span)
        condition = cx.scalars.truth(here, span)
        result = elementwise(
            lambda a, b, c=condition: cx.scalars.select(c, a, b, span), [items[k], result], span
        )
    return result


def _looked_up(cx: Lowering, items: list[Operand], position: Operand, span: Span) -> Operand | None:
    """The same by a table in memory, where ``items`` are constants; vectors, column by column."""
    vectors = [x for x in items if isinstance(x, Vec)]
    if len(vectors) == len(items) and len({x.shape for x in vectors}) == 1:
        columns = zip(*(x.items for x in vectors), strict=True)
        chosen = [select(cx, [*column], position, span) for column in columns]
        return Vec(chosen, vectors[0].shape)  # type: ignore[arg-type]
    numbers = [x for x in items if isinstance(x, Static)]
    if len(numbers) < len(items):
        return None
    if places := frozenset().union(*(x.places for x in numbers if isinstance(x, Varying))):
        raise NumberPinned(places)
    s, b = cx.scalars, cx.builder
    dtype = s.number(numbers[-1], span)
    for x in reversed(numbers[:-1]):
        dtype = dtype_with_room(promote(s.number(x, span), dtype), x, numbers[-1])
    held = "int" if dtype == "bool" else dtype
    with b.at(Block()):  # constants of that type
        values = tuple(constant_of(s.cast(x, held, span).value) for x in numbers)
    place = s.index(s.cast(position, "int", span), span)
    found = b.op("arith.table", place, type=s.type(held), values=values)
    if dtype != held:
        found = b.op("arith.cmpi", found, b.constant(0, found.scalar), predicate="ne")
    return Scalar(found, dtype)


def check(
    cx: Lowering, owner: ast.expr, axis: int, position: Operand, extent: int, span: Span
) -> None:
    """Has debug mode check a run-time position. A negative one is out of range."""
    if cx.debug:
        found = cx.scalars.index(cx.scalars.cast(position, "int", span), span)
        end = cx.builder.constant(extent, ir.index)
        cx.builder.span = span
        cx.builder.do("weft.bounds", found, end, tensor=ast.unparse(owner), axis=axis)


def replace(cx: Lowering, x: Vec, node: ast.Subscript, value: Operand, span: Span) -> Vec:
    """``v`` with ``v[i] = value``, or ``m[:, j] = value``, done."""
    nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(n, ast.Slice) for n in nodes):
        return _replaced_part(cx, x, nodes, node.value, value, span)
    positions = _positions(cx, x, node.slice, span)
    for axis, (position, extent) in enumerate(zip(positions, x.shape, strict=False)):
        if not isinstance(position, Static):
            check(cx, node.value, axis, position, extent, span)
    width = x.shape[1] if len(x.shape) == 2 else 1
    row = isinstance(value, (Vec, Tup))
    values = unpack(value, width, span) if row else [value] * width
    items: list[Operand] = list(x.items)
    whole_row = len(x.shape) == 2 and len(positions) == 1
    for place in range(len(items)):
        at = (place // width, place % width) if len(x.shape) == 2 else (place,)
        new = values[place % width if whole_row else 0]
        condition: Operand = Static(True)
        for position, k, extent in zip(positions, at, x.shape, strict=False):
            if isinstance(position, Static):
                same: Operand = Static(position.value % extent == k)
            else:
                same = cx.scalars.compare("==", position, Static(k), span)
            condition = both(cx, condition, same, span)
        if not isinstance(condition, Static):
            chosen = cx.scalars.truth(condition, span)
            items[place] = cx.scalars.select(chosen, new, items[place], span)
        elif condition.value:
            items[place] = new
    return Vec(items, x.shape)  # type: ignore[arg-type]


def _replaced_part(
    cx: Lowering, x: Vec, nodes: list[ast.expr], owner: ast.expr, value: Operand, span: Span
) -> Vec:
    """``x`` with what slices name set to ``value``: a number, or one for each."""
    items: list[Operand] = list(x.items)
    for place, new in assigned(cx, x.shape, nodes, owner, value, span):
        if isinstance(place, Static):
            items[place.value] = new
            continue
        for k, old in enumerate(items):
            here = cx.scalars.truth(cx.scalars.compare("==", place, Static(k), span), span)
            items[k] = cx.scalars.select(here, new, old, span)
    return Vec(items, x.shape)  # type: ignore[arg-type]


def assigned(
    cx: Lowering, shape: tuple[int, ...], nodes: list[ast.expr], owner: ast.expr, value: Operand,
    span: Span,
) -> Iterator[tuple[Operand, Operand]]:  # fmt: skip
    """The numbers of a vector of ``shape`` that slices name, counted row by row, and what each is
    set to."""
    all = Vec([Static(k) for k in range(math.prod(shape))], shape)
    places = _part(cx, all, nodes, owner, span)
    assert isinstance(places, Vec)
    if isinstance(value, Vec) and value.shape != places.shape:
        raise KernelTypeError(f"{describe(value)} is stored where there is {describe(places)}",
                              span, help="store one of that size, or a number")  # fmt: skip
    values = list(value.items) if isinstance(value, Vec) else [value] * len(places.items)
    if isinstance(value, Tup):
        values = unpack(value, len(places.items), span)
    yield from zip(places.items, values, strict=True)


def method(cx: Lowering, x: Vec, name: str, arguments: list[Operand], span: Span) -> Operand:
    """``v.norm()`` and the like."""
    s = cx.scalars
    items: list[Operand] = list(x.items)

    def plus(a: Operand, b: Operand) -> Operand:
        return s.binary("+", a, b, span)

    if name == "norm_inv":
        return s.binary("/", Static(1.0), method(cx, x, "norm", arguments, span), span)
    if name == "fill":
        raise KernelTypeError("`fill` of a vector in a device loop", span,
                              help="assign a new one: v = weft.Vector([a, a, a])")  # fmt: skip
    if name in ("norm", "norm_sqr", "length"):
        square = dot(cx, Vec(x.items, (len(items),)), Vec(x.items, (len(items),)), span)
        for eps in arguments:
            square = plus(square, eps)
        return square if name == "norm_sqr" else s.function("sqrt", [square], span)
    if name == "normalized":
        norm = method(cx, x, "norm", [], span)
        if arguments:
            norm = plus(norm, arguments[0])
        return binary(cx, "/", x, norm, span)
    if name == "dot":
        return dot(cx, x, arguments[0], span)
    if name == "cross":
        return cross(cx, x, build(arguments[0], span), span)
    if name == "sum":
        return reduce(plus, items)
    if name in ("min", "max"):
        return reduce(lambda a, b: s.extreme("<" if name == "min" else ">", a, b, span), items)
    if name in ("any", "all"):
        truths = [s.cast(i, "bool", span) for i in items]
        return reduce(lambda a, b: s.binary("|" if name == "any" else "&", a, b, span), truths)  # type: ignore[arg-type]
    if name == "transpose" and len(x.shape) == 2:
        n, m = x.shape
        return Vec([x.items[i * m + j] for j in range(m) for i in range(n)], (m, n))
    if name == "transpose":
        return Vec(x.items, (1, len(items)))
    if name == "trace" and len(x.shape) == 2:
        return reduce(plus, items[:: x.shape[1] + 1])
    if name == "outer_product":
        other = build(arguments[0], span)
        products = [s.binary("*", a, b, span) for a in items for b in other.items]
        return Vec(products, (len(items), len(other.items)))
    if name in ("determinant", "inverse") and len(x.shape) == 2 and x.shape[0] == x.shape[1]:
        return determinant(cx, x, span) if name == "determinant" else inverse(cx, x, span)
    raise KernelTypeError(f"{describe(x)} has no method `{name}`", span, help="check the spelling")


def cross(cx: Lowering, a: Vec, b: Vec, span: Span) -> Operand:
    s = cx.scalars

    def minor(i: int, j: int) -> Operand:
        left = s.binary("*", a.items[i], b.items[j], span)
        return s.binary("-", left, s.binary("*", a.items[j], b.items[i], span), span)

    if a.shape == b.shape == (2,):
        return minor(0, 1)
    if a.shape == b.shape == (3,):
        return Vec([minor(1, 2), minor(2, 0), minor(0, 1)], (3,))  # type: ignore[list-item]
    raise KernelTypeError("cross() needs two vectors of 2 or of 3 elements", span,
                          help="pass vectors of 3 elements")  # fmt: skip


def determinant(cx: Lowering, x: Vec, span: Span) -> Operand:
    """By expansion along the first row; of larger matrices, by elimination."""
    s, n = cx.scalars, x.shape[0]
    if n > CLOSED:
        if any(is_float(s.number(item, span)) for item in x.items):
            return elimination.determinant(_arithmetic(cx, span), _float_rows(cx, x, span))
        whole = [list(x.items[k : k + n]) for k in range(0, n * n, n)]
        return elimination.whole_determinant(_arithmetic(cx, span), whole)
    if n == 1:
        return x.items[0]
    result: Operand | None = None
    for k in range(n):
        term = s.binary("*", x.items[k], determinant(cx, _minor(x, 0, k), span), span)
        result = term if result is None else s.binary("-" if k % 2 else "+", result, term, span)
    assert result is not None
    return result


def _minor(x: Vec, row: int, column: int) -> Vec:
    n = x.shape[0]
    items = [x.items[i * n + j] for i in range(n) for j in range(n) if i != row and j != column]
    return Vec(items, (n - 1, n - 1))


def inverse(cx: Lowering, x: Vec, span: Span) -> Operand:
    """The adjugate over the determinant; of larger matrices, by elimination."""
    s, n = cx.scalars, x.shape[0]
    if n > CLOSED:
        found = elimination.inverse(_arithmetic(cx, span), _float_rows(cx, x, span))
        return Vec([item for row in found for item in row], (n, n))
    over = s.binary("/", Static(1.0), determinant(cx, x, span), span)
    if n == 1:
        return Vec([over], (1, 1))
    items = []
    for i in range(n):
        for j in range(n):
            cofactor: Operand = determinant(cx, _minor(x, j, i), span)
            if (i + j) % 2:
                cofactor = s.negate(cofactor, span)
            items.append(s.binary("*", cofactor, over, span))
    return Vec(items, (n, n))


def _float_rows(cx: Lowering, x: Vec, span: Span) -> list[list[Operand]]:
    """The rows of ``x``, all elements of one float dtype."""
    items = [floats(cx, item, span) for item in x.items]
    dtype = reduce(promote, [cx.scalars.number(item, span) for item in items])
    whole: list[Operand] = [cx.scalars.cast(item, dtype, span) for item in items]
    return [whole[k : k + x.shape[1]] for k in range(0, len(whole), x.shape[1])]


def _arithmetic(cx: Lowering, span: Span) -> elimination.Arithmetic:
    s = cx.scalars

    def operand(x: Operand | float) -> Operand:
        return Static(x) if isinstance(x, (int, float)) else x

    return elimination.Arithmetic(
        binary=lambda symbol, a, b: s.binary(symbol, operand(a), operand(b), span),
        negate=lambda a: s.negate(a, span),
        magnitude=lambda a: s.magnitude(a, span),
        larger=lambda a, b: s.truth(s.compare(">", a, b, span), span),
        equal=lambda a, b: s.truth(s.compare("==", a, operand(b), span), span),
        select=lambda c, a, b: s.select(c, operand(a), operand(b), span),
    )


def cast(cx: Lowering, x: Vec, convert: Callable[[Operand], Operand]) -> Vec:
    return Vec([convert(i) for i in x.items], x.shape)  # type: ignore[misc]


def floats(cx: Lowering, x: Operand, span: Span) -> Operand:
    """A float stays as it is, an integer becomes the kernel's own float."""
    dtype = dtype_of(x)
    if dtype is not None and is_float(dtype):
        return x
    return cx.scalars.cast(x, "float", span)
