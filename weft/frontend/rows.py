"""Rows as values: parts of tensors (``x[i]``, ``x[i, 1:]``, ``x[:, j]``) and what is computed of
them element by element.

A row is a function from indices to an element (``kinds.Row``). Arithmetic on rows makes another
one; a loop is made where a row is stored, reduced or gone over (``each``), and nothing is ever kept
in memory. What Python would compute at once is thus computed later: ``row_order.py`` refuses a loop
where that is another number.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import choices, complexes, elements, slices
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Along,
    Complex,
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    Vec,
    View,
    describe,
    dtype_of,
    is_complex,
    is_float,
    is_int,
    is_weak,
    promote,
)
from weft.ir import types as ir
from weft.ir.core import Block, Op, Value
from weft.ir.made import made_alike
from weft.ir.views import constant_of

Index = Scalar | Static


# --- what is a row ------------------------------------------------------------------------------
def is_row(x: Operand) -> bool:
    """Whether ``x`` is a row: a part of a tensor, all of one, or computed of such."""
    if isinstance(x, Tensor):
        return x.rank > 0 and not x.element and not x.backing
    return isinstance(x, Row) or (isinstance(x, Part) and not x.tensor.element)


def of(cx: Lowering, x: Operand) -> Row | None:
    """``x`` as a row; None of what has no elements along run-time sizes. A whole tensor is one."""
    if isinstance(x, Row) or not is_row(x):
        return x if isinstance(x, Row) else None
    if isinstance(x, Tensor):
        x = Part(x, [])
    assert isinstance(x, Part)
    tensor = x.tensor
    rest = (Along(Static(0), 1) for _ in range(tensor.rank - len(x.indices)))
    sizes = [elements.extent(cx, tensor, k) for k in range(len(x.indices), tensor.rank)]
    return view(cx, View(tensor, (*x.indices, *rest)), sizes)


def view(cx: Lowering, part: View, sizes: list[Index]) -> Row:
    """The row that is a part of a tensor. ``sizes``: of the dimensions that it goes along."""
    span = cx.builder.span

    def at(place: list[Index]) -> Operand:
        return cx.load_element(part.tensor, slices.subscripts(cx, part, place, span), span)

    return Row(sizes, at, part, ((part, True),))


def computed(
    cx: Lowering, sizes: list[Index], at: Callable[[list[Index]], Operand],
    parts: Sequence[tuple[Row, bool]], *, heavy: bool = False,
) -> Row:  # fmt: skip
    """A row whose elements are computed of ``parts``: rows, and whether each is read at the very
    place of the element."""
    leaves = tuple((leaf, same and here) for row, here in parts for leaf, same in row.leaves)
    since = next((row.since for row, _ in parts if row.since is not None), cx.builder.here())
    return Row(sizes, at, None, leaves, heavy or any(row.heavy for row, _ in parts), since)


def dtype(cx: Lowering, row: Row) -> str:
    """The dtype of a row's elements: of complex numbers that of the parts."""
    x = probe(cx, row)
    found = x.dtype if isinstance(x, Complex) else dtype_of(x)
    assert found is not None
    return found


def probe(cx: Lowering, row: Row) -> Operand:
    """An element of a row, for its kind alone: what computes it is thrown away."""
    with cx.builder.at(Block()):
        return row.at([Scalar(Value(ir.index), "int") for _ in row.extents])


# --- subscripts of rows -------------------------------------------------------------------------
def subscript(cx: Lowering, row: Row, node: ast.expr, span: Span) -> Operand:
    """``row[...]``: an element, or a row again."""
    picked = slices.axes(cx, node, row.extents, functools.partial(_integer, cx, row), span)
    axes = [axis for axis, _ in picked]
    sizes = [size for _, size in picked if size is not None]
    if row.view is not None:
        part = _narrowed(cx, row.view, axes, span)
        if not sizes:
            return cx.load_element(part.tensor, slices.subscripts(cx, part, [], span), span)
        return view(cx, part, sizes)
    if row.choice is not None:
        found = choices.narrowed(cx, row, lambda v: _narrowed(cx, v, axes, span), sizes)
        return found if sizes else found.at([])

    def at(place: list[Index]) -> Operand:
        remaining = iter(place)
        return row.at([
            slices.position(cx, axis, next(remaining), span) if isinstance(axis, Along) else axis
            for axis in axes
        ])  # fmt: skip

    return computed(cx, sizes, at, [(row, False)]) if sizes else at([])


