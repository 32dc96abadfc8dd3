"""Generators in ``sum``, ``min``, ``max``, ``any`` and ``all``, and comprehensions of a length that
is known at compile time.

A generator of one ``for`` and no ``if`` is a row: a function from an index to an item. Others
become the statements that they stand for. Names that a comprehension assigns are its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import KernelSyntaxError, Span
from weft.frontend import casts, expressions, list_methods, objects, sequences, tuple_lists
from weft.frontend.as_statements import (
    ChangedInPartError,
    Other,
    carried_out,
    carry_out,
    get,
    put,
    tried,
)
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.kinds import (
    Items,
    Operand,
    Row,
    Scalar,
    Static,
    Tup,
    TupleList,
    describe,
)
from weft.frontend.names import bound_names
from weft.frontend.scope import assigning, stands
from weft.ir import types as ir
from weft.ir.core import Block, Value, walk
from weft.ir.views import written_by
from weft.lang.growing import ROOM
from weft.source import copied_tree, subtree

MOST_ITEMS = 256  # of a comprehension, which is written out
_Comprehension = ast.GeneratorExp | ast.ListComp | ast.SetComp


class _Elements(ast.expr):
    """What a loop of a comprehension goes over: of a whole tensor its elements, or rows, as Python
    does, where a ``for`` statement goes over subscripts."""

    _fields = ("value",)
    value: ast.expr


def going_over(value: ast.expr) -> _Elements:
    made = _Elements()
    made.value = value
    return made


def _elements(cx: Lowering, node: _Elements) -> Operand:
    return sequences.of_elements(cx, cx.expression(node.value))


EXPRESSIONS[_Elements] = _elements  # pyright: ignore[reportArgumentType]


class _ZeroOf(ast.expr):
    """What a name is before it is an item of the list that another name stands for."""

    _fields = ("value",)
    value: ast.Name


def _zero_of(cx: Lowering, node: _ZeroOf) -> Operand:
    over = cx.expression(node.value)
    return tuple_lists.zero(over) if isinstance(over, TupleList) else Static(0)


EXPRESSIONS[_ZeroOf] = _zero_of  # pyright: ignore[reportArgumentType]


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id not in self.names:
            return node
        return ast.copy_location(ast.Name(self.names[node.id], node.ctx), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """Its parameters are its own in its body, and not in their defaults."""
        self.visit(node.args)
        outside, own = self.names, {a.arg for a in subtree(node.args) if isinstance(a, ast.arg)}
        self.names = {k: v for k, v in outside.items() if k not in own}
        node.body = self.visit(node.body)
        self.names = outside
        return node


def own(node: _Comprehension) -> _Comprehension:
    """A copy of ``node`` whose own names are no others'. What it first goes over is read outside of
    it."""
    found: _Comprehension | None = getattr(node, "weft_own", None)
    if found is None:
        targets = (g.target for g in node.generators)
        own = {name: f"{name} {node.lineno}:{node.col_offset}"
               for target in targets for name in bound_names(target)}  # fmt: skip
        first = node.generators[0].iter
        found = _Renaming(own).visit(copied_tree(node))
        assert found is not None
        found.generators[0].iter = first
        stands(node, "weft_own", found)
    return found


def _own(cx: Lowering, node: _Comprehension) -> _Comprehension:
    """Likewise, of one that is lowered here."""
    made = own(node)
    cx.frame.targets.update(n for g in made.generators for n in bound_names(g.target))
    return made


_OF_GENERATORS = ("sum", "min", "max", "any", "all", "next")


def of_generator(cx: Lowering, name: str | None, node: ast.Call) -> Operand | None:
    """``sum(... for ...)`` and the like; None of another call."""
    if name not in _OF_GENERATORS or not node.args or not isinstance(node.args[0], _Comprehension):
        return None
    if name in ("min", "max") and any(k.arg == "key" for k in node.keywords):
        return _by_key(cx, name, node.args[0], node)
    allowed = {"sum": "start", "min": "default", "max": "default"}.get(name, "")
    by_place = node.args[1:] if name in ("sum", "next") else []
    start = [*by_place, *(k.value for k in node.keywords if k.arg == allowed)]
    others = len(node.args) + len(node.keywords) - 1
    is_tuple = name in ("min", "max") and isinstance(node.args[0].elt, ast.Tuple)
    if others > (0 if name in ("any", "all") or is_tuple else 1) or len(start) != others:
        raise KernelSyntaxError(
            f"`{name}` of a generator takes nothing else in a device loop", cx.span(node),
            help="write the loop",
        )  # fmt: skip
    made, span = _own(cx, node.args[0]), cx.span(node)
    if name in ("min", "max") and isinstance(made.elt, ast.Tuple):
        return _extreme_tuple(cx, made, name, span)
    plain = name == "sum" or (name in ("min", "max") and not start)
    if (
        plain and len(made.generators) == 1 and not made.generators[0].ifs
        and not _names_something(made.elt)  # a row does not know what its loops carry on
    ):  # fmt: skip
        with tried(cx):
            try:
                row = _as_row(cx, made, span)
                if row is None:
                    raise Other
                if name != "sum" and _acts(cx, lambda k: row.at([k]), made.elt):  # an item twice
                    raise Other
                if name == "sum":
                    first = cx.expression(start[0]) if start else Static(0)
                    return sequences.total(cx, row, first, span)
                return sequences.extreme(cx, row, "<" if name == "min" else ">", span)
            except ChangedInPartError:  # which statements may
                raise Other from None
    return _in_statements(cx, name, made, start, node)


def _extreme_tuple(cx: Lowering, node: _Comprehension, name: str, span: Span) -> Operand:
    """The greatest or least of the tuples of a generator."""
    with tried(cx):
        try:
            items = _tuples(cx, node)
            if isinstance(items, Items) and _acts(cx, items.item, node.elt):  # the first is twice
                raise Other
            return list_methods.extreme_of(cx, items, Static(None), name, span)
        except ChangedInPartError:
            raise Other from None
    return list_methods.extreme_of(cx, cx.expression(_listed(node)), Static(None), name, span)


def _by_key(cx: Lowering, name: str, items: _Comprehension, node: ast.Call) -> Operand:
    """``max(... for ..., key=f)``. Of a list all items are made before ``f`` is called; of a
    generator it is called for each as soon as that is made, which is the same where it only
    computes."""
    options = {k.arg: k.value for k in node.keywords}
    at_once = isinstance(items, ast.ListComp) or _computes(options["key"])
    if not at_once and len(node.args) == 1 and options.keys() <= {"key", "default"}:
        start = [options["default"]] if "default" in options else []
        return _in_statements(cx, name, _own(cx, items), start, node, options["key"])
    listed = items if isinstance(items, ast.ListComp) else _listed(items)
    found = list_methods.extreme(cx, name, [cx.expression(listed)], node)
    assert found is not None  # it has a key
    return found


_COMPUTE = ("abs", "len", "min", "max", "float", "int", "round", "bool")


def _computes(key: ast.expr) -> bool:
    """Whether a function surely changes nothing: a builtin, or a lambda that calls no others."""
    if isinstance(key, ast.Lambda):
        called = [n.func for n in subtree(key) if isinstance(n, ast.Call)]
        return all(isinstance(f, ast.Name) and f.id in _COMPUTE for f in called)
    return isinstance(key, ast.Name) and key.id in _COMPUTE


def _zero(item: ast.expr) -> ast.expr:
    """What a name is before it is an item that is written like this."""
    if isinstance(item, ast.Tuple):
        return ast.Tuple([_zero(part) for part in item.elts], ast.Load())
    return ast.Constant(0)


def _names_something(item: ast.expr) -> bool:
    return any(isinstance(n, ast.NamedExpr) for n in assigning(item))


def _acts(cx: Lowering, at: Callable[[Scalar], Operand], item: ast.expr) -> bool:
    """Whether to compute an ``item``, which ``at`` makes, does more than that: it stores, prints or
    draws."""
    if not any(isinstance(n, ast.Call) for n in subtree(item)):
        return False
    block = Block()
    with cx.builder.at(block):
        at(Scalar(Value(ir.index), "int"))
    return any(op in cx.draws or op.name == "weft.print" or written_by(op) for op in walk(block))


def _as_row(cx: Lowering, node: _Comprehension, span: Span) -> Row | None:
    (generator,) = node.generators
    found = _items(cx, generator.iter)
    if found is None:
        return None

    def at(place: list[Scalar | Static]) -> Operand:
        cx.bind(generator.target, found.item(place[0]), span)
        x = cx.expression(node.elt)
        return x if isinstance(x, Static) else cx.read_number(x, span)

    return Row([found.count], at)


def _tuples(cx: Lowering, node: _Comprehension) -> Operand:
    """The items of a generator of tuples: one by one, or a list of those that pass its tests."""
    (generator, *others), over = node.generators, None
    if not others and not generator.ifs and not _names_something(node.elt):
        over = _items(cx, generator.iter)
    if over is None:
        return cx.expression(_listed(node))

    def item(k: Scalar | Static) -> Operand:
        cx.bind(generator.target, over.item(k), cx.span(generator.target))
        return cx.expression(node.elt)

    return Items(over.count, _within(cx, item))


def _listed(node: _Comprehension) -> ast.ListComp:
    """The list of the items."""
    made: ast.ListComp | None = getattr(node, "weft_listed", None)
    if made is None:
        made = ast.copy_location(ast.ListComp(node.elt, node.generators), node)
        stands(node, "weft_listed", made)
    return made


def lazily(cx: Lowering, node: ast.GeneratorExp) -> Items | None:
    """The items of a generator of one ``for`` and no ``if``, each computed where it is asked for;
    None where they are known one by one."""
    made = _own(cx, node)
    (generator,) = made.generators
    found = _items(cx, generator.iter)
    if found is None:
        return None

    def item(k: Scalar | Static) -> Operand:
        cx.bind(generator.target, found.item(k), cx.span(generator.target))
        return cx.expression(made.elt)

    return Items(found.count, _within(cx, item))


def _within(cx: Lowering, item: Callable[[Any], Operand]) -> Callable[[Any], Operand]:
    """``item``, which may be asked for where a function is inlined, with the names of where it was
    written. There it is a part of a statement."""
    frame = cx.frame

    def within(k: Any) -> Operand:
        if cx.frame is frame:
            return item(k)
        inner, outer = cx.frame, frame.in_part
        cx.frame, frame.in_part = frame, True
        try:
            return item(k)
        finally:
            cx.frame, frame.in_part = inner, outer

    return within


def _items(cx: Lowering, node: ast.expr) -> Items | None:
    """What a comprehension goes over, where it has a number of items that is known at run time;
    None where it has not, and nothing has been lowered."""
    with tried(cx):
        over = cx.expression(node)
        found = None
        if casts.static_items(over) is None:
            found = sequences.items(cx, over, cx.span(node))
        if found is None:
            raise Other
        return found
    return None


def _in_statements(
    cx: Lowering, name: str, node: _Comprehension, start: Sequence[ast.expr], at: ast.Call,
    key: ast.expr | None = None,
) -> Operand:  # fmt: skip
    """The loops and branches that a generator stands for, around what is done with each item."""
    words = "found", "some", "item", "rank", "best", "key"
    names = [f"{word} {at.lineno}:{at.col_offset}" for word in words]
    found, some, item, rank, best, by = names
    test = {"any": node.elt, "all": ast.UnaryOp(ast.Not(), node.elt)}.get(name)
    # What ends the loops early, where it holds.
    done = {"any": get(found), "all": ast.UnaryOp(ast.Not(), get(found)), "next": get(some)}
    over = done.get(name)
    if test is not None:
        leave: list[ast.stmt] = [put(found, ast.Constant(name == "any")), ast.Break()]
        body: list[ast.stmt] = [ast.If(test, leave, [])]
        begin: list[ast.stmt] = [put(found, ast.Constant(name == "all"))]
    elif name == "next":
        body = [put(found, node.elt), put(some, ast.Constant(True)), ast.Break()]
        first = start[0] if start else ast.Constant(0)
        begin = [put(some, ast.Constant(False)), put(found, first)]
    elif name == "sum":
        body = [put(found, ast.BinOp(get(found), ast.Add(), node.elt))]
        begin = [put(found, start[0] if start else ast.Constant(0))]
    else:
        mine, before = (item, found) if key is None else (rank, best)
        beyond = ast.Compare(get(mine), [ast.Lt() if name == "min" else ast.Gt()], [get(before)])
        new = ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), get(some)), beyond])
        taken, ranked = [put(found, get(item))], list[ast.stmt]()
        begin = [put(some, ast.Constant(False)), put(found, _zero(node.elt))]
        if key is not None:
            taken.append(put(best, get(rank)))
            ranked = [put(rank, ast.Call(get(by), [get(item)], []))]
            begin += [put(best, ast.Constant(0)), put(by, key)]
        body = [
            put(item, node.elt), *ranked, ast.If(new, taken, []), put(some, ast.Constant(True)),
        ]  # fmt: skip
    for generator in reversed(node.generators):
        for condition in reversed(generator.ifs):
            body = [ast.If(condition, body, [])]
        loop = ast.For(generator.target, going_over(generator.iter), body, [])
        body = [loop]
        if over is not None:
            body.append(ast.If(over, [ast.Break()], []))
    statements = [*begin, body[0]]
    if name in ("min", "max") and start:
        none = ast.UnaryOp(ast.Not(), get(some))
        statements.append(ast.If(none, [put(found, start[0])], []))
    elif name in ("min", "max", "next") and not start:
        statements.append(ast.Assert(get(some), ast.Constant(f"`{name}` of no items")))
    return carried_out(cx, statements, names, at)


def known_items(cx: Lowering, node: ast.expr) -> list[Operand] | None:
    """The items of ``node``; None where their number is known at run time only, and nothing has
    been lowered."""
    with tried(cx):
        items = casts.static_items(sequences.of_elements(cx, cx.expression(node)))
        if items is None:
            raise Other
        return items
    return None


def folded(
    cx: Lowering, at: ast.Call, function: ast.expr | ast.operator, over: ast.expr,
    start: Sequence[ast.expr],
) -> Operand:  # fmt: skip
    """``functools.reduce(function, over, *start)``, as the loop that it stands for."""
    mark = f"{at.lineno}:{at.col_offset}"
    found, some, item = (f"{word} {mark}" for word in ("found", "some", "item"))
    given = get(found), get(item)
    made = (
        ast.BinOp(given[0], function, given[1])
        if isinstance(function, ast.operator)
        else ast.Call(function, [*given], [])
    )
    more = put(found, made)
    none = _zero(over.elt) if isinstance(over, _Comprehension) else ast.Constant(0)
    if isinstance(over, ast.Name):
        none = _ZeroOf()
        none.value = over
    begin = [put(found, start[0] if start else none)]
    body, end = [more], list[ast.stmt]()
    if not start:
        begin.append(put(some, ast.Constant(False)))
        body = [
            ast.If(get(some), [more], [put(found, get(item))]),
            put(some, ast.Constant(True)),
        ]
        end = [ast.Assert(get(some), ast.Constant("`functools.reduce` of no items"))]
    loop = ast.For(ast.Name(item, ast.Store()), going_over(over), body, [])
    return carried_out(cx, [*begin, loop, *end], (found, some, item), at)


def written_out(cx: Lowering, node: _Comprehension) -> list[Operand] | None:
    """The items of a comprehension over what is known at compile time; None of another one."""
    with tried(cx):
        return _written_out(cx, node)
    return None


def listed(cx: Lowering, node: _Comprehension) -> Operand:
    """A comprehension: written out, or, where its length is known at run time only, a list that
    grows."""
    items = written_out(cx, node)
    return _in_loops(cx, node) if items is None else Tup(items)


def _in_loops(cx: Lowering, node: _Comprehension) -> Operand:
    """A list that the loops append to which a comprehension stands for."""
    made, span = _own(cx, node), cx.span(node)
    found = f"made {node.lineno}:{node.col_offset}"
    most = ROOM
    if len(made.generators) == 1:
        with tried(cx):
            most = list_methods.room(cx.expression(made.generators[0].iter))
            raise Other
    cx.frame.env[found] = list_methods.new(cx, most, span)
    append = ast.Attribute(get(found), "append", ast.Load())
    body: list[ast.stmt] = [ast.Expr(ast.Call(append, [made.elt], []))]
    for generator in reversed(made.generators):
        for condition in reversed(generator.ifs):
            body = [ast.If(condition, body, [])]
        body = [ast.For(generator.target, going_over(generator.iter), body, [])]
    carry_out(cx, body, node)
    return cx.frame.env[found]


def _written_out(cx: Lowering, node: _Comprehension) -> list[Operand]:
    made, items = _own(cx, node), list[Operand]()
    turns = cx.frame.turns

    def level(k: int) -> None:
        if k == len(made.generators):
            cx.frame.turns = (*turns, len(items))
            items.append(cx.expression(made.elt))
            del cx.pending[cx.begin :]  # what changes is renewed
            if len(items) > MOST_ITEMS:
                raise _too_long(f"of more than {MOST_ITEMS} items", node, cx)
            return
        generator = made.generators[k]
        for item in _fixed(cx, generator.iter, node):
            cx.frame.turns = (*turns, len(items))
            item = objects.renewed(cx, item)
            cx.bind(generator.target, item, cx.span(generator.target))
            tests = [expressions.test(cx, condition) for condition in generator.ifs]
            if not all(isinstance(t, Static) for t in tests):
                raise Other
            if all(t.value for t in tests):
                level(k + 1)

    cx.frame.changed_objects, changed = set(), cx.frame.changed_objects
    try:
        level(0)
    finally:
        items = [objects.renewed(cx, item) for item in items]
        cx.frame.turns = turns
        cx.frame.changed_objects |= changed
    return items


def _fixed(cx: Lowering, node: ast.expr, at: _Comprehension) -> list[Operand]:
    over = cx.expression(node)
    del cx.pending[cx.begin :]  # what changes is renewed
    known = casts.static_items(over)
    if known is not None:
        return known
    found = sequences.items(cx, over, cx.span(node))
    if found is None:
        raise KernelSyntaxError(f"a comprehension over {describe(over)}", cx.span(node),
                                help="go over a range, a tuple or a row")  # fmt: skip
    if not isinstance(found.count, Static):
        raise Other
    return [found.item(Static(k)) for k in range(found.count.value)]


def _too_long(what: str, node: _Comprehension, cx: Lowering) -> KernelSyntaxError:
    return KernelSyntaxError(
        f"a comprehension {what}", cx.span(node),
        help="use a generator in sum, min, max, any or all, or a tensor of the host part",
    )  # fmt: skip


EXPRESSIONS[ast.ListComp] = listed
