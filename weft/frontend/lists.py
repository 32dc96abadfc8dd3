"""Lists that a device loop stores into, and torch's small tensors: arrays of the iteration.

``a = [0.0] * 6``, ``a = [x[i, j] for j in range(5)]`` and ``a = torch.zeros(6)`` make one where an
element of ``a`` is assigned anywhere in the function; other lists are tuples. The elements of a
list have one type, the join of all that is stored.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from typing import Any

import torch

from weft.errors import KernelTypeError, Span
from weft.frontend import elements, growing, list_methods, sequences
from weft.frontend.casts import (
    MOST_ELEMENTS,
    dtype_from,
    dtype_name,
    extent,
    static_items,
    too_large,
)
from weft.frontend.context import Again, Lowering
from weft.frontend.kinds import (
    Operand,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    constant_value,
    dtype_of,
    is_complex,
    promote,
    same_operand,
)
from weft.frontend.names import STORES, dotted, root_name, without_subscripts
from weft.frontend.room import dtype_with_room
from weft.frontend.scope import Frame
from weft.frontend.signatures import argument
from weft.ir import types as ir
from weft.ir.core import Value
from weft.lang.dtypes import ComplexType, as_dtype, f32
from weft.lang.vectors import MatrixType, VectorType

MOST_ITEMS = 1 << 12  # of a list that is written as a product


def repeated(cx: Lowering, x: Tup, times: Operand, span: Span) -> Operand:
    """``[a] * n``: a list that grows where ``n`` is known at run time only."""
    if dtype_of(times) in ("int", "i64", "i32") and not isinstance(times, Static):
        return list_methods.binary(cx, "*", list_methods.copied(cx, [x], span), times, span)
    count = times.value if isinstance(times, Static) else None
    if type(count) is not int or len(x.items) * count > MOST_ITEMS:
        raise KernelTypeError(
            f"a list is repeated by a constant, to at most {MOST_ITEMS} items", span,
            help="use weft.zeros(n, weft.f32), or a tensor of the host part",
        )  # fmt: skip
    return Tup(x.items * max(count, 0))


def assigned(
    cx: Lowering, target: ast.expr, value: ast.expr, x: Operand, span: Span
) -> Operand:  # fmt: skip
    """What ``target = value`` assigns, where ``value`` is ``x``: an array of a list whose elements
    are assigned."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and isinstance(x, Tup):
        parts = zip(target.elts, value.elts, x.items, strict=False)
        made = [assigned(cx, *part, span) for part in parts]
        return Tup(made) if len(made) == len(x.items) else x
    name = target.id if isinstance(target, ast.Name) else ""
    if name in cx.frame.grown and _is_list(value) and isinstance(x, Tup):
        return growing.of_items(cx, name, x.items, span)
    if name not in cx.frame.stored or not _is_list(value) or not isinstance(x, Tup) or not x.items:
        return x
    shape = _shape_of(x, value)
    if shape is None:
        return x
    _check_own(x, span)
    items = _numbers(x)
    made = _array(cx, name, items, shape, span)
    zeros = all(isinstance(item, Static) and item.value == 0 for item in items)
    if not zeros:
        _store_each(cx, made, items, span)
    return made


def _store_each(cx: Lowering, array: Tensor, items: list[Operand], span: Span) -> None:
    assert array.shape is not None
    for place, item in zip(itertools.product(*map(range, array.shape)), items, strict=True):
        indices = [cx.builder.constant(k, ir.index) for k in place]
        cx.store_element(array.memref, array.dtype, indices, item, span)


def store_items(cx: Lowering, array: Tensor, x: Tup, span: Span) -> None:
    """Has ``array``, of the sizes of ``x``, hold the numbers of this list."""
    _check_own(x, span)
    items = _numbers(x)
    for item in items:
        check_stored(cx, array, item, span)
    first = items[0]
    if len(items) <= elements.MOST_UNROLLED_STORES or not isinstance(first, Static) or not all(
        isinstance(item, Static) and same_operand(item, first) for item in items
    ):  # fmt: skip
        _store_each(cx, array, items, span)
        return
    cx.builder.each_element(
        array.memref, lambda at: cx.store_element(array.memref, array.dtype, at, first, span)
    )