def place(cx: Lowering, row: Row, node: ast.expr, span: Span) -> Part | Row:
    """What ``row[...] = ...`` stores into: an element, or a part of a tensor."""
    if row.view is None and row.choice is None:
        raise _value(span)
    picked = slices.axes(cx, node, row.extents, functools.partial(_integer, cx, row), span)
    axes, sizes = [axis for axis, _ in picked], [size for _, size in picked if size is not None]
    if row.view is None:
        return choices.narrowed(cx, row, lambda v: _narrowed(cx, v, axes, span), sizes)
    part = _narrowed(cx, row.view, axes, span)
    return (
        view(cx, part, sizes) if sizes else Part(part.tensor, slices.subscripts(cx, part, [], span))
    )


def _value(span: Span) -> KernelTypeError:
    return KernelTypeError("a computed row is a value, into which nothing can be stored", span,
                           help="store into a tensor, or write row = row + 1")  # fmt: skip


def _is_all(axis: Value | Along) -> bool:
    """Whether a view goes along all of a dimension, up to its end."""
    if isinstance(axis, Value) or not isinstance(axis.start, Static):
        return False
    return axis.step == 1 and axis.start.value == 0


def _integer(cx: Lowering, row: Row, k: int, x: Operand, span: Span) -> Index:
    """The subscript ``x`` of dimension ``k`` of a row: a negative literal counts from the end."""
    if row.view is not None:
        free = [axis for axis, along in enumerate(row.view.axes) if isinstance(along, Along)]
        if _is_all(row.view.axes[free[k]]):  # the tensor's own subscript
            found = elements.subscript_of(cx, row.view.tensor, free[k], x, span)
            return Scalar(found, "int")
    size, index = row.extents[k], cx.read_scalar(x, span)
    if isinstance(index, Static) and isinstance(index.value, int) and index.value < 0:
        index = cx.scalars.binary("+", size, index, span)
    found = cx.scalars.index(index, span)
    if cx.debug:
        with cx.builder.about(span):
            end = cx.scalars.index(size, span)
            name = row.choice.name + "[...]" if row.choice else "a row"
            cx.builder.do("weft.bounds", found, end, tensor=name, axis=k)
    return Scalar(found, "int")


def _narrowed(cx: Lowering, part: View, picked: Sequence[Along | Index], span: Span) -> View:
    """A part of a view."""
    remaining = iter(picked)
    axes: list[Value | Along] = []
    for axis in part.axes:
        if isinstance(axis, Value):
            axes.append(axis)
            continue
        chosen = next(remaining)
        if isinstance(chosen, Along):
            start = slices.position(cx, axis, chosen.start, span)
            axes.append(Along(start, axis.step * chosen.step))
        else:
            axes.append(cx.scalars.index(slices.position(cx, axis, chosen, span), span))
    return View(part.tensor, tuple(axes))


def item(cx: Lowering, row: Row, k: Index) -> Row:
    """Item ``k`` along the first one of several dimensions."""
    axes: list[Along | Index] = [k, *(Along(Static(0), 1) for _ in row.extents[1:])]
    if row.choice is not None:
        span = cx.builder.span
        return choices.narrowed(
            cx, row, lambda part: _narrowed(cx, part, axes, span), row.extents[1:]
        )  # fmt: skip
    if row.view is not None:
        return view(cx, _narrowed(cx, row.view, axes, cx.builder.span), row.extents[1:])
    return computed(cx, row.extents[1:], lambda place: row.at([k, *place]), [(row, False)])


def unpacked(cx: Lowering, row: Row, count: int, span: Span) -> Tup:
    """The items of a row, which has to have so many."""
    what = f"a row is unpacked into {count} name{'s' * (count != 1)}, and has another length"
    require_same(cx, row.extents[0], Static(count), what, span)
    places: list[Index] = [Static(k) for k in range(count)]
    if len(row.extents) == 1:
        return Tup([row.at([k]) for k in places])
    return Tup([item(cx, row, k) for k in places])


