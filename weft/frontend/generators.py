"""Iterators: generators, ``map`` and ``filter``. A ``for`` asks them for one item after another, so
that each is computed with what the loop has assigned and stored by then."""

from __future__ import annotations

import ast
from typing import Any

from weft.errors import KernelSyntaxError, Span
from weft.frontend import comprehensions, loops
from weft.frontend.context import EXPRESSIONS, STATEMENTS, Lowering
from weft.frontend.desugar import placed
from weft.frontend.effects import LAZY
from weft.frontend.hints import ITERATION
from weft.frontend.kinds import Operand, Static, constant_value
from weft.frontend.names import dotted
from weft.frontend.scope import stands
from weft.lang import names

_ITERATING = (map, filter, enumerate, zip, reversed)
_COPIED = ("weft_break", "weft_certain", "weft_turns")


class _Lazy(ast.expr):
    """A generator that the loop goes over whose iterable it is in."""

    _fields = ("value",)
    value: ast.GeneratorExp


def _builtin(cx: Lowering, node: ast.expr) -> Any:
    """The builtin function that ``node`` calls, if it is one that iterates."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id not in {f.__name__ for f in _ITERATING}:
        return None
    found = cx.expression(node.func)
    return next((f for f in _ITERATING if isinstance(found, Static) and found.value is f), None)


def generator(cx: Lowering, node: ast.expr) -> ast.GeneratorExp | None:
    """``node`` as a generator, if it is one, or ``map`` or ``filter``."""
    if isinstance(node, ast.GeneratorExp):
        return node
    function = _builtin(cx, node)
    if function not in (map, filter) or not isinstance(node, ast.Call):
        return None
    known: ast.GeneratorExp | None = getattr(node, "weft_generator", None)
    if known is None:
        known = _made(cx, node, function is filter)
        stands(node, "weft_generator", known)
    return known


def _made(cx: Lowering, node: ast.Call, tests: bool) -> ast.GeneratorExp:
    takes = 2 if tests else max(len(node.args), 2)
    if len(node.args) != takes or node.keywords or any(
        isinstance(a, ast.Starred) for a in node.args
    ):  # fmt: skip
        raise KernelSyntaxError(
            "`filter` takes a function and an iterable" if tests else
            "`map` takes a function, and an iterable for each of its arguments", cx.span(node),
            help="write a loop, or a comprehension",
        )  # fmt: skip
    function, *over = node.args
    names = [f"item{k} {node.lineno}:{node.col_offset}" for k in range(len(over))]
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    items: list[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    none = isinstance(function, ast.Constant) and function.value is None
    call = items[0] if tests and none else ast.Call(function, items, [])
    first, target = over[0], targets[0]
    if len(over) > 1:
        columns = ast.Constant(zip)  # type: ignore[arg-type]
        first, target = ast.Call(columns, over, []), ast.Tuple(targets, ast.Store())
    found = ast.comprehension(target, first, [call] if tests else [], 0)
    elt = ast.Name(names[0], ast.Load()) if tests else call
    return placed(ast.GeneratorExp(elt, [found]), node)  # type: ignore[type-var]


def _loop(cx: Lowering, node: ast.For) -> None:
    made = generator(cx, node.iter)
    if made is not None:
        loops.loop(cx, _in_loop(cx, node, made))
        return
    if _builtin(cx, node.iter) in (enumerate, zip) and isinstance(node.iter, ast.Call):
        args = [_lazy(cx, arg) for arg in node.iter.args]
        if any(a is not b for a, b in zip(args, node.iter.args, strict=True)):
            over = ast.copy_location(ast.Call(node.iter.func, args, node.iter.keywords), node.iter)
            node = _like(node, node.target, over, node.body)
    loops.loop(cx, node)


def _like(node: ast.For, target: ast.expr, over: ast.expr, body: list[ast.stmt]) -> ast.For:
    new = ast.copy_location(ast.For(target, over, body, node.orelse), node)
    for mark in (*_COPIED, ITERATION):
        if hasattr(node, mark):
            setattr(new, mark, getattr(node, mark))
    return new


def _in_loop(cx: Lowering, node: ast.For, made: ast.GeneratorExp) -> ast.For:
    """A loop over what the generator goes over, whose body begins with an item."""
    known: ast.For | None = getattr(node, "weft_loop", None)
    if known is not None:
        return known
    own = comprehensions.own(made)
    if len(own.generators) > 1:
        raise _too_much("a loop over a generator with several `for`", cx.span(node.iter))
    (one,) = own.generators
    assign = ast.Assign([node.target], own.elt)
    body = [placed(assign, node.iter), *node.body]
    for test in reversed(one.ifs):
        body = [placed(ast.If(test, [], []), node.iter)]
        body[0].body = [assign, *node.body]  # type: ignore[attr-defined]
    if len(one.ifs) > 1:
        test = ast.BoolOp(ast.And(), list(one.ifs))
        body[0].test = placed(ast.Expr(test), node.iter).value  # type: ignore[attr-defined]
    over = ast.copy_location(comprehensions.going_over(one.iter), node.iter)
    new: ast.For = _like(node, one.target, over, body)  # type: ignore[arg-type]
    stands(node, "weft_loop", new)
    return new


def _lazy(cx: Lowering, node: ast.expr) -> ast.expr:
    made = generator(cx, node)
    if made is None:
        return node
    if len(made.generators) > 1 or made.generators[0].ifs:
        raise _too_much("a loop over `zip` or `enumerate` of a generator with an `if`, or with "
                        "several `for`", cx.span(node))  # fmt: skip
    new = ast.copy_location(_Lazy(), node)
    new.value = made
    return new


def _too_much(what: str, span: Span) -> KernelSyntaxError:
    return KernelSyntaxError(what, span, help="write the loops, or a list: [... for ...]")


def _items(cx: Lowering, node: _Lazy) -> Operand:
    found = comprehensions.lazily(cx, node.value)
    return found if found is not None else cx.expression(node.value)


def evaluate(cx: Lowering, node: ast.Call) -> Operand:
    """``map(f, a)`` or ``filter(f, a)`` that is used at once: its items."""
    made = generator(cx, node)
    if made is None:
        raise KernelSyntaxError(
            f"`{ast.unparse(node.func)}` under another name", cx.span(node),
            help="call map and filter by their own names",
        )  # fmt: skip
    return comprehensions.listed(cx, made)


def refuse_named(cx: Lowering, node: ast.Assign) -> None:
    """Refuses a name for an iterator, which Python uses up."""
    value = node.value
    iterates = isinstance(value, ast.GeneratorExp) or _builtin(cx, value) is not None
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in names.ITERTOOLS:
        found = names.canonical(constant_value(cx.expression(value.func))) or ""
        iterates |= found.startswith("itertools.")
    if iterates and any(isinstance(target, ast.Name) for target in node.targets):
        raise KernelSyntaxError(
            "an iterator with a name: what has gone over it has used it up", cx.span(value),
            help="make a list of it: [... for ...], list(...)",
        )  # fmt: skip


EXPRESSIONS[ast.GeneratorExp] = comprehensions.listed
EXPRESSIONS[_Lazy] = _items  # pyright: ignore[reportArgumentType]
STATEMENTS[ast.For] = _loop
LAZY.update(map=evaluate, filter=evaluate)
