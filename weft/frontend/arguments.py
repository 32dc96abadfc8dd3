"""The arguments of a call, evaluated."""

from __future__ import annotations

import ast

from weft.errors import KernelSyntaxError, KernelTypeError
from weft.frontend.casts import known_items
from weft.frontend.context import Lowering
from weft.frontend.kinds import Keywords, Operand, Static, Tup, describe


def positional(cx: Lowering, node: ast.Call) -> list[Operand]:
    """Those without a name."""
    arguments: list[Operand] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            value = cx.expression(a.value)
            items = known_items(value)
            if items is None:
                raise KernelTypeError(f"{describe(value)} cannot be spread with `*`", cx.span(a),
                                      help="spread a tuple or a vector")  # fmt: skip
            arguments += items
        else:
            arguments.append(cx.expression(a))
    return arguments


def keywords(cx: Lowering, node: ast.Call) -> dict[str, Operand]:
    """Those by name."""
    named: dict[str, Operand] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            value = cx.expression(keyword.value)
            if isinstance(value, Static) and isinstance(value.value, Keywords):
                named |= value.value  # a decorator hands on what it was given
                continue
            if isinstance(value, Tup) and value.struct is dict:
                named |= {str(name): x for name, x in zip(value.names, value.items, strict=True)}
                continue
            raise KernelSyntaxError(
                "`**` cannot be compiled", cx.span(keyword), help="write the arguments one by one"
            )
        named[keyword.arg] = cx.expression(keyword.value)
    return named
