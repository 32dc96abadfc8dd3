"""Expressions of a kernel, from syntax tree to operands and IR."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from weft.errors import KernelIndexError, KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    aggregates,
    as_statements,
    casts,
    choices,
    complexes,
    elements,
    from_end,
    growing,
    list_methods,
    lists,
    named,
    overflow,
    row_attributes,
    row_order,
    rows,
    slices,
    tuple_lists,
)
from weft.frontend.context import EXPRESSIONS, Lowering, want
from weft.frontend.kinds import (
    Complex,
    Keywords,
    Method,
    OpaqueKind,
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    TupleList,
    Varying,
    Vec,
    describe,
    dtype_of,
    flatten,
    kind_of,
    same_operand,
)
from weft.frontend.names import dotted, is_known_module
from weft.frontend.room import roomy
from weft.frontend.scope import ABSENT, Guard, answered, assigning, place_of
from weft.frontend.specs import vector_entries
from weft.ir.core import Block, Op, Value
from weft.lang import absent, names
from weft.lang.elements import Elementwise

BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.MatMult: "@",
}  # fmt: skip


def binary(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    found: Operand | None = casts.of_sets(symbol, a, b)
    if named.has_members(a) or named.has_members(b):
        found = named.binary(cx, symbol, a, b, span, binary)
    if found is not None:
        return found
    for x in (a, b):
        list_methods.refuse_nested(x, f"`{symbol}`", span)
    if list_methods.is_list(a) or list_methods.is_list(b):
        return list_methods.binary(cx, symbol, a, b, span)
    if rows.is_row(a) or rows.is_row(b):
        return _of_rows(cx, symbol, a, b, span)
    if isinstance(a, Vec) or isinstance(b, Vec):
        return aggregates.binary(cx, symbol, a, b, span)
    many = [x for x in (a, b) if isinstance(x, Tup) and x.in_order]
    if symbol == "*" and len(many) == 1:
        return lists.repeated(cx, many[0], b if a is many[0] else a, span)
    if symbol == "+" and len(many) == 2:
        return Tup([*many[0].items, *many[1].items])
    if symbol == "@":
        raise KernelTypeError(
            "`@` needs rows of tensors, small vectors or matrices",
            span,
            help="write the loop of the product over the tensors' elements",
        )
    x, y = cx.read_number(a, span), cx.read_number(b, span)
    return overflow.arithmetic(cx, symbol, x, y, span)


def _of_rows(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a symbol b`` where one of the two is a row."""
    if symbol != "@":
        return rows.elementwise(
            cx, lambda x: overflow.arithmetic(cx, symbol, x[0], x[1], span), [a, b], span
        )
    left, right = rows.of(cx, a), rows.of(cx, b)
    if left is None or right is None:
        other = a if left is None else b
        raise KernelTypeError(f"`@` of a row and {describe(other)}", span,
                              help="multiply two rows, or a row and a tensor")  # fmt: skip
    return rows.product(cx, left, right, span)


def no_operator(name: str, span: Span) -> NoReturn:
    raise KernelSyntaxError(
        f"the operator `{name}` cannot be compiled", span, help="use another one"
    )


