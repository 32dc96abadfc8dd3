"""Lists of an iteration that grow and shrink: an array with room for some elements, and its length.

``a = []`` makes one where the function calls ``a.append`` or another of ``METHODS``, a list of
tuples one where it assigns an item, and ``weft.zeros(n, dtype, most=room)`` one of a size that is
known at run time. The length is in memory, as the elements are, so that branches and loops need
not hand it on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import elements, tuple_lists
from weft.frontend.casts import MOST_ELEMENTS, too_large
from weft.frontend.context import Again, Lowering
from weft.frontend.kinds import (
    Complex,
    Method,
    Operand,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    TupleList,
    dtype_of,
)
from weft.ir import types as ir
from weft.ir.core import Op, Value, walk
from weft.ir.views import written_by
from weft.lang.growing import ROOM
from weft.source import children, subtree

METHODS = ("append", "pop", "clear")
CHANGING = (*METHODS, "extend", "insert", "remove", "sort", "reverse", "popleft", "appendleft")


# The attribute of a call that holds the names of lists which the called function lets grow.
GROWS = "weft_grows"


def grown(node: ast.AST) -> set[str]:
    """The names of lists that ``node`` lets grow or shrink, and of empty ones that it hands to
    functions, which may."""
    found, empty, handed = set[str](), set[str](), set[str]()
    for child in subtree(node):
        found |= getattr(child, GROWS, set())
        match child:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
                attr in CHANGING
            ):
                found.add(name)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(), ctx=ast.Store()):
                found.add(name)
            case ast.Delete(targets=targets):
                held = [t.value for t in targets if isinstance(t, ast.Subscript)]
                found |= {v.id for v in held if isinstance(v, ast.Name)}
            case ast.Call(args=args):
                handed |= {arg.id for arg in args if isinstance(arg, ast.Name)}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=[])):
                empty.add(name)
            case _:
                pass
    return found | (empty & handed)


def begin_again(cx: Lowering, target: ast.Subscript, x: Tup, item: Operand) -> None:
    """Begins another round of lowering, in which the list of tuples ``x`` is one of this module,
    since ``item`` is stored into it, unless that was tried."""
    match target:
        case ast.Subscript(value=ast.Name(id=name) as known) if name not in cx.frame.grown:
            if x.in_order and not x.names and all(isinstance(y, Tup) for y in (*x.items, item)):
                setattr(known, GROWS, {name})  # `target` may have been made in this round
                raise Again
        case _:
            pass


def of_items(
    cx: Lowering, name: str, items: Sequence[Operand], span: Span, dtype: str = "",
    room: int = ROOM,
) -> Tensor | TupleList:  # fmt: skip
    """A list that holds ``items``. Without a ``dtype`` its elements have the join of the types of
    all that it ever holds."""
    key = () if dtype else (*cx.frame.path, f"{name}[]")
    named = f"the list {name}" if name else "a local array"
    if key and tuple_lists.holds_tuples(cx, key, items):
        tuples = tuple_lists.make(cx, named, key, items, max(room, len(items), 1), span)
        _set_length(cx, tuples, cx.builder.index(len(items)))
        return tuples
    for item in items if key else ():
        _check_number(item, span)
        cx.widen_at(key, item, span)
    kind = cx.kinds.get(key) if key else ScalarKind(dtype)
    if kind is None:
        cx.empty.add(key)
    kind = kind or ScalarKind("int")  # until something is put into it
    assert isinstance(kind, ScalarKind)
    memref = elements.local_memory(cx, (max(room, len(items), 1),), kind.dtype)
    cell = cx.builder.alloca(ir.i64, (1,))
    made = Tensor(memref, kind.dtype, named, local=True, listed=True, key=key, length=cell)
    for k, item in enumerate(items):
        cx.store_element(memref, kind.dtype, [cx.builder.index(k)], item, span)
    _set_length(cx, made, cx.builder.index(len(items)))
    return made


def of_size(cx: Lowering, size: Operand, dtype: str, room: Operand, span: Span) -> Tensor:
    """``weft.zeros(size, dtype, most=room)``."""
    most = room.value if isinstance(room, Static) else None
    if type(most) is not int or most < 1:
        raise KernelTypeError("`most` is a constant, and at least 1", span,
                              help="write weft.zeros(n, weft.f32, most=64)")  # fmt: skip
    if most > MOST_ELEMENTS:
        raise too_large(most, span)
    made = of_items(cx, "", [], span, dtype, most)
    assert isinstance(made, Tensor)
    count = cx.scalars.index(cx.read_scalar(size, span), span)
    b = cx.builder
    low, high = (b.op("arith.cmpi", count, b.index(k), predicate=p)
                 for k, p in ((0, "sge"), (most, "sle")))  # fmt: skip
    fits = b.op("arith.andi", low, high)
    b.do("weft.assert", fits, message=f"the size of an array is not in 0..{most}, its `most`")
    zero = cx.scalars.constant(0, dtype)
    body = b.for_(b.index(0), count, b.index(1)).body
    with b.at(body):
        cx.store_element(made.memref, dtype, [body.args[0]], zero, span)
        b.do("scf.yield")
    _set_length(cx, made, count)
    return made


def like(cx: Lowering, x: Tensor | TupleList, span: Span) -> Tensor | TupleList:
    """An empty list, with room for as much as ``x`` has room for."""
    b = cx.builder
    cell = b.alloca(ir.i64, (1,))

    def array(t: Tensor) -> Tensor:
        memref = b.alloca(t.memref.memref.element, (room_of(x),))
        return replace(t, memref=memref, length=cell)

    if isinstance(x, TupleList):
        return replace(x, columns=tuple(map(array, x.columns)))
    return array(x)


def fill(cx: Lowering, x: Tensor | TupleList, items: Operand, span: Span) -> None:
    """Has ``x`` hold what ``items``, a list or a tuple, holds."""
    b, room = cx.builder, room_of(x)
    if isinstance(items, Tup):
        for k, item in enumerate(items.items):
            if isinstance(x, Tensor) and isinstance(item, Tup) and x.key:
                tuple_lists.begin_again(cx, x.key, item, span)
            _note_item(cx, x, item, span)
            _store(cx, x, b.index(k), item, span)
        _set_length(cx, x, b.index(len(items.items)))
        return
    assert isinstance(items, Tensor | TupleList)
    count = cx.scalars.index(elements.extent(cx, _first(items), 0), span)
    if room_of(items) > room:
        with b.about(span):
            fits = b.op("arith.cmpi", count, b.index(room), predicate="sle")
            message = f"{_first(x).name} is full: there is room for {room} elements"
            b.do("weft.assert", fits, message=message)
    body = b.for_(b.index(0), count, b.index(1)).body
    with b.at(body):
        item = _load(cx, items, body.args[0], span)
        _note_item(cx, x, item, span)
        _store(cx, x, body.args[0], item, span)
        b.do("scf.yield")
    _set_length(cx, x, count)


def _note_item(cx: Lowering, x: Tensor | TupleList, item: Operand, span: Span) -> None:
    if isinstance(x, Tensor):
        _check_number(item, span)
        if x.key:
            cx.widened |= cx.widen_at(x.key, item, span) != ScalarKind(x.dtype)
        if isinstance(item, Static):  # and not what was read of the list itself
            cx.empty.discard(x.key)


def _first(x: Tensor | TupleList) -> Tensor:
    """What has the length, and the room."""
    return x.columns[0] if isinstance(x, TupleList) else x


def length(cx: Lowering, x: Tensor | TupleList) -> Scalar:
    found = elements.extent(cx, _first(x), 0)
    assert isinstance(found, Scalar)
    return found


def _set_length(cx: Lowering, x: Tensor | TupleList, count: Value) -> None:
    cell = _first(x).length
    assert cell is not None
    number = cx.builder.op("arith.index_cast", count, type=ir.i64)
    cx.builder.store(number, cell, [cx.builder.index(0)])


def room_of(x: Tensor | TupleList) -> int:
    """How many elements it may have; 0 where that is not known."""
    return (_first(x).memref.memref.shape or (0,))[0]


def is_growing(x: object) -> TypeGuard[Tensor | TupleList]:
    return isinstance(x, TupleList) or (isinstance(x, Tensor) and x.length is not None)


def _load(cx: Lowering, x: Tensor | TupleList, place: Value, span: Span) -> Operand:
    if isinstance(x, TupleList):
        return tuple_lists.load(cx, x, place, span)
    return cx.load_element(x, [place], span)


def _store(cx: Lowering, x: Tensor | TupleList, place: Value, item: Operand, span: Span) -> None:
    if isinstance(x, TupleList):
        tuple_lists.store(cx, x, place, item, span)
    else:
        cx.store_element(x.memref, x.dtype, [place], item, span)


def has(method: Method) -> bool:
    return is_growing(method.receiver) and method.name in METHODS


def method(cx: Lowering, method: Method, given: list[Operand], span: Span) -> Operand:
    """``a.append(v)``, ``a.pop()``, ``a.pop(k)``, ``a.clear()``."""
    x, name = method.receiver, method.name
    if name == "append" and len(given) == 1:
        append(cx, x, given[0], span)
    elif name == "clear" and not given:
        _set_length(cx, x, cx.builder.index(0))
    elif name == "pop" and len(given) < 2:
        return _pop(cx, x, given, span)
    else:
        raise KernelTypeError(
            f"`.{name}` of a list in a device loop takes other arguments", span,
            help="there are append(v), pop(), pop(k) and clear()",
        )  # fmt: skip
    return Static(None)


def _check_number(item: Operand, span: Span) -> None:
    if dtype_of(item) is None:
        raise KernelTypeError(
            "a list that grows holds numbers", span,
            help="keep a list for each member, and append to all of them",
        )  # fmt: skip


def append(cx: Lowering, x: Tensor | TupleList, item: Operand, span: Span) -> None:
    b = cx.builder
    if isinstance(item, TupleList) or (isinstance(item, Tensor) and item.rank):
        raise KernelTypeError(
            "a list of lists whose length is known at run time", span,
            help="give it a constant one that is large enough, [[0.0] * 64 for _ in range(64)], "
            "or make a tensor in the host part",
        )  # fmt: skip
    if isinstance(item, Complex) or (isinstance(item, Static) and type(item.value) is complex):
        raise KernelTypeError(
            "a list of complex numbers whose length is known at run time", span,
            help="make an array with room for them, a = weft.zeros(64, weft.c64), and count them",
        )  # fmt: skip
    if isinstance(x, Tensor):
        if isinstance(item, Tup) and x.key:
            tuple_lists.begin_again(cx, x.key, item, span)
        item = cx.read_scalar(item, span)
        _note_item(cx, x, item, span)
    room, name = room_of(x), _first(x).name
    place = cx.scalars.index(length(cx, x), span)
    with b.about(span):
        free = b.op("arith.cmpi", place, b.index(room), predicate="slt")
        b.do("weft.assert", free, message=f"{name} is full: there is room for {room} elements")
    _store(cx, x, place, item, span)
    _set_length(cx, x, b.op("arith.addi", place, b.index(1)))


def _pop(cx: Lowering, x: Tensor | TupleList, given: list[Operand], span: Span) -> Operand:
    b = cx.builder
    count = cx.scalars.index(length(cx, x), span)
    with b.about(span):
        some = b.op("arith.cmpi", count, b.index(0), predicate="sgt")
        b.do("weft.assert", some, message=f"`pop` of {_first(x).name}, which is empty")
    last = b.op("arith.subi", count, b.index(1))
    if not given or (isinstance(given[0], Static) and given[0].value == -1):
        found = _load(cx, x, last, span)
    else:
        place = elements.subscript_of(cx, _first(x), 0, given[0], span)
        found = _load(cx, x, place, span)
        body = b.for_(place, last, b.index(1)).body
        with b.at(body):
            after = _load(cx, x, b.op("arith.addi", body.args[0], b.index(1)), span)
            _store(cx, x, body.args[0], after, span)
            b.do("scf.yield")
    _set_length(cx, x, last)
    return found


def has_some(cx: Lowering, x: Operand, span: Span) -> Scalar | Static | None:
    """The truth of a list or tuple: whether it holds something; None of anything else."""
    if is_growing(x):
        return Scalar(cx.scalars.truth(length(cx, x), span), "bool")
    if isinstance(x, Tensor) and x.listed and x.shape:
        return Static(x.shape[0] > 0)
    return Static(bool(x.items)) if isinstance(x, Tup) and x.in_order else None


def check_loop(cx: Lowering, over: ast.expr, ops: Sequence[Op]) -> None:
    """Refuses a loop over a list, which made ``ops``, that lets it grow or shrink: Python would
    look at the length in each iteration."""
    inside = [op for one in ops for region in one.regions for op in walk(region)]
    for name in _gone_over(over):
        known = cx.frame.env.get(name)
        if not is_growing(known):
            continue
        if any(written_by(op) is _first(known).length for op in inside):
            raise KernelSyntaxError(
                f"a loop over {_first(known).name} lets it grow or shrink", cx.span(over),
                help="write a `while` loop with an index, or one that pops",
            )  # fmt: skip


_COMPUTED = ("range", "len", "sorted", "list", "tuple", "sum", "min", "max", "abs", "int")


def _gone_over(node: ast.AST) -> Iterator[str]:
    """The names in what a loop goes over, but for those that are read before it begins."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Tuple() | ast.List() | ast.ListComp() | ast.BinOp():
            pass
        case ast.Subscript(slice=ast.Slice()) | ast.Call(func=ast.Attribute(attr="copy")):
            pass
        case ast.Call(func=ast.Name(id=name)) if name in _COMPUTED:
            pass
        case _:
            for child in children(node):
                yield from _gone_over(child)