# --- shapes -------------------------------------------------------------------------------------
def require_same(cx: Lowering, a: Index, b: Index, what: str, span: Span) -> None:
    """Has two sizes compared: now if both are known, else once a call."""
    if isinstance(a, Static) and isinstance(b, Static):
        if a.value != b.value:
            raise KernelTypeError(f"{what}: {a.value} and {b.value} elements", span,
                                  help="take slices of one length")  # fmt: skip
        return
    x, y = cx.scalars.index(a, span), cx.scalars.index(b, span)
    if not same_value(x, y):
        equal = cx.builder.op("arith.cmpi", x, y, predicate="eq")
        with cx.builder.about(span):
            cx.builder.do("weft.assert", equal, message=what)


def require_some(cx: Lowering, size: Index, what: str, span: Span) -> None:
    """Has a size be at least 1."""
    some = cx.scalars.compare(">", size, Static(0), span)
    if isinstance(some, Static):
        if not some.value:
            raise KernelTypeError(what, span, help="test the size before")
        return
    with cx.builder.about(span):
        cx.builder.do("weft.assert", cx.scalars.truth(some, span), message=what)


def same_value(a: Value, b: Value) -> bool:
    """Whether two values are computed alike."""
    return made_alike(a, b, _alike)


def _alike(x: Op, y: Op) -> bool:
    pure = x.name == "memref.dim" or x.name.startswith("arith.")
    return pure and x.name == y.name and x.attrs == y.attrs and not x.regions


def _one(size: Index) -> bool:
    return isinstance(size, Static) and size.value == 1


def broadcast(cx: Lowering, shapes: Sequence[list[Index]], span: Span) -> list[Index]:
    """The sizes that the shapes broadcast to. A run-time size never stands for 1."""
    sizes: list[Index] = []
    for k in range(max(map(len, shapes))):  # from the last one
        here = [shape[-1 - k] for shape in shapes if k < len(shape)]
        wide = [size for size in here if not _one(size)] or here[:1]
        for other in wide[1:]:
            require_same(cx, wide[0], other, "rows of different lengths meet", span)
        sizes.insert(0, wide[0])
    return sizes


def _spread(row: Row, sizes: Sequence[Index]) -> bool:
    """Whether ``row`` has to be repeated to have the shape ``sizes``."""
    return len(row.extents) < len(sizes) or any(
        _one(a) and not _one(b) for a, b in zip(row.extents, sizes, strict=True)
    )


def fitted(row: Row, place: list[Index]) -> Operand:
    """The element of ``row`` that is at ``place`` of what it is broadcast to."""
    own = place[len(place) - len(row.extents) :]
    return row.at([Static(0) if _one(n) else k for n, k in zip(row.extents, own, strict=True)])


# --- element by element -------------------------------------------------------------------------
def elementwise(
    cx: Lowering, f: Callable[[list[Operand]], Operand], operands: Sequence[Operand], span: Span
) -> Row:
    """``f`` of the elements of rows, and of the other operands as they are."""
    rows = [of(cx, x) for x in operands]
    known = [row for row in rows if row is not None]
    sizes = broadcast(cx, [row.extents for row in known], span)
    for row in known:
        if row.heavy and _spread(row, sizes):
            raise too_heavy(span)
    whole = "bool"
    for row in known:
        whole = promote(whole, dtype(cx, row))
    others = [x if row is not None else _met(cx, x, whole, span)
              for x, row in zip(operands, rows, strict=True)]  # fmt: skip

    def at(place: list[Index]) -> Operand:
        return f([x if row is None else fitted(row, place)
                  for x, row in zip(others, rows, strict=True)])  # fmt: skip

    return computed(cx, sizes, at, [(row, not _spread(row, sizes)) for row in known])


def _met(cx: Lowering, x: Operand, dtype: str, span: Span) -> Operand:
    """A number that meets a row of ``dtype``: of the same sort it takes the row's dtype, as 0-d
    tensors do in torch."""
    if isinstance(x, Static) and dtype_of(x) is None and not is_complex(x):
        return x  # None, of an argument that is left out
    if isinstance(x, Vec | Tup):
        raise KernelTypeError(f"a row meets {describe(x)}", span,
                              help="write the loop over the elements")  # fmt: skip
    number = cx.read_number(x, span)
    own = dtype_of(number)
    if own is None or is_weak(own) or is_weak(dtype):
        return number
    alike = (is_float(own) and is_float(dtype)) or (is_int(own) and is_int(dtype))
    return cx.scalars.cast(number, dtype, span) if alike and own != dtype else number