# --- attributes -------------------------------------------------------------------------------
def attribute(cx: Lowering, x: Operand, name: str, span: Span) -> Operand:
    """``x.name``."""
    list_methods.refuse_nested(x, f"`.{name}`", span)
    if isinstance(x, Static):
        owner, source, known = x.value, x.read, is_known_module(x.value)
        if isinstance(owner, dict) and name in named.OF_DICTS:
            items = [_constant_item(cx, x, Static(key), span) for key in owner]
            return Method(Tup(items, tuple(owner), dict), name)
        value = names.member(owner, name, ABSENT) if known else getattr(owner, name, ABSENT)
        if value is ABSENT:
            package = getattr(owner, "__name__", "").partition(".")[0]
            lacking = absent.ABSENT.get(name)
            if package == "weft" and lacking is not None:
                raise KernelTypeError(
                    f"weft has no {lacking[0]}: `{name}`", span,
                    help=f"{lacking[1]}; {absent.PAGE} says what there is",
                )  # fmt: skip
            raise KernelTypeError(f"{describe(x)} has no attribute `{name}`", span,
                                  help="check the spelling")  # fmt: skip
        where = place_of(owner, x.key, name)
        if isinstance(value, torch.Tensor) or where in cx.region.varying:
            # None of an object of another class, at a later call, whose loop does not ask for it.
            read = lambda args: getattr(source(args) if source else owner, name, None)  # noqa: E731
            return cx.reached(name, Static(value, where, read))
        if not known:
            cx.guards.append(Guard(owner, name, value, where=where))
        if isinstance(value, Elementwise):
            return vector(value)
        if x.key and source:
            return Static(value, (*x.key, name), lambda args: getattr(source(args), name, None))
        return Static(value)
    if isinstance(x, Tensor):
        if name == "shape":
            count = x.lattice if x.of_field else x.rank
            return Tup([elements.extent(cx, x, k) for k in range(count)])
        if name == "ndim":
            return Static(x.rank)
        if name == "dtype":
            return Static((casts.complex_object if x.pair else casts.dtype_object)(x.dtype))
        if name in ("n", "m") and x.element:
            return Static((*x.element, 1)["nm".index(name)])
        if x.pair and not x.rank:
            return attribute(cx, cx.read_number(x, span), name, span)
        return Method(x, name)
    if isinstance(x, Complex):
        if name == "dtype":
            return Static(casts.complex_object(x.dtype))
        return x.real if name == "real" else x.imag if name == "imag" else Method(x, name)
    if isinstance(x, Vec):
        found = aggregates.get_attribute(cx, x, name, span)
        return found if found is not None else Method(x, name)
    if isinstance(x, Scalar):
        if name == "dtype":
            return Static(casts.dtype_object(x.dtype))
        return x if name == "real" else Method(x, name)
    if isinstance(x, TupleList) or list_methods.has(Method(x, name)):
        return Method(x, name)
    if isinstance(x, Tup) and (found := named.member(cx, x, name, span)) is not None:
        return found
    row = rows.of(cx, x)
    if row is not None:
        found = row_attributes.attribute(cx, row, name, span)
        return Method(x, name) if found is None else found
    help = "check the spelling"
    if isinstance(x, Tup) and x.struct is dict:
        help = 'it has d["a"], len(d), `in` and loops over its keys'
    elif isinstance(x, Tup) and name in growing.CHANGING:
        help = ("a list of the host part stays as it is in a loop whose iterations run at once: "
                "store into a tensor, or make the list in the loop")  # fmt: skip
    raise KernelTypeError(f"{describe(x)} has no attribute `{name}`", span, help=help)


# --- nodes --------------------------------------------------------------------------------------
def _constant(cx: Lowering, node: ast.Constant) -> Operand:
    return Static(node.value)


def _name(cx: Lowering, node: ast.Name) -> Operand:
    cx.frame.check_assigned(node)
    want(cx, node.id)
    found = cx.frame.lookup(node.id, cx.span(node), cx.guards)
    if isinstance(found, Row | Tup):
        row_order.used(cx, found, f"`{node.id}`", cx.span(node))
        return found
    if isinstance(found, Varying) or not isinstance(found, Static):
        return elements.vector_of(cx, found, cx.span(node))
    if isinstance(found.value, torch.Tensor) or found.key in cx.region.varying:
        cx.guards = [g for g in cx.guards if g.where != found.key or not found.key]
        return cx.reached(node.id, found)
    return vector(found.value) if isinstance(found.value, Elementwise) else found


def vector(value: Elementwise) -> Vec:
    """A ``weft.Vector`` or ``weft.Matrix`` that is known at compile time."""
    return Vec([Static(entry) for entry in vector_entries(value)], value.shape)


def _attribute(cx: Lowering, node: ast.Attribute) -> Operand:
    name = dotted(node)
    root = name.partition(".")[0]
    span = cx.span(node)
    if name in cx.frame.arguments and root not in cx.frame.env:
        return elements.vector_of(cx, cx.frame.arguments[name], span)
    return elements.asked(attribute(cx, cx.expression(node.value), node.attr, span), span)


