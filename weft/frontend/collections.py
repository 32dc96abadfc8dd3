"""Dicts and sets of a device loop: their keys and members are known at compile time.

A dict is an object with an item for each key; a set is a constant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import casts, comprehensions, named, objects
from weft.frontend.arguments import keywords, positional
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.effects import LAZY
from weft.frontend.kinds import Operand, Static, Tup, constant_value
from weft.frontend.scope import stands

_KEYS = "strings, numbers, members of enums, or tuples of these"


def is_set(x: Operand) -> bool:
    return isinstance(constant_value(x), set | frozenset)


# --- dicts ---------------------------------------------------------------------------------------
def _dict_of(
    cx: Lowering, pairs: Iterable[tuple[Operand, Operand]], span: Span, once: bool = False
) -> Tup:
    """A dict of keys and items, of which the last one of a key counts. ``once``: keys that are
    written twice are refused."""
    items: dict[Any, Operand] = {}
    for key, value in pairs:
        known = named.key_of(key)
        if known is None or (once and known.value in items):
            raise KernelTypeError(
                "a dict of a device loop has constants as keys, each once", span,
                help=f"{_KEYS}; else use a tensor, or a struct",
            )  # fmt: skip
        items[known.value] = value
    return Tup(list(items.values()), tuple(items), dict, objects.site(cx, span))


def _items_of(x: Operand) -> list[tuple[Operand, Operand]] | None:
    """The keys and items of a dict; None of anything else."""
    if isinstance(x, Tup) and x.struct is dict:
        return list(zip(x.iterated() or [], x.items, strict=True))
    value = constant_value(x)
    return [(Static(k), Static(v)) for k, v in value.items()] if isinstance(value, dict) else None


def _dict(cx: Lowering, node: ast.Dict) -> Tup:
    """``{"a": x, **other}``."""
    span, pairs, spread = cx.span(node), list[tuple[Operand, Operand]](), False
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            pairs.append((cx.expression(key), cx.expression(value)))
            continue
        other, spread = _items_of(cx.expression(value)), True
        if other is None:
            raise KernelTypeError("`**` of what is no dict", cx.span(value),
                                  help="write its items out: {0: a, 1: b}")  # fmt: skip
        pairs += other
    return _dict_of(cx, pairs, span, once=not spread)


def _dict_comprehension(cx: Lowering, node: ast.DictComp) -> Tup:
    pair = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
    made: ast.ListComp | None = getattr(node, "weft_pairs", None)
    if made is None:
        made = ast.copy_location(ast.ListComp(pair, node.generators), node)
        stands(node, "weft_pairs", made)
    found, span = comprehensions.written_out(cx, made), cx.span(node)
    if found is None:
        raise KernelTypeError(
            "a dict comprehension over what is known at run time only", span,
            help="a dict of a device loop has constants as keys: go over constants, or make a list",
        )  # fmt: skip
    return _dict_of(cx, (x.items for x in found), span)  # type: ignore[union-attr, misc]


def dictionary(cx: Lowering, node: ast.Call) -> Tup:
    """``dict(a=x)``, ``dict(other)``, ``dict(zip(names, values))``."""
    span, pairs = cx.span(node), list[tuple[Operand, Operand]]()
    for x in positional(cx, node):
        found = _items_of(x)
        if found is None:
            items = casts.static_items(x) or ([] if isinstance(x, Tup) else [x])
            known = [casts.static_items(item) for item in items]
            if any(pair is None or len(pair) != 2 for pair in known):
                raise KernelTypeError("`dict` of what are no pairs of a constant and a value", span,
                                      help="write {key: value for ... in ...}")  # fmt: skip
            found = [(pair[0], pair[1]) for pair in known if pair]
        pairs += found
    pairs += [(Static(name), x) for name, x in keywords(cx, node).items()]
    return _dict_of(cx, pairs, span)


# --- sets ----------------------------------------------------------------------------------------
def _set_of(items: Iterable[Operand], span: Span) -> Static:
    known = [named.key_of(item) for item in items]
    if None in known:
        raise KernelTypeError(
            "a set of a device loop has constants as members", span,
            help=f"{_KEYS}; `in` takes a tuple of what is known at run time: v in (a, b)",
        )  # fmt: skip
    return Static({key.value for key in known if key})


def written(cx: Lowering, node: ast.Set) -> Operand:
    """``{a, b}``: a set of constants, or a tuple."""
    made = cx.expression(ast.copy_location(ast.Tuple(node.elts, ast.Load()), node))
    constant = isinstance(made, Tup) and all(map(named.key_of, made.items))
    return _set_of(made.items, cx.span(node)) if constant else made  # type: ignore[union-attr]


def _set(cx: Lowering, node: ast.Set) -> Static:
    made = written(cx, node)
    return made if isinstance(made, Static) else _set_of([made], cx.span(node))


def _set_comprehension(cx: Lowering, node: ast.SetComp) -> Static:
    found, span = comprehensions.written_out(cx, node), cx.span(node)
    if found is None:
        raise KernelTypeError(
            "a set comprehension over what is known at run time only", span,
            help="a set of a device loop has constants as members: go over constants, or make a "
            "list",
        )  # fmt: skip
    return _set_of(found, span)


def set_from(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Static:
    """``set(x)`` and ``frozenset(x)``."""
    span = cx.span(node)
    if arguments and is_set(arguments[0]):
        return Static(set(arguments[0].value))  # type: ignore[union-attr]
    items = casts.known_items(arguments[0]) if arguments else []
    return _set_of(arguments if items is None else items, span)


def members(x: Operand) -> list[Operand]:
    """The members of a set that a number or a tuple of run time may equal."""
    found: set[Any] = x.value  # type: ignore[union-attr]
    wanted = [v for v in found if isinstance(v, int | float | complex | tuple)]
    return [Tup([Static(item) for item in v]) if isinstance(v, tuple) else Static(v)
            for v in sorted(wanted, key=repr)]  # fmt: skip


EXPRESSIONS.update({
    ast.Dict: _dict, ast.DictComp: _dict_comprehension, ast.Set: _set,
    ast.SetComp: _set_comprehension,
})  # fmt: skip
FUNCTIONS: dict[str, casts.Handler] = {"set": set_from}
LAZY["dict"] = dictionary