def too_heavy(span: Span) -> KernelTypeError:
    return KernelTypeError(
        "each element of this row takes a loop, and would be computed many times", span,
        help="store it in a tensor of the host part first: h[i] = ..., then use h[i]",
    )  # fmt: skip


def product(cx: Lowering, a: Row, b: Row, span: Span) -> Operand:
    """``a @ b``: of rows of one or two dimensions."""
    if len(a.extents) > 2 or len(b.extents) > 2:
        raise KernelTypeError("`@` of more than two dimensions", span, help="write the loop")
    require_same(cx, a.extents[-1], b.extents[0], "the inner sizes of a product differ", span)
    if a.heavy or b.heavy:
        raise too_heavy(span)
    left, right = a.extents[:-1], b.extents[1:]

    def entry(place: list[Index]) -> Operand:
        i, j = place[: len(left)], place[len(left) :]

        def term(k: list[Index]) -> Operand:
            return complexes.arithmetic(cx.scalars, "*", a.at([*i, *k]), b.at([*k, *j]), span)

        return total(cx, Row([a.extents[-1]], term), span)

    if not left and not right:
        return entry([])
    return computed(cx, [*left, *right], entry, [(a, False), (b, False)], heavy=True)


# --- loops over rows ----------------------------------------------------------------------------
def each(
    cx: Lowering, sizes: Sequence[Index], carried: list[Any],
    body: Callable[[list[Index], list[Any]], list[Any]], span: Span,
) -> list[Any]:  # fmt: skip
    """Makes loops over indices below ``sizes``. ``carried`` are scalars, of which ``body`` gives
    the next ones, of the same dtypes."""
    b, places = cx.builder, list[Index]()

    def level(values: list[Any]) -> list[Any]:
        if len(places) == len(sizes):
            return body(list(places), values)
        upper = cx.scalars.index(sizes[len(places)], span)
        lower = b.index(0)
        op = b.for_(lower, upper, b.index(1), [x.value for x in values])
        cx.counted(op.body.args[0], lower)
        places.append(Scalar(op.body.args[0], "int"))
        with b.at(op.body):
            inner = [Scalar(v, x.dtype) for v, x in zip(op.body.args[1:], values, strict=True)]
            b.do("scf.yield", *(x.value for x in level(inner)))
        places.pop()
        return [Scalar(v, x.dtype) for v, x in zip(op.results, values, strict=True)]

    return level(carried)


def total(cx: Lowering, row: Row, span: Span, wide: str = "") -> Operand:
    """The sum of all elements, in the dtype ``wide`` or their own."""
    first = probe(cx, row)
    if isinstance(first, Complex):
        own = wide or first.dtype
        zeros = [cx.scalars.constant(0.0, own) for _ in range(2)]

        def both(place: list[Index], sums: list[Scalar]) -> list[Scalar]:
            z = complexes.cast(cx.scalars, row.at(place), own, span)
            return [_plus(cx, s, v, span) for s, v in zip(sums, (z.real, z.imag), strict=True)]

        return Complex(*each(cx, row.extents, zeros, both, span))
    wide = wide or dtype(cx, row)
    zero = cx.scalars.constant(0.0 if is_float(wide) else 0, wide)

    def one(place: list[Index], sums: list[Scalar]) -> list[Scalar]:
        return [_plus(cx, sums[0], cx.scalars.cast(row.at(place), wide, span), span)]

    (result,) = each(cx, row.extents, [zero], one, span)
    return result


def _plus(cx: Lowering, a: Scalar, b: Scalar, span: Span) -> Scalar:
    return cx.scalars.cast(cx.scalars.binary("+", a, b, span), a.dtype, span)


