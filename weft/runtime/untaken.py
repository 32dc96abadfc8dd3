"""What Python evaluates of a choice though nobody takes it: ``weft.select(i > 0, x[i - 1], 0.0)``
where ``i`` is 0. A compiled loop reads no element there (``frontend/guarded_loads.py``), so an
element out of range is no error."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from weft.errors import KernelIndexError
from weft.frontend.names import MISSING, Scope
from weft.lang import names
from weft.lang.dtypes import quietly
from weft.source import subtree
from weft.values import mutable

CHOICE = "__weft_choice__"
BOTH = "__weft_both__"
_LAZY = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)  # not what a lambda could hold


@mutable
class Untaken:
    """Whether what is evaluated now is not taken."""

    active: bool = False

    @property
    def hidden(self) -> dict[str, Any]:
        return {CHOICE: self._choice, BOTH: self._both}

    @contextmanager
    def _unless(self, taken: bool) -> Generator[None]:
        before, self.active = self.active, self.active or not taken
        try:
            yield
        finally:
            self.active = before

    def _choice(
        self, function: Callable[..., Any], condition: Any, yes: Callable[[], Any],
        no: Callable[[], Any],
    ) -> Any:  # fmt: skip
        """``function(condition, yes(), no())``, a choice of elements."""
        holds = _decided(condition)
        with self._unless(holds is not False):
            a = yes()
        with self._unless(holds is not True):
            b = no()
        return function(condition, a, b)

    def _both(self, decides: bool, left: Callable[[], Any], right: Callable[[], Any]) -> Any:
        """``left() & right()``, or with ``|``, where one side that is ``decides`` is enough."""
        function = operator.or_ if decides else operator.and_
        try:
            a = left()
        except KernelIndexError:
            b = right()
            if _decided(b) is not decides:
                raise
            with self._unless(False):
                return function(left(), b)
        with self._unless(_decided(a) is not decides):
            return function(a, right())


def _decided(condition: Any) -> bool | None:
    """The truth of one bool, else None."""
    if isinstance(condition, torch.Tensor):
        with quietly():
            one = condition.dtype == torch.bool and condition.numel() == 1
            return bool(condition) if one else None
    return condition if isinstance(condition, bool) else None


def choice(node: ast.expr, scope: Scope) -> ast.expr:
    """``node``, of which one side may not be taken, with both sides as functions."""
    match node:
        case ast.Call(func=func, args=[condition, yes, no], keywords=[]) if _reads(yes, no):
            value = scope.resolve(func)
            if value is MISSING or names.canonical(value) != "select":
                return node
            return _call(CHOICE, node, func, condition, _later(yes), _later(no))
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as op, right=right):
            if not any(map(_is_truth, (left, right))) or not _reads(left, right):
                return node
            given = ast.copy_location(ast.Constant(isinstance(op, ast.BitOr)), node)
            return _call(BOTH, node, given, _later(left), _later(right))
        case _:
            return node


def _reads(*parts: ast.expr) -> bool:
    inside = [n for part in parts for n in subtree(part)]
    lazy = any(isinstance(n, _LAZY) for n in inside)
    return any(isinstance(n, ast.Subscript | ast.Call) for n in inside) and not lazy


def _is_truth(node: ast.expr) -> bool:
    """Whether ``node`` is written as something true or false."""
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            return _is_truth(left) or _is_truth(right)
        case ast.Call(func=ast.Name(id=name)):
            return name == BOTH  # one that has been made of it
        case _:
            return isinstance(node, ast.Compare | ast.BoolOp)


def _later(node: ast.expr) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.copy_location(ast.Lambda(nothing, node), node)


def _call(name: str, place: ast.expr, *given: ast.expr) -> ast.expr:
    called = ast.copy_location(ast.Name(name, ast.Load()), place)
    return ast.copy_location(ast.Call(called, list(given), []), place)