def _tuple(cx: Lowering, node: ast.Tuple | ast.List) -> Operand:
    items: list[Operand] = []
    before: list[Operand] = []  # where lists are spread
    for element_node in node.elts:
        if isinstance(element_node, ast.Starred):
            value = cx.expression(element_node.value)
            if isinstance(node, ast.List) and list_methods.is_list(value):
                before += [Tup(items), value]
                items = []
                continue
            items += list_methods.spread(cx, value, cx.span(element_node))
        else:
            items.append(cx.expression(element_node))
    if before:
        return list_methods.copied(cx, [*before, Tup(items)], cx.span(node))
    return Tup(items)


def holder(cx: Lowering, node: ast.expr) -> Operand:
    """As ``elements.holder``, and ``x[i]`` of a field of vectors, where ``x[i][k]`` or ``x[i].x``
    is read or written, as its place."""
    if not isinstance(node, ast.Subscript):
        return elements.holder(cx, node)
    base = holder(cx, node.value)
    tensor = base.tensor if isinstance(base, Part) else base
    if isinstance(tensor, Tensor) and tensor.element and not tensor.backing:
        part = elements.subscripted(cx, base, node.slice, cx.span(node))  # type: ignore[arg-type]
        if len(part.indices) < tensor.rank:
            return part
        return cx.load_element(part.tensor, part.indices, cx.span(node))
    return _item(cx, node, base)


def _subscript_node(cx: Lowering, node: ast.Subscript) -> Operand:
    return _item(cx, node, holder(cx, node.value))


def _item(cx: Lowering, node: ast.Subscript, base: Operand) -> Operand:
    """``node``, of what is ``base``."""
    span = cx.span(node)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    sliced = any(isinstance(part, ast.Slice) for part in parts)
    if isinstance(base, Part) and sliced and elements.is_whole(base):
        base = elements.load(cx, base, span)
    if isinstance(base, Tensor) and base.backing and not _names_number(node, base):
        base = elements.vector_of(cx, base, span)
    sliced_list = isinstance(node.slice, ast.Slice) and list_methods.is_list(base)
    if sliced_list or isinstance(base, TupleList):
        return list_methods.item(cx, base, node.slice, span)
    if slices.has_slice(node.slice):
        list_methods.refuse_nested(base, "a slice", span)
    if isinstance(base, Row) or slices.has_slice(node.slice):
        row = rows.of(cx, base)
        if row is not None:
            found = rows.subscript(cx, row, node.slice, span)
            row_order.used(cx, row, row_order.written(cx.span(node.value)), span)
            return found
    if isinstance(base, (Tensor, Part)):
        part = elements.subscripted(cx, base, node.slice, span)
        if elements.is_whole(part):
            return elements.load(cx, part, span)
        if len(part.indices) < part.tensor.rank:
            return part
        return cx.load_element(part.tensor, part.indices, span)
    if isinstance(base, Vec):
        return aggregates.item(cx, base, node, span)
    if isinstance(base, Static) and isinstance(base.value, (tuple, list)):
        base = aggregates.static_tuple(base.value)
    if isinstance(base, Static) and isinstance(base.value, (dict, str, bytes)):
        return _constant_item(cx, base, cx.expression(node.slice), span)
    if isinstance(base, Tup):
        items = base.items if base.in_order else []
        if isinstance(node.slice, ast.Slice) and base.in_order:
            found = list_methods.part_of_tuple(cx, base, node.slice, span)
            if found is not None:
                return found
        elif not isinstance(node.slice, ast.Slice):
            position = cx.expression(node.slice)
            found = named.call_special(cx, base, "__getitem__", [position], span)
            if found is not None:
                return found
            if base.struct is dict:
                return named.item(base, position, span)
            if isinstance(position, Static) and isinstance(position.value, int) and base.in_order:
                if not -len(items) <= position.value < len(items):
                    raise KernelIndexError(
                        f"subscript {position.value} of a tuple of {len(items)}", span,
                        help=f"the last one is {len(items) - 1}" if items
                        else "it has none, as the shape of a tensor without dimensions",
                    )  # fmt: skip
                found = items[position.value]
                held = isinstance(found, Static) and isinstance(found.value, torch.Tensor)
                return cx.reached("item", found) if held else found
            position = from_end.position(cx, position, len(items), span)
            if isinstance(position, Scalar) and aggregates.are_alike(items):
                return aggregates.pick(cx, items, position, node.value, span)
            if isinstance(position, Scalar) and tuple_lists.are_alike(items):
                aggregates.check(cx, node.value, 0, position, len(items), span)
                return casts.picked(cx, items, position, span)
            if isinstance(position, Scalar) and items and all(map(choices.holds, items)):
                aggregates.check(cx, node.value, 0, position, len(items), span)
                return choices.chosen(cx, items, position, ast.unparse(node.value), span)
        if not base.in_order:
            raise KernelTypeError(f"{describe(base)} has no item of that place", span,
                                  help=f"its items are {', '.join(base.names)}")  # fmt: skip
        raise KernelTypeError("a tuple is subscripted by a constant", span,
                              help="use a tensor, or a weft.Vector")  # fmt: skip
    raise KernelTypeError(
        f"{describe(base)} cannot be subscripted",
        span,
        help="subscript a tensor, a local array, a vector or a tuple",
    )


