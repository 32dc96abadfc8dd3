"""Expressions as the statements that they stand for: those with loops in them, and those with parts
that need not run, in which a call changes an object."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from weft.errors import KernelTypeError
from weft.frontend.context import Lowering
from weft.frontend.desugar import desugar_body, placed
from weft.frontend.kinds import Operand
from weft.frontend.scope import stands
from weft.source import children, subtree

_Node = TypeVar("_Node", bound=ast.expr)
_Result = TypeVar("_Result", bound=Operand)


class ChangedInPartError(KernelTypeError):
    """A call changes something where only a part of a statement is lowered."""


def is_part(cx: Lowering) -> bool:
    """Whether what is lowered is a part of a statement that need not run, or runs several times; or
    is in the statements that stand for one."""
    return cx.frame.in_part or cx.builder.block is not cx.where


class Other(Exception):
    """What has been lowered is to be lowered otherwise."""


@contextmanager
def tried(cx: Lowering) -> Generator[None]:
    """Takes back what is lowered in a ``with`` that ``Other`` leaves: it would be done twice."""
    block, env = cx.builder.block, dict(cx.frame.env)
    pending, begin = list(cx.pending), cx.begin
    where, statement = cx.where, cx.statement
    operations, uses = len(block.ops), len(cx.row_uses)
    try:
        yield
    except Other:
        cx.builder.block = block
        del block.ops[operations:], cx.row_uses[uses:]
        cx.pending, cx.begin = pending, begin
        cx.where, cx.statement = where, statement
        cx.frame.env.clear()
        cx.frame.env.update(env)


def carried_out(
    cx: Lowering, statements: list[ast.stmt], names: Sequence[str], at: ast.expr
) -> Operand:
    """The first of ``names``, which are those of ``statements`` alone, after these."""
    for name in names:
        cx.frame.counts[name] = 2
        cx.frame.env.pop(name, None)
    carry_out(cx, statements, at)
    return cx.frame.lookup(names[0], cx.span(at), cx.guards)


def carry_out(cx: Lowering, statements: list[ast.stmt], at: ast.expr) -> None:
    """Those that the expression ``at`` stands for."""
    known: list[ast.stmt] | None = getattr(at, "weft_statements", None)
    if known is None:
        known = desugar_body([placed(s, at) for s in statements], mark(at))
        stands(at, "weft_statements", known)
    frame = cx.frame
    outer = frame.in_part, frame.read
    frame.in_part, frame.read = is_part(cx), [*frame.read, *cx.pending[: cx.begin]]
    try:
        cx.block(known)
    finally:
        frame.in_part, frame.read = outer


def get(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def put(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


# -- expressions some parts of which need not run

# Evaluated without a branch in `a and b` and `a if c else b`: nothing in them can fault.
_CHEAP = (ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.Attribute)
_CHEAP_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


def cheap(node: ast.expr) -> bool:
    """Whether ``node`` may be evaluated although Python would not: cheap, and it cannot fault."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _CHEAP_OPERATORS) and cheap(node.left) and cheap(node.right)
    if not isinstance(node, _CHEAP):
        return False
    return all(cheap(c) for c in children(node) if isinstance(c, ast.expr))


def unless_changed(
    statements: Callable[[_Node, str], list[ast.stmt]],
) -> Callable[[Callable[[Lowering, _Node], _Result]], Callable[[Lowering, _Node], _Result]]:
    """Where a call changes an object in a part of an expression that need not run, it is what the
    ``statements`` make of a name."""

    def decorated(
        usual: Callable[[Lowering, _Node], _Result],
    ) -> Callable[[Lowering, _Node], _Result]:
        @functools.wraps(usual)
        def lowered(cx: Lowering, node: _Node) -> _Result:
            if is_part(cx) or not calls(node):
                return usual(cx, node)
            if not hasattr(node, "weft_statements"):
                with tried(cx):
                    try:
                        return usual(cx, node)
                    except ChangedInPartError:
                        raise Other from None
            name = f"chosen {mark(node)}"
            return cast(_Result, carried_out(cx, statements(node, name), (name,), node))

        return lowered

    return decorated


def calls(node: ast.expr) -> bool:
    """Whether there is a call in it."""
    found: bool | None = getattr(node, "weft_calls", None)
    if found is None:
        found = any(isinstance(part, ast.Call) for part in subtree(node))
        node.weft_calls = found  # type: ignore[attr-defined]
    return found


def mark(node: ast.expr | ast.stmt) -> str:
    """Its place in the source, as no other expression has it."""
    return f"{node.lineno}:{node.col_offset}:{node.end_lineno}:{node.end_col_offset}"


def chosen(node: ast.IfExp, name: str) -> list[ast.stmt]:
    """``name = a if c else b``."""
    return [ast.If(node.test, [put(name, node.body)], [put(name, node.orelse)])]


def condition(node: ast.BoolOp, name: str) -> list[ast.stmt]:
    """``name = bool(a and b)``."""
    conjunction = isinstance(node.op, ast.And)
    body: list[ast.stmt] = [put(name, ast.Constant(conjunction))]
    for value in reversed(node.values):
        body = [ast.If(value if conjunction else ast.UnaryOp(ast.Not(), value), body, [])]
    return [put(name, ast.Constant(not conjunction)), *body]


def operand(node: ast.BoolOp, name: str) -> list[ast.stmt]:
    """``name = a and b``: one of the two."""
    first, *others = node.values
    body: list[ast.stmt] = []
    for value in reversed(others):
        test = get(name) if isinstance(node.op, ast.And) else ast.UnaryOp(ast.Not(), get(name))
        body = [ast.If(test, [put(name, value), *body], [])]
    return [put(name, first), *body]


def chain(node: ast.Compare, name: str) -> list[ast.stmt]:
    """``name = a < b < c``."""
    names = [f"{name} {k}" for k in range(len(node.ops) + 1)]
    first, *others = map(put, names, [node.left, *node.comparators])
    body: list[ast.stmt] = [put(name, ast.Constant(True))]
    for k in reversed(range(len(others))):
        test = ast.Compare(get(names[k]), [node.ops[k]], [get(names[k + 1])])
        body = [others[k], ast.If(test, body, [])]
    return [put(name, ast.Constant(False)), first, *body]


def loop_in_steps(node: ast.While) -> list[ast.stmt]:
    """``while c: ...``, whose condition is a statement of the loop."""
    goes_on = f"goes on {mark(node)}"
    yes, no = (put(goes_on, ast.Constant(value)) for value in (True, False))
    body: list[ast.stmt] = [ast.If(node.test, [yes], [no]), ast.If(get(goes_on), node.body, [])]
    made = ast.While(get(goes_on), body, [])
    for name in ("weft_break", "weft_certain", "weft_turns"):
        if hasattr(node, name):
            setattr(made, name, getattr(node, name))
    return [placed(statement, node) for statement in (put(goes_on, ast.Constant(True)), made)]
