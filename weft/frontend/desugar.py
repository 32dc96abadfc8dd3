"""Removes jumps from a body: ``continue``, ``break`` and ``return`` become structure and flags.

The IR has structured control flow only. Where a branch always jumps, the statements after the
``if`` move into its other branch; elsewhere a boolean flag, whose name starts with a dot, guards
them. A loop that can be left early carries its flag in ``node.weft_break`` (its name): the
lowering makes it a while loop that also asks the flag. After desugaring no Continue and no Break is
left; a function's Return statements have become assignments to ``.value``, and so has its end, if
it may be reached: ``.value = None``.

The statements given are not changed: what has to differ is copied.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import TypeVar

from weft.frontend.certain import mark_skipped, names_after, names_of_turns
from weft.frontend.matching import without_match
from weft.frontend.names import own_nodes
from weft.source import Known, children, known_of, subtree
from weft.values import mutable

RETURN_VALUE = ".value"
Node = TypeVar("Node", bound=ast.stmt)


@mutable
class _Loop:
    """What the statements of one loop body (or of a function's body) may jump to."""

    broken: str = ""  # the flag of this loop's `break`, made when first needed
    skip: str = ""  # the flag of this iteration's `continue`
    in_loop: bool = True
    valued: bool = False  # of a function: whether what it returns is asked for
    counter: Iterator[int | str] = field(default_factory=itertools.count)


def desugar_body(body: list[ast.stmt], mark: str = "") -> list[ast.stmt]:
    """The body of a device loop's iteration: ``continue`` ends the iteration. ``mark``: of
    statements that an expression stands for, whose flags must not be those of what is around it."""
    scope = _Loop(counter=(f"{n} {mark}" for n in itertools.count())) if mark else _Loop()
    body = without_match(body)
    mark_skipped(body)
    statements = _statements(body, scope, None)
    return _with_flags(statements, scope)


def desugar_function(
    body: list[ast.stmt], *, valued: bool = True, read_after: Iterable[str] = ()
) -> list[ast.stmt]:
    """The body of an inlined function: its value is what ``.value`` holds at the end, None where
    there is no such name. ``valued``: whether anything asks for it. ``read_after``: names that are
    read after the body."""
    body = without_match(body, read_after)
    mark_skipped(body)
    valued = valued and any(not _nothing(node.value) for node in returns(body))
    function = _Loop(in_loop=False, valued=valued)
    if valued and not _always(body):
        body = [*body, ast.copy_location(ast.Return(None), body[-1])]
    statements = _statements(body, function, function)
    return _with_flags(statements, function)


def returns(body: list[ast.stmt]) -> list[ast.Return]:
    """The Return statements of a function's body."""
    return [n for node in body if not isinstance(node, ast.FunctionDef)
            for n in own_nodes(node) if isinstance(n, ast.Return)]  # fmt: skip


def _nothing(value: ast.expr | None) -> bool:
    """Whether what is returned is None as it is written."""
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _result(node: ast.Return, valued: bool) -> list[ast.stmt]:
    """What a Return statement leaves to be done, besides leaving."""
    value = node.value or ast.copy_location(ast.Constant(None), node)
    if valued:
        return [placed(ast.Assign([ast.Name(RETURN_VALUE, ast.Store())], value), node)]
    return [] if _nothing(value) else [placed(ast.Expr(value), node)]


def jumps(node: ast.AST) -> set[type]:
    """Which of Return, Break, Continue leave ``node``; those of loops inside it stay inside. Of a
    branch they are kept: a chain of them asks each for those of all below it."""
    known: set[type] | None = known_of(node, "weft_jumping")
    if known is not None:
        return known
    found: set[type] = set()
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        found.add(type(node))
    elif isinstance(node, (ast.For, ast.While)):
        for child in node.body:
            found |= jumps(child) & {ast.Return}
        for child in node.orelse:  # it stands behind the loop
            found |= jumps(child)
    elif isinstance(node, ast.If):
        for child in (*node.body, *node.orelse):
            found |= jumps(child)
        node.weft_jumping = Known(node, found)  # type: ignore[attr-defined]
    return found


def leaving(node: ast.AST, nested: bool = False) -> list[ast.stmt]:
    """The ``break`` and ``return`` statements in ``node`` that leave the loop around it."""
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not nested):
        return [node]
    if isinstance(node, ast.FunctionDef):
        return []
    inside = set[ast.AST](node.body) if isinstance(node, (ast.For, ast.While)) else set[ast.AST]()
    return [j for child in children(node) if isinstance(child, ast.stmt)
            for j in leaving(child, nested or child in inside)]  # fmt: skip


