"""Kernels whose asserts are left out, as ``weft.init(debug=False)`` asks: Taichi checks them with
``debug=True`` alone. What is asserted is computed all the same, as there: it may call what stores.

Those of functions that weft itself has, written in the language, stay.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from typing import Any

from weft.frontend.names import Scope, bound_names, root_name
from weft.lang.loops import is_func
from weft.source import FunctionSource, copied_tree, read_function, recompiled, subtree

_FUNCTION, _CALLEE = "__weft_without_asserts__", "__weft_callee__"


def left_out(source: FunctionSource) -> ast.FunctionDef:
    """The function of ``source`` without its asserts."""
    if str(source.function.__module__).startswith("weft."):
        return source.tree
    return _Without().visit(copied_tree(source.tree))


class _Without(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return ast.copy_location(ast.Expr(node.test), node)


@functools.lru_cache(256)
def without_asserts(function: types.FunctionType) -> Callable[..., Any]:
    """A ``weft.func`` that Python calls, without its asserts and those of others that it calls."""
    source = read_function(function)
    tree = left_out(source)
    own = {a.arg for a in subtree(tree.args) if isinstance(a, ast.arg)}
    own |= {name for statement in tree.body for name in bound_names(statement)}
    tree = _Calling(Scope.of(function), own).visit(tree)
    tree.name, tree.decorator_list = _FUNCTION, []
    tree.args.kwonlyargs.append(ast.copy_location(ast.arg(_CALLEE), tree))
    tree.args.kw_defaults.append(ast.copy_location(ast.Constant(None), tree))
    made = recompiled(tree, function, function.__globals__)
    made.__kwdefaults__ = {**(function.__kwdefaults__ or {}), _CALLEE: without_asserts}
    made.__annotations__ = function.__annotations__
    return made


class _Calling(ast.NodeTransformer):
    """Has calls of functions of weft's be those of ``without_asserts``."""

    def __init__(self, scope: Scope, own: set[str]) -> None:
        self.scope, self.own = scope, own

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        root = root_name(node.func)
        function = self.scope.resolve(node.func) if root and root not in self.own else None
        if isinstance(function, types.FunctionType) and is_func(function):
            callee = ast.Name(_CALLEE, ast.Load())
            node.func = ast.Call(callee, [node.func], [])
            for made in (node.func, callee):
                ast.copy_location(made, node)
        return node
