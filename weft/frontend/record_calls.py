"""Calls that make a struct, a dict or an object of another one, and what dicts have."""

from __future__ import annotations

import ast
import copy
import dataclasses
from dataclasses import replace
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import named, objects, records
from weft.frontend.arguments import keywords, positional
from weft.frontend.context import Lowering
from weft.frontend.kinds import Method, Operand, Static, Tup, constant_value

_COPIES = (copy.copy, dataclasses.replace)


def call(cx: Lowering, node: ast.Call, function: Operand) -> Operand | None:
    """``copy.copy(x)``, ``dataclasses.replace(x, m=v)``, ``x._replace(m=v)`` of what has members,
    and the methods of dicts; None of another call."""
    span = cx.span(node)
    if isinstance(function, Method) and isinstance(x := function.receiver, Tup):
        if x.struct is dict and function.name in named.OF_DICTS:
            made = objects.site(cx, span)
            return _of_dict(x, function.name, positional(cx, node), span, made)
        if function.name == "_replace" and x.in_order:
            return _changed(x, keywords(cx, node), span, frozenset())
        return None
    target = constant_value(function)
    if not any(target is f for f in _COPIES) or not node.args:
        return None
    x = records.of_constant(cx, positional(cx, node)[0], span)
    if x is None or len(node.args) > 1:
        return None
    if target is dataclasses.replace and not dataclasses.is_dataclass(x.struct):
        return None
    kind: Any = x.struct
    own = isinstance(kind, type) and kind is not dict
    if own and (hasattr(kind, "__copy__") or not records.makes_records(kind)):
        raise KernelTypeError(
            f"`{ast.unparse(node.func)}` of `{kind.__name__}`, which makes its objects in a "
            "way of its own", span, help="write the members out",
        )  # fmt: skip
    made = objects.site(cx, span) if x.objects else frozenset[Any]()
    return _changed(x, keywords(cx, node), span, made)


def _changed(x: Tup, members: dict[str, Operand], span: Span, made: frozenset[Any]) -> Tup:
    """Another object like ``x``, with these members."""
    wrong = [name for name in members if name not in x.names]
    if wrong:
        members_are = ", ".join(map(str, x.names))
        raise KernelTypeError(f"`{wrong[0]}` is none of the members {members_are}", span,
                              help="check the spelling")  # fmt: skip
    items = [members.get(name, item) for name, item in zip(x.names, x.items, strict=True)]
    return replace(x, items=items, objects=made)


def _of_dict(x: Tup, name: str, given: list[Operand], span: Span, site: frozenset[Any]) -> Operand:
    """A call of a method of a dict."""
    keys = x.iterated() or []
    if name == "get" and 0 < len(given) < 3 and (key := named.key_of(given[0])) is not None:
        missing = given[1] if len(given) > 1 else Static(None)
        return x.items[x.names.index(key.value)] if key.value in x.names else missing
    if name == "get" or given:
        raise KernelTypeError(
            f"`.{name}` of a dict in a device loop takes other arguments", span,
            help="there are d.get(key, default) with a constant key, d.items(), d.keys(), "
            "d.values() and d.copy()",
        )  # fmt: skip
    if name == "copy":
        return replace(x, items=list(x.items), objects=site)
    if name == "items":
        return Tup([Tup([key, item]) for key, item in zip(keys, x.items, strict=True)])
    return Tup(keys if name == "keys" else list(x.items))
