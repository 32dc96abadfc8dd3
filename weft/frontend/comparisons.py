"""Comparisons of a kernel: ``==``, ``<``, ``is``, ``in``, and chains of them."""

from __future__ import annotations

import ast
import functools
import operator
from typing import Any

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    aggregates,
    as_statements,
    casts,
    collections,
    complexes,
    expressions,
    list_methods,
    named,
    records,
    rows,
    sequences,
)
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.growing import CHANGING
from weft.frontend.kinds import (
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    Vec,
    constant_value,
    describe,
    dtype_of,
    is_complex,
)
from weft.frontend.names import is_known_module, root_name
from weft.frontend.scope import answered
from weft.source import children, subtree

COMPARE: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_STRICT = {"<": ast.Lt(), ">": ast.Gt()}
_METHODS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def compare(cx: Lowering, node: ast.Compare) -> Operand:
    span = cx.span(node)
    left = cx.expression(node.left)
    if len(node.ops) > 1 and rows.is_row(left):
        raise KernelTypeError("a chain of comparisons of rows", span,
                              help="write (a < x) & (x < b)")  # fmt: skip
    return _chain(cx, node, 0, left)


_several = as_statements.unless_changed(as_statements.chain)(compare)


def chain(cx: Lowering, node: ast.Compare) -> Operand:
    return _several(cx, node) if node.ops[1:] else compare(cx, node)


def _chain(cx: Lowering, node: ast.Compare, first: int, left: Operand) -> Operand:
    """The comparisons from number ``first`` on, of ``left`` with what follows."""
    span = cx.span(node)
    result: Operand = Static(True)
    for k in range(first, len(node.ops)):
        op, right_node = node.ops[k], node.comparators[k]
        if isinstance(result, Static) and not result.value:
            return result  # Python evaluates no more of it
        if k > first and isinstance(result, Scalar) and _waits(cx, node, k):
            condition = Scalar(cx.scalars.truth(result, span), "bool")

            def rest(at: int = k, before: Operand = left) -> Operand:
                return _chain(cx, node, at, before)

            parts = node.comparators[k:]
            return expressions.choose(cx, condition, rest, lambda: Static(False), span, parts)
        if isinstance(right_node, ast.Set) and isinstance(op, ast.In | ast.NotIn):
            right = collections.written(cx, right_node)
        else:
            right = cx.expression(right_node)
        result = aggregates.both(cx, result, _comparison(cx, op, left, right, span), span)
        left = right
    return result


_PLAIN = ("len", "min", "max", "abs", "int", "float", "bool", "round", "sum")


def _waits(cx: Lowering, node: ast.Compare, k: int) -> bool:
    """Whether the operand behind comparison ``k`` of a chain must not be evaluated where an earlier
    one fails: it changes something, or the names that were compared are its subscripts."""
    compared = {
        name for operand in (node.left, *node.comparators[:k]) for name in _outside(operand)
    }
    for part in subtree(node.comparators[k]):
        match part:
            case ast.NamedExpr():
                return True
            case ast.Call(func=ast.Name(id=name)) if name not in _PLAIN:
                return True
            case ast.Call(func=ast.Attribute() as method) if _acts(cx, method):
                return True
            case ast.Subscript(slice=index):
                if compared & {n.id for n in subtree(index) if isinstance(n, ast.Name)}:
                    return True
            case _:
                pass
    return False


def _acts(cx: Lowering, method: ast.Attribute) -> bool:
    """Whether a call of ``method`` may store, draw or run a function of the user's: all but
    functions of known modules and methods of elements and rows."""
    if method.attr in CHANGING or method.attr.startswith(("atomic", "rand")):
        return True
    root = root_name(method)
    if root is None:
        return False
    value = cx.frame.lookup(root, cx.span(method), cx.guards)
    if isinstance(value, Static):
        return not is_known_module(value.value)
    return not isinstance(value, Scalar | Tensor | Part | Row | Vec)


def _outside(node: ast.expr) -> set[str]:
    """The names in ``node`` that are not in a subscript, nor are subscripted."""
    if isinstance(node, ast.Subscript):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set[str]()
    inside = (c for c in children(node) if isinstance(c, ast.expr))
    return own.union(*map(_outside, inside))