# --- stores -------------------------------------------------------------------------------------
def store(
    cx: Lowering, target: Row, x: Operand, put: Callable[[Part, Operand], None], span: Span
) -> None:
    """Stores ``x`` into the part of a tensor that ``target`` is: a row of its shape, or a number
    everywhere. ``put`` stores one element."""
    views = (target.view,) if target.view else target.choice.views if target.choice else ()
    if not views:
        raise _value(span)
    if isinstance(x, Vec | Tup):
        x = _written_out(x, span)
    row = of(cx, x)
    value = x
    if row is None:
        value = cx.read_number(x, span)
    else:
        _require_fit(cx, row, target, span)
        for part in views:
            _refuse_overlap(cx, row, part, _spread(row, target.extents), span)

    def one(place: list[Index], none: list[Any]) -> list[Any]:
        item = value if row is None else fitted(row, place)
        if target.choice is not None:
            choices.stored(cx, target.choice, place, lambda part: put(part, item), span)
        else:
            at = slices.subscripts(cx, views[0], place, span)
            put(Part(views[0].tensor, at), item)
        return none

    each(cx, target.extents, [], one, span)


def _written_out(x: Vec | Tup, span: Span) -> Operand:
    raise KernelTypeError(
        f"{describe(x)} is stored into a row of a tensor", span,
        help="store the items one by one: x[i, 0], x[i, 1] = ...",
    )  # fmt: skip


def _require_fit(cx: Lowering, row: Row, target: Row, span: Span) -> None:
    more = len(row.extents) - len(target.extents)
    if more > 0:
        raise KernelTypeError(
            f"{describe(row)} is stored into {describe(target)}", span,
            help="reduce it first, or subscript it",
        )  # fmt: skip
    if row.heavy and _spread(row, target.extents):
        raise too_heavy(span)
    for size, room in zip(row.extents, target.extents[-len(row.extents) :], strict=True):
        if not _one(size):
            require_same(cx, size, room, "a row is stored into one of another length", span)


def _refuse_overlap(cx: Lowering, row: Row, part: View, spread: bool, span: Span) -> None:
    """Refuses to store a row of which elements are still read when others are overwritten."""
    for leaf, here in row.leaves:
        alike = here and not spread and _parallel(leaf, part)
        if leaf.tensor.memref is not part.tensor.memref:
            note_shared(cx, alike)
        elif not alike and not _apart(leaf, part):
            raise KernelTypeError(
                f"this reads `{part.tensor.name}` while it overwrites it, at other places", span,
                help="write the loop, in the order that is meant, or store into another tensor",
            )  # fmt: skip


def note_shared(cx: Lowering, alike: bool) -> None:
    """Has calls refused whose arguments share memory (``overlap.refuse_rows``): all, or not those
    where two are one tensor, as places that are read and stored are ``alike``."""
    cx.shared_rows = "alike" if alike and cx.shared_rows != "any" else "any"


def _parallel(a: View, b: View) -> bool:
    """Whether two views of one tensor have elements in common only where their indices are the
    same."""
    if len(a.axes) != len(b.axes):
        return False
    for x, y in zip(a.axes, b.axes, strict=True):
        if isinstance(x, Value) or isinstance(y, Value):
            if not (isinstance(x, Value) and isinstance(y, Value)):
                return False
        elif x.step != y.step or not same_index(x.start, y.start):
            return False
    return True


def same_index(a: Index, b: Index) -> bool:
    """Whether two sizes or places are the same for sure."""
    if isinstance(a, Static) or isinstance(b, Static):
        return isinstance(a, Static) and isinstance(b, Static) and a.value == b.value
    return same_value(a.value, b.value)


def _apart(a: View, b: View) -> bool:
    """Whether two views of one tensor certainly have no element in common: a subscript differs by
    a constant."""
    for x, y in zip(a.axes, b.axes, strict=True):
        if isinstance(x, Value) and isinstance(y, Value):
            (one, m), (two, n) = offset(x), offset(y)
            alike = one is two or (one is not None and two is not None and same_value(one, two))
            if alike and m != n:
                return True
    return False


def offset(value: Value) -> tuple[Value | None, int]:
    """A subscript as a value and a constant that is added to it."""
    number = constant_of(value)
    if number is not None:
        return None, int(number)
    op = value.op
    if op is not None and op.name in ("arith.addi", "arith.subi"):
        right = constant_of(op.right)
        if right is not None:
            base, more = offset(op.left)
            return base, more + (int(right) if op.name == "arith.addi" else -int(right))
        left = constant_of(op.left)
        if left is not None and op.name == "arith.addi":
            base, more = offset(op.right)
            return base, more + int(left)
    return value, 0