def check_given(
    cx: Lowering, arguments: dict[str, Operand], places: dict[str, ast.expr], node: ast.Call,
    outer: Frame,
) -> None:  # fmt: skip
    """Begins another round of lowering, in which a list of the caller's is an array into which the
    function that is called stores, or which it lets grow."""
    given = {
        name: place for name, place in places.items()
        if isinstance(x := arguments.get(name), Tup) and x.in_order and not x.names
    }  # fmt: skip
    stored = {root_name(without_subscripts(given[n])) for n in given.keys() & cx.frame.stored}
    arrays = {
        name: place for name, place in places.items()
        if isinstance(x := arguments.get(name), Tensor) and x.listed and x.key and x.length is None
    }  # fmt: skip
    lists = given | arrays  # that another call stores into makes an array of a list
    grown = {place.id for n in lists.keys() & cx.frame.grown
             if isinstance(place := lists[n], ast.Name)}  # fmt: skip
    new = False  # both are noted at once: what is stored into is no list of the next round
    for mark, names, known in (
        (STORES, stored - {None}, outer.stored), (growing.GROWS, grown, outer.grown),
    ):  # fmt: skip
        marked: set[Any] = getattr(node, mark, set())
        if names - marked - known:
            setattr(node, mark, names | marked)
            new = True
    if new:
        raise Again


def _shape_of(x: Operand, node: ast.expr) -> tuple[int, ...] | None:
    """The sizes of a list of numbers, or of lists of one size that ``node`` makes as well; None of
    another one."""
    if dtype_of(x) is not None:
        return ()
    if not isinstance(x, Tup) or not x.items or not x.in_order or not _is_list(node):
        return None
    if all(dtype_of(item) for item in x.items):
        return (len(x.items),)
    shapes = {_shape_of(item, inner) for item in x.items for inner in _inner(node)}
    inner = shapes.pop()
    return (len(x.items), *inner) if inner and not shapes else None


def _inner(node: ast.expr) -> list[ast.expr]:
    """The expressions that make the items of a list."""
    if isinstance(node, ast.BinOp):
        both = isinstance(node.op, ast.Add)
        sides = [side for side in (node.left, node.right) if both or _is_list(side)]
        return [item for side in sides for item in _inner(side)]
    if isinstance(node, ast.ListComp):
        return [node.elt]
    return node.elts if isinstance(node, ast.List) else [ast.Constant(None)]  # list(x), and others


def _check_own(x: Tup, span: Span) -> None:
    """Refuses a list that holds one list twice: a store into one would be one into the other."""
    held = [item for item in x.items if isinstance(item, Tup)]
    if len({id(item) for item in held}) < len(held):
        raise KernelTypeError(
            "a list that holds one list several times, and is stored into", span,
            help="write [[0.0] * 3 for _ in range(2)], which makes a list for each",
        )  # fmt: skip
    for item in held:
        _check_own(item, span)


def _numbers(x: Tup) -> list[Operand]:
    """The numbers in a list of lists, row by row."""
    return [n for item in x.items for n in (_numbers(item) if isinstance(item, Tup) else [item])]