def _names_number(node: ast.Subscript, base: Tensor) -> bool:
    """Whether ``node`` has a subscript for each dimension of ``base``."""
    return base.rank == (len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1)


def _constant_item(cx: Lowering, base: Static, key: Operand, span: Span) -> Operand:
    """``base[key]`` of a dict or string that is known at compile time."""
    value, source = base.value, base.read
    if not isinstance(key, Static):
        raise KernelTypeError(
            f"a {type(value).__name__} is subscripted by a run-time value",
            span,
            help="use a constant key, or put the values into a tensor",
        )
    try:
        if isinstance(value, Keywords):
            return value[key.value]
        found = value[key.value]
        if isinstance(found, torch.Tensor | dict) and source is not None:
            # None of a dict that has lost the item, at a later call, whose loop may not ask for it.
            read = lambda args: (source(args) or {}).get(key.value)  # noqa: E731
            held = Static(found, (*base.key, "[]", key.value), read)
            name = key.value if str(key.value).isidentifier() else "item"
            return held if isinstance(found, dict) else cx.reached(name, held)
        return Static(found)
    except (KeyError, IndexError, TypeError) as error:
        raise KernelIndexError(
            f"subscript {key.value!r} of a {type(value).__name__}: {type(error).__name__}: {error}",
            span,
            help="use a key that is there when the kernel is called",
        ) from None


def _binary(cx: Lowering, node: ast.BinOp) -> Operand:
    a, b = cx.expression(node.left), cx.expression(node.right)
    return binary(cx, BINARY[type(node.op)], a, b, cx.span(node))


def _unary(cx: Lowering, node: ast.UnaryOp) -> Operand:
    span = cx.span(node)
    if isinstance(node.op, ast.Not):
        x = test(cx, node.operand)
        return cx.scalars.negation(x, span)
    x = cx.expression(node.operand)
    if named.has_members(x) and (found := named.unary(cx, node.op, x, span)) is not None:
        return found
    if isinstance(x, Vec):
        return aggregates.unary(cx, node.op, x, span)
    if rows.is_row(x):
        return rows.elementwise(cx, lambda items: _signed(cx, node.op, items[0], span), [x], span)
    return _signed(cx, node.op, cx.read_number(x, span), span)


def _signed(cx: Lowering, op: ast.unaryop, x: Operand, span: Span) -> Operand:
    """``+x``, ``-x`` or ``~x`` of a number."""
    if isinstance(x, Complex) and isinstance(op, ast.USub):
        return complexes.negate(cx.scalars, x, span)
    if isinstance(op, ast.USub):
        return overflow.negated(cx, x, span)
    return cx.scalars.invert(x, span) if isinstance(op, ast.Invert) else x


