"""Kernels whose asserts are left out, as ``weft.init(debug=False)`` asks: Taichi checks them with
``debug=True`` alone. What is asserted is computed all the same, as there: it may call what stores.

Those of functions that weft itself has, written in the language, stay.
"""

from __future__ import annotations

import ast
import copy

from weft.source import FunctionSource


def left_out(source: FunctionSource) -> ast.FunctionDef:
    """The function of ``source`` without its asserts."""
    if str(source.function.__module__).startswith("weft."):
        return source.tree
    return _Without().visit(copy.deepcopy(source.tree))


class _Without(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return ast.copy_location(ast.Expr(node.test), node)
