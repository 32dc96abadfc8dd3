"""What Python's lists have besides elements and growth: methods, slices, ``+``, ``*``, ``in`` and
comparisons, by functions in the language (``lang/lists.py``). What makes a list makes one that
grows."""

from __future__ import annotations

import ast

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import casts, growing, named, refused, rows, sequences, tuple_lists
from weft.frontend.context import STATEMENTS, Lowering
from weft.frontend.kinds import (
    Method,
    Operand,
    Range,
    Static,
    Tensor,
    Tup,
    TupleList,
    describe,
    dtype_of,
    of_lists,
)
from weft.frontend.names import bound_names
from weft.frontend.signatures import bind
from weft.lang import lists
from weft.lang.growing import ROOM

_TAKES: dict[str, tuple[str, ...]] = {
    "extend": ("iterable -",), "insert": ("index -", "value -"), "remove": ("value -",),
    "index": ("value -",), "count": ("value -",), "copy": (), "reverse": (),
    "sort": ("*", "key =", "reverse ="), "popleft": (), "appendleft": ("value -",),  # of deques
}  # fmt: skip


def is_list(x: object) -> bool:
    """Whether ``x`` is a list of Python's: an array of the iteration that is no tensor."""
    listed = isinstance(x, Tensor) and x.listed and bool(x.key) and x.rank == 1
    return listed or growing.is_growing(x)


def refuse_nested(x: Operand, what: str, span: Span) -> None:
    """Refuses ``what`` of a list of lists, or of a list in one."""
    if of_lists(x):
        raise KernelTypeError(
            f"{what} of a list in a list, or of a list of lists", span,
            help="work on its elements, t[i][j]; torch.zeros((n, m)) makes rows that have "
            "arithmetic, slices and torch's methods",
        )  # fmt: skip


def has(method: Method) -> bool:
    x, name = method.receiver, method.name
    plain = isinstance(x, Tup) and not x.names and name in ("copy", "count", "index")
    return plain or (is_list(x) and name in _TAKES)


def method(
    cx: Lowering, method: Method, given: list[Operand], by_name: dict[str, Operand], span: Span
) -> Operand:  # fmt: skip
    """A call of a method of a list."""
    x, name = method.receiver, method.name
    key, falls = by_name.pop("key", Static(None)), by_name.pop("reverse", Static(False))
    others = name != "sort" and not all(isinstance(v, Static) and not v.value for v in (key, falls))
    if others:
        raise KernelTypeError(f"`.{name}` takes no `key` and `reverse`", span,
                              help="leave them out")  # fmt: skip
    given = bind(_TAKES[name], f".{name}", given, by_name, span)
    if name == "sort":
        if given:
            raise KernelTypeError("`.sort` takes its arguments by name", span,
                                  help="write .sort(key=..., reverse=...)")  # fmt: skip
        given = [key, falls]
    if isinstance(x, Tup):
        if name == "copy":
            return Tup(list(x.items))
        x = copied(cx, [x], span)
    if name == "copy":
        return copied(cx, [x], span)
    if name == "extend":
        extend(cx, x, given[0], span)
        return Static(None)
    function = {"index": lists.place}.get(name) or getattr(lists, name)
    return named.inlined(cx, function, [x, *given], span)


def extend(cx: Lowering, x: Tensor | TupleList, items: Operand, span: Span) -> None:
    """``x.extend(items)``, ``x += items``."""
    known = casts.static_items(items)
    if known is not None:
        for item in known:
            growing.append(cx, x, item, span)
    elif is_list(items):
        named.inlined(cx, lists.extend, [x, items], span)
    elif sequences.items(cx, items, span) is not None:
        named.inlined(cx, lists.gather, [x, sequences.of_elements(cx, items)], span)
    else:
        raise KernelTypeError(f"a list takes the items of {describe(items)}", span,
                              help="append to it, or write a loop over its elements")  # fmt: skip


def new(cx: Lowering, most: int, span: Span) -> Tensor | TupleList:
    """An empty list that no name makes. One that gets the name of a list that grows has room to."""
    if isinstance(cx.statement, ast.Assign):
        names = {name for target in cx.statement.targets for name in bound_names(target)}
        most = max(most, ROOM) if names & cx.frame.grown else most
    return growing.of_items(cx, f"of {span.line}:{span.column}", [], span, room=most)


