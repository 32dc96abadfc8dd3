"""``loop_config`` before a loop of the host part: what it says of the loop that follows.

``configured_loops`` notes the calls at the loop and carries ``serialize`` out: such a loop becomes
the only iteration of a parallel one, wherever it stands. What ``serialize`` is may be known at run
time only: then both forms are there, and the host part chooses.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from weft.errors import KernelSyntaxError
from weft.frontend.names import Scope, parameter_names, statement_lists
from weft.source import FunctionSource

HOST_LOOPS = ("serial", "static")
_HINTS = "weft_hints"  # the attribute of a loop that holds the calls before it


def hints_of(loop: ast.For) -> list[ast.Call]:
    """The calls of ``loop_config`` before ``loop``."""
    return getattr(loop, _HINTS, [])


def configured(loop: ast.For, option: str) -> ast.expr | None:
    """What the ``loop_config`` before ``loop`` gives for an option; None where it gives nothing."""
    given = [k.value for call in hints_of(loop) for k in call.keywords if k.arg == option]
    return given[-1] if given else None


def configured_loops(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The function with its ``loop_config`` calls carried out. Raises ``KernelSyntaxError``."""
    tree = source.tree
    new = copy.copy(tree)
    new.body = _Hints(source, scope, frozenset(parameter_names(tree.args))).block(tree.body)
    return new


class _Hints:
    def __init__(self, source: FunctionSource, scope: Scope, locals: frozenset[str]) -> None:
        self.source = source
        self.scope = scope
        self.locals = locals

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A statement list of the host part. Hints hold for the next loop of the same list."""
        result: list[ast.stmt] = []
        pending: list[ast.Call] = []
        for node in body:
            call = self._hint(node)
            if call is not None:
                pending.append(call)
            elif isinstance(node, ast.For):
                result.append(self._loop(node, pending))
                pending = []
                continue
            elif any(isinstance(inner, ast.For) for inner in ast.walk(node)):
                self._refuse(pending)
            result.append(self._inside(node))
        self._refuse(pending)
        return result

    def _hint(self, node: ast.stmt) -> ast.Call | None:
        """``node``, if it is a call of ``loop_config``."""
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call):
            return None
        return call if self.scope.called(call.func, self.locals) == "loop_config" else None

    def _refuse(self, pending: list[ast.Call]) -> None:
        wanted = _serialize(pending)
        if wanted is not None and not (isinstance(wanted, ast.Constant) and not wanted.value):
            raise KernelSyntaxError(
                "no loop follows `loop_config(serialize=...)` here", self.source.span(pending[-1]),
                help="write it on the line before the loop that it is about",
            )  # fmt: skip

    def _inside(self, node: ast.stmt) -> ast.stmt:
        """A host statement, with what it holds; a device loop's own loops run in order anyhow."""
        if isinstance(node, ast.For) and not self._is_host_loop(node):
            return node
        return with_lists(node, self.block)

    def _is_host_loop(self, node: ast.For) -> bool:
        call = node.iter
        return (
            isinstance(call, ast.Call) and self.scope.called(call.func, self.locals) in HOST_LOOPS
        )

    def _loop(self, node: ast.For, hints: list[ast.Call]) -> ast.stmt:
        if not hints:
            return self._inside(node)
        loop = copy.copy(node)
        setattr(loop, _HINTS, hints)
        wanted = _serialize(hints)
        if wanted is None:
            return self._inside(loop)
        if isinstance(wanted, ast.Constant):
            return once(loop) if wanted.value else self._inside(loop)
        # Two loops that share no node: each is a region of its own.
        choice = ast.If(copy.deepcopy(wanted), [once(copy.deepcopy(loop))], [self._inside(loop)])
        return ast.copy_location(choice, hints[-1])


def _serialize(hints: list[ast.Call]) -> ast.expr | None:
    """What the hints give for ``serialize``; None where they say nothing of it."""
    for call in reversed(hints):
        for keyword in call.keywords:
            if keyword.arg == "serialize":
                return keyword.value
            if keyword.arg is None:  # loop_config(**options): asked at run time
                return ast.copy_location(ast.Attribute(call, "serialize", ast.Load()), call)
    return None


def once(loop: ast.For) -> ast.stmt:
    """The loop as the only iteration of a parallel one."""
    once = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(1)], [])
    new = ast.For(ast.Name("__weft_once__", ast.Store()), once, [loop], [])
    setattr(new, _HINTS, getattr(loop, _HINTS, []))
    for node in (new, once, *ast.walk(once), new.target):
        ast.copy_location(node, loop)
    return new


Block = Callable[[list[ast.stmt]], list[ast.stmt]]


def with_lists(node: ast.stmt, block: Block) -> ast.stmt:
    """``node`` with ``block`` of each statement list that it holds."""
    if not statement_lists(node):
        return node
    new = copy.copy(node)
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(node, name, None), list):
            setattr(new, name, block(getattr(node, name)))
    for name in ("handlers", "cases"):
        if hasattr(node, name):
            parts = [copy.copy(part) for part in getattr(node, name)]
            for part in parts:
                part.body = block(part.body)
            setattr(new, name, parts)
    return new