def test(cx: Lowering, node: ast.expr) -> Static | Scalar:
    """``node`` as a condition: a compile-time value, or an i1."""
    span = cx.span(node)
    if isinstance(node, ast.BoolOp):
        return _boolean(cx, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return cx.scalars.negation(test(cx, node.operand), span)
    x = cx.expression(node)
    if named.has_members(x) and (found := named.truth(cx, x, span)) is not None:
        x = found
    if isinstance(x, Static):
        value = x.value
        return Static(answered(cx.guards, lambda: value, [value], ("__bool__", "__len__")))
    if isinstance(x, Tup):
        return Static(bool(x.items))
    if isinstance(x, Vec):
        raise KernelTypeError("a vector is neither true nor false", span,
                              help="write .any() or .all() on it")  # fmt: skip
    if (some := growing.has_some(cx, x, span)) is not None:
        return some
    if rows.is_row(x):
        raise KernelTypeError("a row is neither true nor false", span,
                              help="write .any() or .all() on it")  # fmt: skip
    number = _truth(cx, cx.read_number(x, span), span)
    return Scalar(cx.scalars.truth(number, span), "bool")


def _truth(cx: Lowering, x: Operand, span: Span) -> Operand:
    """What is true where ``x`` is: itself, or whether a complex number is not 0."""
    if isinstance(x, Complex):
        return complexes.compare(cx.scalars, "!=", x, Static(0.0), span)
    return x


@as_statements.unless_changed(as_statements.condition)
def _boolean(cx: Lowering, node: ast.BoolOp) -> Static | Scalar:
    """``and`` / ``or`` as a condition; the right side is evaluated only where Python would."""
    span, conjunction = cx.span(node), isinstance(node.op, ast.And)
    result = test(cx, node.values[0])
    for value in node.values[1:]:
        if isinstance(result, Static):
            if bool(result.value) != conjunction:
                return result
            result = test(cx, value)
            continue
        left = result
        if as_statements.cheap(value):
            right = test(cx, value)
            if isinstance(right, Static):
                result = left if bool(right.value) == conjunction else right
            else:
                name = "arith.andi" if conjunction else "arith.ori"
                result = Scalar(cx.builder.op(name, left.value, right.value), "bool")
            continue

        def lazy(value: ast.expr = value) -> Scalar:
            x = test(cx, value)
            return cx.scalars.cast(x, "bool", span)

        def known() -> Scalar:
            return cx.scalars.constant(not conjunction, "bool")

        then, otherwise = (lazy, known) if conjunction else (known, lazy)
        chosen = choose(cx, left, then, otherwise, span, [value])
        assert isinstance(chosen, (Scalar, Static))
        result = chosen
    return result


def _boolop(cx: Lowering, node: ast.BoolOp) -> Operand:
    """``a and b`` as a value: Python gives one of the operands."""
    if all(
        isinstance(v, (ast.Compare, ast.BoolOp))
        or (isinstance(v, ast.UnaryOp) and isinstance(v.op, ast.Not))
        for v in node.values
    ):
        return _boolean(cx, node)
    return _one_of(cx, node)


@as_statements.unless_changed(as_statements.operand)
def _one_of(cx: Lowering, node: ast.BoolOp) -> Operand:
    span, conjunction = cx.span(node), isinstance(node.op, ast.And)
    left = cx.expression(node.values[0])
    for value in node.values[1:]:
        if isinstance(left, Static):
            if bool(left.value) != conjunction:
                return left
            left = cx.expression(value)
            continue
        first = cx.read_number(left, span)
        condition = Scalar(cx.scalars.truth(_truth(cx, first, span), span), "bool")
        rest: Callable[[], Operand] = lambda value=value: cx.expression(value)  # noqa: E731
        same: Callable[[], Operand] = lambda first=first: first  # noqa: E731
        then, otherwise = (rest, same) if conjunction else (same, rest)
        left = choose(cx, condition, then, otherwise, span, [value])
    return left


@as_statements.unless_changed(as_statements.chosen)
def _conditional(cx: Lowering, node: ast.IfExp) -> Operand:
    span = cx.span(node)
    condition = test(cx, node.test)
    if isinstance(condition, Static):
        return cx.expression(node.body if condition.value else node.orelse)
    if as_statements.cheap(node.body) and as_statements.cheap(node.orelse):
        a, b = cx.expression(node.body), cx.expression(node.orelse)
        if dtype_of(a) and dtype_of(b):
            return cx.scalars.select(condition.value, a, b, span)
        return choose(cx, condition, lambda: a, lambda: b, span)
    return choose(
        cx, condition, lambda: cx.expression(node.body), lambda: cx.expression(node.orelse), span,
        [node.body, node.orelse],
    )  # fmt: skip


def choose(
    cx: Lowering, condition: Scalar | Static, then: Callable[[], Operand],
    otherwise: Callable[[], Operand], span: Span, parts: Sequence[ast.expr] = (),
) -> Operand:  # fmt: skip
    """``then()`` where the condition holds, else ``otherwise()``: only that one is evaluated.
    ``parts``: the expressions that they evaluate."""
    if isinstance(condition, Static):
        return then() if condition.value else otherwise()
    b = cx.builder
    op = b.if_(condition.value)
    sides: list[Operand] = []
    names = [n.target.id for p in parts for n in assigning(p) if isinstance(n, ast.NamedExpr)]
    ends: list[dict[str, Operand]] = []
    for region, side in zip(op.regions, (then, otherwise), strict=True):
        with b.at(region), choices.restored(cx, names, ends):
            x = side()
            if isinstance(x, Tensor) and x.rank == 0:
                x = cx.read_number(x, span)
            known = casts.static_items(x) if isinstance(x, Static) else None
            sides.append(x if known is None else Tup(known))
    vectors = [x for x in sides if isinstance(x, Vec)]
    if len(vectors) == 1:  # `0 if c else v`: the number in each place
        like = vectors[0]
        sides = [Vec([x] * len(like.items), like.shape)
                 if isinstance(x, Scalar | Static) and dtype_of(x) else x
                 for x in sides]  # fmt: skip
    values: list[list[Value]] = [[], []]
    choices.assigned(cx, op, ends, dict.fromkeys(names), values, span)
    if all(map(choices.holds, sides)) and not same_operand(*sides):
        row = choices.either(cx, op, sides, values, "a if c else b", span)
        if row is not None:
            _end(op, b, values)
            return row
    kind = cx.join(kind_of(sides[0]), kind_of(sides[1]), "", span)
    kind = roomy(roomy(kind, sides[0]), sides[1])
    if isinstance(kind, OpaqueKind):
        _end(op, b, values)
        return sides[0]
    first = len(op.results)
    for region, x, yielded in zip(op.regions, sides, values, strict=True):
        with b.at(region):
            yielded += flatten(cx.coerce(x, kind, span))
    _end(op, b, values)
    op.results += [Value(t, owner=op) for t in cx.types(kind)]
    return cx.rebuild(kind, iter(op.results[first:]))


def _end(op: Op, b: Any, values: list[list[Value]]) -> None:
    region: Block
    for region, yielded in zip(op.regions, values, strict=True):
        with b.at(region):
            b.do("scf.yield", *yielded)


def _named(cx: Lowering, node: ast.NamedExpr) -> Operand:
    span = cx.span(node)
    cx.bind(node.target, cx.expression(node.value), span)
    return cx.expression(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))


def _joined(cx: Lowering, node: ast.JoinedStr) -> Operand:
    raise KernelSyntaxError("an f-string outside of print and assert", cx.span(node),
                            help="f-strings can be printed: print(f\"...\")")  # fmt: skip


EXPRESSIONS.update(
    {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Tuple: _tuple,
        ast.List: _tuple,
        ast.Subscript: _subscript_node,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _boolop,
        ast.IfExp: _conditional,
        ast.NamedExpr: _named,
        ast.JoinedStr: _joined,
    }
)