def _is_list(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_list(node.left) or _is_list(node.right)
    if isinstance(node, ast.Call):
        return dotted(node.func).rpartition(".")[2] in ("list", "deque")
    return isinstance(node, ast.List | ast.ListComp)


def _array(
    cx: Lowering, name: str, items: list[Operand], shape: tuple[int, ...], span: Span
) -> Tensor:  # fmt: skip
    key = (*cx.frame.path, f"{name}[]")
    for item in items:
        cx.widen_at(key, item, span)
    kind = cx.widen_at(key, items[0], span)
    assert isinstance(kind, ScalarKind)
    if math.prod(shape) > MOST_ELEMENTS:
        raise too_large(math.prod(shape), span)
    made = elements.local_array(cx, shape, kind.dtype)
    made.listed, made.key = True, key
    return made


def check_stored(cx: Lowering, tensor: Tensor, value: Operand, span: Span) -> None:
    """Notes what is stored into a list: its elements have the join of all types."""
    if tensor.key:
        kind = cx.widen_at(tensor.key, value, span)
        cx.widened |= kind != ScalarKind(tensor.dtype)


def zeros(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``weft.zeros((4, 8), weft.f32)``: a local array."""
    span = cx.span(node)
    items = static_items(arguments[0])
    given, room = argument(arguments, 1), argument(arguments, 2)
    shape = _shape(items if items is not None else arguments[:1], span) if room is None else ()
    if room is not None and items is not None:
        raise KernelTypeError("an array with `most` has one dimension", span,
                              help="write weft.zeros(n, weft.f32, most=64)")  # fmt: skip
    kind = dtype_from(given, span) if given else f32
    if isinstance(kind, (VectorType, MatrixType)):
        raise KernelTypeError("a local array of vectors", span,
                              help="give it one more dimension: weft.zeros((n, 3))")  # fmt: skip
    if isinstance(kind, ComplexType):
        return elements.local_array(cx, shape, kind.part, pair=True)
    dtype = dtype_name(kind)
    dtype = {"int": "i64", "float": cx.scalars.float_type.name}.get(dtype, dtype)
    if room is not None:
        return growing.of_size(cx, arguments[0], dtype, room, span)
    return elements.local_array(cx, shape, dtype)


def _shape(sizes: list[Operand], span: Span) -> tuple[int, ...]:
    """The sizes of an array of the iteration. Raises ``KernelValueError``."""
    shape = tuple(extent(size, span) for size in sizes)
    if math.prod(shape) > MOST_ELEMENTS:
        raise too_large(math.prod(shape), span)
    return shape


def of_torch(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``torch.zeros(6)``, ``torch.ones((2, 3), dtype=...)``, ``torch.full((3,), v)``."""
    span, name = cx.span(node), ast.unparse(node.func).rpartition(".")[2]
    given = {k.arg: cx.expression(k.value) for k in node.keywords}
    sizes, fill = list(arguments), Static(0 if name in ("zeros", "empty") else 1)
    if name == "full":
        *sizes, fill = sizes
    if len(sizes) == 1 and static_items(sizes[0]) is not None:
        sizes = static_items(sizes[0]) or []
    if not sizes:
        raise KernelTypeError(f"`torch.{name}` of no sizes in a device loop", span,
                              help="write the sizes: torch.zeros(6)")  # fmt: skip
    shape = _shape(sizes, span)
    chosen = given.get("dtype")
    if name == "full" and chosen is None and dtype_of(fill) in ("int", "bool"):
        chosen = Static(torch.int64 if dtype_of(fill) == "int" else torch.bool)
    default = as_dtype(torch.get_default_dtype())
    kind = dtype_from(chosen, span) if chosen is not None else default
    pair = isinstance(kind, ComplexType)
    dtype = kind.part if pair else dtype_name(kind)
    if pair and not (isinstance(fill, Static) and fill.value == 0):
        raise KernelTypeError(f"`torch.{name}` of complex numbers in a device loop", span,
                              help="write torch.zeros(...), and store the numbers")  # fmt: skip
    made = elements.local_array(cx, shape, dtype, pair=pair)
    made.listed = True
    if not (isinstance(fill, Static) and fill.value == 0):
        value = cx.scalars.cast(cx.read_scalar(fill, span), dtype, span)

        def store(place: list[Value]) -> None:
            cx.store_element(made.memref, dtype, place, value, span)

        cx.builder.each_element(made.memref, store)
    return made


def ordered(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``sorted`` of a tuple or a vector: by comparing neighbours, from the front."""
    span, x = cx.span(node), arguments[0]
    if len(arguments) > 1:
        raise KernelTypeError(f"`sorted` takes 1 argument, and {len(arguments)} are given", span,
                              help="write sorted(x, key=..., reverse=...)")  # fmt: skip
    if isinstance(constant_value(x), set | frozenset):
        x = Static(list(x.value))  # type: ignore[union-attr]
    items = static_items(x)
    down = [cx.expression(k.value) for k in node.keywords if k.arg == "reverse"]
    key = next((cx.expression(k.value) for k in node.keywords if k.arg == "key"), None)
    of_tuples = items is not None and any(isinstance(x, Tup) and x.in_order for x in items)
    if list_methods.is_list(x) or key is not None or of_tuples or (
        items is None and sequences.items(cx, x, span) is not None
    ):  # fmt: skip
        return list_methods.ordered(cx, x, key, down[0] if down else None, span)
    if items is None or any(is_complex(x) or dtype_of(x) is None for x in items):
        raise KernelTypeError("`sorted` of what is no tuple of numbers", span,
                              help="sort the tensor in the host part: torch.sort")  # fmt: skip
    falls = bool(down and isinstance(down[0], Static) and down[0].value)
    constants = [constant_value(item) for item in items]
    if not items or (None not in constants and not (down and not isinstance(down[0], Static))):
        return Tup([Static(value) for value in sorted(constants, reverse=falls)])
    turned = None
    if down and not isinstance(down[0], Static):
        turned = cx.scalars.truth(cx.read_number(down[0], span), span)
    dtype = functools.reduce(promote, [dtype_of(x) or "" for x in items])
    dtype = dtype_with_room(dtype, *items)
    values: list[Operand] = [cx.scalars.cast(x, dtype, span) for x in items]
    for end in range(1, len(values)):
        for k in range(end, 0, -1):
            a, b = values[k - 1], values[k]
            less = cx.scalars.compare(">" if falls else "<", b, a, span)
            swap = cx.scalars.truth(less, span)
            values[k - 1] = cx.scalars.select(swap, b, a, span)
            values[k] = cx.scalars.select(swap, a, b, span)
    if turned is not None:
        pairs = zip(values, values[::-1], strict=True)
        values = [cx.scalars.select(turned, b, a, span) for a, b in pairs]
    return Tup(values)