def _always(body: list[ast.stmt]) -> bool:
    """Whether the end of ``body`` is never reached."""
    for node in body:
        match node:
            case ast.Return() | ast.Break() | ast.Continue():
                return True
            case ast.If() if node.orelse and _always(node.body) and _always(node.orelse):
                return True
            case ast.While(test=ast.Constant(value=test)) if test and not _broken_off(node):
                return True
            case ast.Assert(test=ast.Constant(value=test)) if not test:
                return True
            case _:
                pass
    return False


def _broken_off(loop: ast.While) -> bool:
    """Whether a ``break`` leaves ``loop``."""
    return any(ast.Break in jumps(node) for node in loop.body)


def _set(name: str, value: bool, at: ast.AST) -> ast.stmt:
    target = ast.Name(name, ast.Store())
    return placed(ast.Assign([target], ast.Constant(value)), at)


def unless(flag: str, body: list[ast.stmt], at: ast.AST, guard: bool = True) -> ast.If:
    """``body`` where ``flag`` is not set. ``guard``: what comes after ``body`` is guarded by the
    flag, too, so that names which are assigned in it are read in no other case."""
    test = ast.UnaryOp(ast.Not(), ast.Name(flag, ast.Load()))
    node = placed(ast.If(test, body, []), at)
    node.weft_jumps = False, guard  # type: ignore[attr-defined]
    return node


def placed(node: Node, at: ast.AST) -> Node:
    """``node``, whose parts that have no place get that of ``at``."""
    for child in subtree(node):
        if isinstance(child, (ast.stmt, ast.expr)) and not hasattr(child, "lineno"):
            ast.copy_location(child, at)
    return node


def _with_flags(statements: list[ast.stmt], scope: _Loop) -> list[ast.stmt]:
    at = statements[0] if statements else ast.Pass(lineno=1, col_offset=0)
    return [_set(f, False, at) for f in (scope.skip,) if f] + statements


def _statements(
    body: list[ast.stmt], scope: _Loop, function: _Loop | None, flag: str = ""
) -> list[ast.stmt]:
    """``body`` without its jumps. ``flag``: what is set wherever it jumps, if anything is."""
    result: list[ast.stmt] = []
    for k, node in enumerate(body):
        rest = body[k + 1 :]
        if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
            set_flag = [_set(flag, True, node)] if flag else []
            return [*result, *_jump(node, scope, function), *set_flag]
        if isinstance(node, (ast.For, ast.While)):
            loop = _loop(node, scope, function)
            result.append(loop)
            if node.orelse:
                broken = getattr(loop, "weft_break", "")
                # Where it was left, what follows is reached without what is assigned here.
                other = [unless(broken, node.orelse, node, False)] if broken else node.orelse
                rest = [*other, *rest]
            if any(ast.Return in jumps(child) for child in node.body):
                return result + _after_return(rest, scope, function, node, flag)
            if node.orelse:
                return result + _statements(rest, scope, function, flag)
        elif isinstance(node, ast.If) and jumps(node):
            return result + _branch(node, rest, scope, function, flag)
        elif isinstance(node, ast.If):  # loops inside of it may jump
            result.append(_if(node, node.body, node.orelse, scope, function))
        else:
            result.append(node)
    return result