def copied(cx: Lowering, parts: list[Operand], span: Span) -> Tensor | TupleList:
    """A new list of the items of ``parts``: lists, tuples, rows and ranges."""
    made = new(cx, sum(map(room, parts)), span)
    for x in parts:
        extend(cx, made, x, span)
    return made


def room(x: Operand) -> int:
    """How many elements ``x`` may have."""
    known = casts.static_items(x)
    if known is not None:
        return max(len(known), 1)
    if isinstance(x, Tensor | TupleList) and is_list(x):
        return growing.room_of(x) or ROOM
    return ROOM


def binary(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a + b`` and ``a * n`` where one of the two is a list."""
    if symbol == "+" and all(is_list(x) or isinstance(x, Tup) for x in (a, b)):
        return copied(cx, [a, b], span)
    items, times = (a, b) if is_list(a) else (b, a)
    if symbol == "*" and dtype_of(times) in ("int", "i64", "i32", "bool"):
        count = times.value if isinstance(times, Static) else None
        most = room(items) * max(count, 1) if isinstance(count, int) else max(ROOM, room(items))
        made = new(cx, most, span)
        named.inlined(cx, lists.repeat, [made, items, times], span)
        return made
    raise KernelTypeError(
        f"`{symbol}` of {describe(a)} and {describe(b)}", span,
        help="lists have `+` of two lists and `*` by an int; for arithmetic write the loop, or use "
        "a weft.Vector or torch.zeros(n)",
    )  # fmt: skip


def item(cx: Lowering, x: Operand, node: ast.expr, span: Span) -> Operand:
    """``x[k]`` of a list of tuples, ``x[start:stop:step]`` of any list."""
    if isinstance(node, ast.Slice):
        return part(cx, x, node, span)
    assert isinstance(x, TupleList)
    return tuple_lists.load(cx, x, tuple_lists.place(cx, x, cx.expression(node), span), span)


def part(cx: Lowering, x: Operand, node: ast.Slice, span: Span) -> Operand:
    """``x[start:stop:step]``: a copy."""
    return _part(cx, x, _bounds(cx, node), span)


def part_of_tuple(cx: Lowering, x: Tup, node: ast.Slice, span: Span) -> Operand | None:
    """The same of a tuple, or of a list that is one: a list where a bound is known at run time
    only. None of such a part of what are not numbers."""
    bounds = _bounds(cx, node)
    known = [b.value for b in bounds if isinstance(b, Static)]
    if len(known) == len(bounds):
        if known[2] == 0 or any(k is not None and type(k) is not int for k in known):
            raise KernelTypeError("a tuple is sliced by integers, by steps other than 0", span,
                                  help="write a[1:3]")  # fmt: skip
        return Tup(x.items[slice(*known)])
    if not x.items or not all(map(dtype_of, x.items)):
        return None
    return _part(cx, copied(cx, [x], span), bounds, span)


def _bounds(cx: Lowering, node: ast.Slice) -> list[Operand]:
    parts = ((node.lower, None), (node.upper, None), (node.step, 1))
    return [Static(default) if p is None else cx.expression(p) for p, default in parts]


def _part(cx: Lowering, x: Operand, bounds: list[Operand], span: Span) -> Operand:
    made = new(cx, room(x), span)
    named.inlined(cx, lists.part, [made, x, *bounds], span)
    return made


def put(cx: Lowering, x: Operand, node: ast.Slice, new: Operand, span: Span) -> None:
    """``x[start:stop] = new``."""
    if node.step is not None or not growing.is_growing(x):
        raise KernelTypeError(
            "a store into a slice of a list" + " with a step" * (node.step is not None), span,
            help="write a loop over its elements",
        )  # fmt: skip
    start, stop = (
        Static(None) if p is None else cx.expression(p) for p in (node.lower, node.upper)
    )
    named.inlined(cx, lists.put, [x, start, stop, copied(cx, [new], span)], span)


def contains(cx: Lowering, x: Operand, value: Operand, span: Span) -> Operand:
    """``value in x``."""
    return named.inlined(cx, lists.contains, [x, value], span)


def compare(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a == b`` and ``a != b`` where one of the two is a list."""
    if symbol not in ("==", "!="):
        raise KernelTypeError(f"`{symbol}` of lists", span, help="compare their elements")
    sides: list[Operand] = []
    for x in (a, b):
        if not is_list(x) and not isinstance(x, Tup):
            raise KernelTypeError(f"a list is compared with {describe(x)}", span,
                                  help="compare two lists")  # fmt: skip
        sides.append(x if is_list(x) else copied(cx, [x], span))
    same = named.inlined(cx, lists.equal, sides, span)
    if symbol == "==":
        return same
    return cx.scalars.negation(cx.read_number(same, span), span)  # type: ignore[arg-type]


def ordered(
    cx: Lowering, x: Operand, key: Operand | None, falls: Operand | None, span: Span
) -> Operand:  # fmt: skip
    """``sorted(x, key=, reverse=)`` of a list, or of what a list can be made of."""
    made = copied(cx, [x], span)
    named.inlined(cx, lists.sort, [made, key or Static(None), falls or Static(False)], span)
    return made


def spread(cx: Lowering, x: Operand, span: Span) -> list[Operand]:
    """The items of ``*x`` in a tuple."""
    known = casts.known_items(x)
    if known is None and isinstance(x, Tensor) and x.listed and x.shape and len(x.shape) == 1:
        return [cx.load_element(x, [cx.builder.index(k)], span) for k in range(x.shape[0])]
    if known is None:
        raise KernelTypeError(
            f"a tuple of all that {describe(x)} holds, whose number is not known", span,
            help="make a list: list(range(n)) + [b]"
            if isinstance(x, Range)
            else "make a list: [*a, b]",
        )  # fmt: skip
    return known


def extreme(cx: Lowering, name: str, given: list[Operand], node: ast.Call) -> Operand | None:
    """``max(items, key=f, default=v)``, and ``max`` of tuples; None of another call."""
    options = {k.arg: k.value for k in node.keywords}
    items = given[0] if len(given) == 1 else Tup(given)
    known = casts.static_items(items)
    tuples = known is not None and all(isinstance(x, Tup) and x.in_order for x in known)
    if not options and not isinstance(items, TupleList) and not (known and tuples):
        return None
    key = cx.expression(options["key"]) if "key" in options else Static(None)
    if "default" not in options:
        return extreme_of(cx, items, key, name, cx.span(node))
    if known is not None:
        items = copied(cx, [Tup(known)], cx.span(node))
    given = [sequences.of_elements(cx, items), key, Static(name == "max")]
    default = cx.expression(options["default"])
    return named.inlined(cx, lists.extreme_or, [*given, default], cx.span(node))


def extreme_of(cx: Lowering, x: Operand, key: Operand, name: str, span: Span) -> Operand:
    """``max(x, key=key)`` or ``min``, by its ``name``: the first item that none is beyond."""
    known = casts.static_items(x)
    if known is not None:
        x = copied(cx, [Tup(known)], span)
    items = sequences.items(cx, x, span)
    if items is None:
        raise KernelTypeError(f"`{name}` of {describe(x)}", span,
                              help="give it a list, a row or a tuple")  # fmt: skip
    rows.require_some(cx, items.count, f"`{name}` of no items", span)
    return named.inlined(
        cx, lists.extreme, [items.item(Static(0)), items, key, Static(name == "max")], span
    )


def delete(cx: Lowering, node: ast.Delete) -> None:
    """``del a[k]``."""
    for target in node.targets:
        span = cx.span(target)
        x = cx.expression(target.value) if isinstance(target, ast.Subscript) else None
        if not growing.is_growing(x) or not isinstance(target, ast.Subscript):
            raise KernelSyntaxError(refused.STATEMENTS[ast.Delete][0], span,
                                    help=refused.STATEMENTS[ast.Delete][1])  # fmt: skip
        if isinstance(target.slice, ast.Slice):
            raise KernelTypeError("`del` of a slice of a list", span,
                                  help="make a new list: a = a[:k] + a[n:]")  # fmt: skip
        named.inlined(cx, lists.delete, [x, cx.expression(target.slice)], span)


STATEMENTS[ast.Delete] = delete
