"""Annotations of locals that say what Python says: nothing. ``a: list[float] = []`` is ``a = []``,
while those of numbers, vectors and matrices convert."""

from __future__ import annotations

import ast
import collections
import typing
from collections.abc import Iterable, MutableSequence, Sequence
from typing import Any

from weft.frontend.desugar import placed
from weft.frontend.names import Scope
from weft.source import copied_tree, subtree

_CONTAINERS = (list, tuple, collections.deque, Sequence, MutableSequence, Iterable)
_NUMBERS = (int, float, bool, complex, ...)


def without_containers(tree: ast.FunctionDef, scope: Scope) -> ast.FunctionDef:
    """``tree`` with the values of these as plain assignments."""
    if not any(isinstance(node, ast.AnnAssign) for node in subtree(tree)):
        return tree
    return _Plain(scope).visit(copied_tree(tree))


class _Plain(ast.NodeTransformer):
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None or not self._of_a_container(node.annotation):
            return node
        return placed(ast.Assign([node.target], node.value), node)

    def _of_a_container(self, annotation: ast.expr) -> bool:
        """Whether it is ``list``, ``list[float]`` or ``tuple[list[int], ...]``, say. (A dtype in it
        might be taken for a conversion.)"""
        match annotation:
            case ast.Subscript(value=kind, slice=ast.Tuple(elts=items)):
                pass
            case ast.Subscript(value=kind, slice=item):
                items = [item]
            case kind:
                items = []
        return self._is_one(kind, _CONTAINERS) and all(
            self._is_one(item, _NUMBERS) or self._of_a_container(item) for item in items
        )

    def _is_one(self, node: ast.expr, kinds: tuple[Any, ...]) -> bool:
        if isinstance(node, ast.Constant):
            return node.value is ... and ... in kinds
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        value = self.scope.resolve(node)
        return any((typing.get_origin(value) or value) is kind for kind in kinds)