def _comparison(cx: Lowering, op: ast.cmpop, left: Operand, right: Operand, span: Span) -> Operand:
    if isinstance(op, (ast.Is, ast.IsNot)):
        for x in (left, right):
            if isinstance(x, Static) and x.value is None:
                other = right if x is left else left
                same = isinstance(other, Static) and other.value is None
                return Static(same if isinstance(op, ast.Is) else not same)
        if isinstance(left, Static) and isinstance(right, Static):
            same = left.value is right.value
            return Static(same if isinstance(op, ast.Is) else not same)
        raise KernelSyntaxError(
            "`is` between run-time values", span, help="write ==, or compare with None"
        )
    if isinstance(op, (ast.In, ast.NotIn)):
        return _membership(cx, op, left, right, span)
    symbol = COMPARE[type(op)]
    if named.has_members(left) or named.has_members(right):
        own = named.compare(cx, symbol, left, right, span)
        if own is not None:
            return own
        left, right = (records.of_constant(cx, x, span) or x for x in (left, right))
    for x in (left, right):
        list_methods.refuse_nested(x, f"`{symbol}`", span)
    if list_methods.is_list(left) or list_methods.is_list(right):
        return list_methods.compare(cx, symbol, left, right, span)
    if rows.is_row(left) or rows.is_row(right):
        return rows.elementwise(
            cx, lambda x: _numbers(cx, symbol, x[0], x[1], span), [left, right], span
        )
    if isinstance(left, Vec) or isinstance(right, Vec):
        return aggregates.compare(cx, symbol, left, right, span)
    structs = [x for x in (left, right) if isinstance(x, Tup) and not x.in_order]
    same = len(structs) == 2 and (structs[0].struct, structs[0].names) == (
        structs[1].struct, structs[1].names
    )  # fmt: skip
    if structs and not same:
        raise KernelTypeError(
            f"{describe(left)} is compared with {describe(right)}", span,
            help="compare structs of one type, with their members in one order",
        )  # fmt: skip
    pair = [named.compared(x) for x in structs] or [casts.static_items(x) for x in (left, right)]
    if symbol in ("==", "!=") and pair[0] is not None and pair[1] is not None:
        return _tuples(cx, symbol, pair[0], pair[1], span)
    if isinstance(left, Tup) and isinstance(right, Tup) and left.in_order and right.in_order:
        return _ordered(cx, symbol, left.items, right.items, span)
    for x, other in ((left, right), (right, left)):
        no_number = isinstance(x, Static) and dtype_of(x) is None
        text = no_number and isinstance(constant_value(x), str | None)
        if text and dtype_of(other) is not None and not isinstance(other, Static):
            raise KernelTypeError(
                f"a number is compared with {describe(x)}", span,
                help="`is None` and strings are for compile-time values, as weft.template() makes",
            )  # fmt: skip
    if isinstance(left, Static) and isinstance(right, Static):
        pair = left.value, right.value
        ask = functools.partial(_static_compare, symbol, *pair, span)
        return Static(answered(cx.guards, ask, pair, _METHODS))
    return _numbers(cx, symbol, cx.read_number(left, span), cx.read_number(right, span), span)


def _membership(cx: Lowering, op: ast.cmpop, left: Operand, right: Operand, span: Span) -> Operand:
    """``left in right``, ``left not in right``."""
    if isinstance(right, Tup) and right.struct is dict and (key := named.key_of(left)) is not None:
        return Static((key.value in right.names) is isinstance(op, ast.In))
    held = named.call_special(cx, right, "__contains__", [left], span)
    whole = collections.is_set(right) and not isinstance(left, Static)
    items = collections.members(right) if whole else casts.static_items(right)
    if whole:  # a number is no tuple
        items = [x for x in items or () if isinstance(x, Tup) is isinstance(left, Tup)]
    if held is None and items is None and sequences.items(cx, right, span) is not None:
        held = list_methods.contains(cx, right, left, span)
    if held is not None:
        absent = cx.scalars.negation(cx.read_number(held, span), span)
        return cx.scalars.negation(absent, span) if isinstance(op, ast.In) else absent
    if items is None:
        if (
            isinstance(left, Static)
            and isinstance(right, Static)
            and hasattr(right.value, "__contains__")
        ):
            try:
                whole, key = right.value, left.value
                ask = functools.partial(operator.contains, whole, key)
                found = answered(cx.guards, ask, [whole], ("__contains__", "__iter__"))
            except (TypeError, ValueError) as error:
                raise KernelTypeError(f"`in`: {error}", span,
                                      help="compare values of one kind") from None  # fmt: skip
            return Static(found if isinstance(op, ast.In) else not found)
        raise KernelSyntaxError(
            f"`in` {describe(right)}", span, help="compare with the elements in a loop"
        )
    result: Operand = Static(False)
    for item in items:
        equal = _comparison(cx, ast.Eq(), left, item, span)
        result = (
            equal
            if isinstance(result, Static) and not result.value
            else expressions.binary(cx, "|", result, equal, span)
        )
    return result if isinstance(op, ast.In) else cx.scalars.negation(result, span)


def _numbers(cx: Lowering, symbol: str, left: Operand, right: Operand, span: Span) -> Operand:
    f = complexes.compare if is_complex(left) or is_complex(right) else None
    return (
        f(cx.scalars, symbol, left, right, span)
        if f
        else (cx.scalars.compare(symbol, left, right, span))
    )


def _tuples(
    cx: Lowering, symbol: str, left: list[Operand], right: list[Operand], span: Span
) -> Operand:
    """``a == b`` of two tuples: of one length, and equal item by item."""
    result: Operand = Static(len(left) == len(right))
    for a, b in zip(left, right, strict=False):
        equal = _comparison(cx, ast.Eq(), a, b, span)
        result = aggregates.both(cx, result, equal, span)
    assert isinstance(result, Static | Scalar)
    return result if symbol == "==" else cx.scalars.negation(result, span)


def _ordered(
    cx: Lowering, symbol: str, left: list[Operand], right: list[Operand], span: Span
) -> Operand:
    """``a < b`` of two tuples: the first items that differ decide, then the lengths."""
    result: Operand = Static(_ORDERS[symbol](len(left), len(right)))
    pairs = [*zip(left, right, strict=False)]
    for a, b in reversed(pairs):
        equal, before = (_comparison(cx, op, a, b, span) for op in (ast.Eq(), _STRICT[symbol[0]]))
        result = aggregates.both(cx, equal, result, span)
        result = expressions.binary(cx, "|", before, result, span)
    return result


def _static_compare(symbol: str, a: Any, b: Any, span: Span) -> Any:
    if symbol in ("==", "!="):
        return (a == b) if symbol == "==" else (a != b)
    try:
        return _ORDERS[symbol](a, b)
    except TypeError as error:
        raise KernelTypeError(str(error), span, help="compare numbers") from None


EXPRESSIONS[ast.Compare] = chain