def _jump(
    node: ast.Return | ast.Break | ast.Continue, scope: _Loop, function: _Loop | None
) -> list[ast.stmt]:
    """What a jump leaves to be done."""
    if isinstance(node, ast.Return):
        assert function is not None
        result = _result(node, function.valued)
        if scope.in_loop:
            result.append(_set(_returned(function), True, node))
            result.append(_set(_broken(scope), True, node))
        return result
    return [_set(_broken(scope), True, node)] if isinstance(node, ast.Break) else []


def _if(
    node: ast.If, body: list[ast.stmt], orelse: list[ast.stmt], scope: _Loop,
    function: _Loop | None, flag: str = "",
) -> ast.If:  # fmt: skip
    """``node`` with other statements in its branches."""
    new = copy.copy(node)
    new.body = _statements(body, scope, function, flag) or [ast.copy_location(ast.Pass(), node)]
    new.orelse = _statements(orelse, scope, function, flag)
    return new


def _branch(
    node: ast.If, rest: list[ast.stmt], scope: _Loop, function: _Loop | None, flag: str
) -> list[ast.stmt]:
    """A branch that jumps, and what follows it."""
    if not flag and (_always(node.body) or _always(node.orelse) or not rest):
        body, orelse = (
            side if _always(side) else [*side, *rest] for side in (node.body, node.orelse)
        )
        return [_if(node, body, orelse, scope, function)]
    # Some paths jump and some go on to `rest`: a flag tells.
    skip = flag or _skip(scope, function)
    first = _if(node, node.body, node.orelse, scope, function, skip)
    # Where one side jumps, what the other assigns is read on paths alone that it has reached.
    first.weft_jumps = _always(node.body), _always(node.orelse)  # type: ignore[attr-defined]
    first.weft_flag = skip  # type: ignore[attr-defined]
    result: list[ast.stmt] = [first]
    if rest:
        after = _statements(rest, scope, function, flag) or [ast.copy_location(ast.Pass(), node)]
        result.append(unless(skip, after, node))
    return result


def _after_return(
    rest: list[ast.stmt], scope: _Loop, function: _Loop | None, at: ast.AST, flag: str
) -> list[ast.stmt]:
    """What follows a loop that may have returned from the function."""
    assert function is not None
    returned = _returned(function)
    flags = [*([flag] if flag else []), *([_broken(scope)] if scope.in_loop else [])]
    leave = [_set(name, True, at) for name in flags]
    result: list[ast.stmt] = []
    if leave:
        result.append(placed(ast.If(ast.Name(returned, ast.Load()), leave, []), at))
    if rest:
        result.append(unless(flag or returned, _statements(rest, scope, function, flag), at))
    return result


def _loop(node: ast.For | ast.While, outer: _Loop, function: _Loop | None) -> ast.stmt:
    inner = _Loop(counter=outer.counter)
    new = copy.copy(node)
    body = _statements(node.body, inner, function)
    new.body = _with_flags(body, inner) or [ast.copy_location(ast.Pass(), node)]
    new.orelse = []
    new.weft_break = inner.broken  # type: ignore[union-attr]
    new.weft_certain = names_after(node)  # type: ignore[union-attr]
    new.weft_turns = names_of_turns(node)  # type: ignore[union-attr]
    return new


def _broken(scope: _Loop) -> str:
    if not scope.broken:
        scope.broken = f".broken{next(scope.counter)}"
    return scope.broken


def _skip(scope: _Loop, function: _Loop | None) -> str:
    if not scope.in_loop:
        assert function is not None
        return _returned(function)
    if not scope.skip:
        scope.skip = f".skip{next(scope.counter)}"
    return scope.skip


def _returned(function: _Loop) -> str:
    function.skip = ".returned"
    return function.skip
