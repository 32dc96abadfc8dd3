"""A kernel's function, changed as little as checked interpretation needs.

Every loop's iterable is handed to a hidden function first, annotated assignments cast, and
assigning a vector or a struct copies it. Line and column numbers stay those of the file, so that
breakpoints, pdb and tracebacks show the user's text.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.frontend.callees import mentions
from weft.frontend.hints import EITHER, ITERATION
from weft.frontend.names import Reads, Scope, dotted
from weft.lang.dtypes import DType
from weft.lang.elements import Elementwise
from weft.lang.numbers import copied
from weft.lang.random import DRAWS
from weft.lang.vectors import MatrixType, VectorType
from weft.runtime import untaken
from weft.source import FunctionSource, copied_tree, recompiled, subtree

LOOP = "__weft_loop__"
INNER = "__weft_ordered__"  # of a device loop whose iterations run in order
CAST = "__weft_cast__"
COPY = "__weft_copy__"
LATE = "__weft_late__"  # of what an element is updated with, which calls may have changed
SETTLED = "__weft_settled__"  # after that statement
_FUNCTION = "__weft_interpreted__"  # while it is compiled: no name that its body may read


class _Instrument(ast.NodeTransformer):
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def visit_Assign(self, node: ast.Assign | ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = _copied(node.value)
        return node

    visit_NamedExpr = visit_Assign

    def visit_For(self, node: ast.For) -> ast.AST:
        inside = any(getattr(n, ITERATION, False) for s in node.body for n in subtree(s))
        draws = not inside and mentions(node, self.scope, DRAWS)
        reads = Reads()
        reads.statement(node, frozenset())
        chains: Any = tuple(dict.fromkeys(map(dotted, reads.chains)))
        self.generic_visit(node)
        inner = getattr(node, ITERATION, False)
        said = [ast.Constant(draws), *([] if inner else [ast.Constant(chains)])]
        said = [ast.copy_location(constant, node.iter) for constant in said]
        node.iter = _call(INNER if inner else LOOP, node.iter, node.iter, *said)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """Of a loop over elements that may be compiled, Python's own form."""
        if hasattr(node, EITHER):
            node.test, node.orelse = ast.copy_location(ast.Constant(True), node), []
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None or not node.simple:
            return node
        value = _call(CAST, node.value, node.annotation, _copied(node.value))
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.AST]:
        """``x[i] += f()`` is of the element as ``f`` leaves it, as where ``x[i]`` is a view."""
        self.generic_visit(node)
        calls = any(isinstance(part, ast.Call) for part in ast.walk(node.value))
        if not isinstance(node.target, ast.Subscript) or not calls:
            return node
        node.value = _call(LATE, node.value, node.value)
        return [node, ast.copy_location(ast.Expr(_call(SETTLED, node)), node)]

    def visit_BinOp(self, node: ast.BinOp | ast.Call) -> ast.AST:
        self.generic_visit(node)
        return untaken.choice(node, self.scope)

    visit_Call = visit_BinOp

    def _inner(self, node: Any) -> Any:
        return node  # functions and classes defined inside are left alone

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _inner


def _copied(value: ast.expr) -> ast.expr:
    """``value`` as an assignment has it: vectors and structs are copied."""
    if isinstance(value, ast.Tuple | ast.List):
        value.elts = [_copied(item) for item in value.elts]
        return value
    named = ast.Name | ast.Attribute | ast.Subscript | ast.IfExp | ast.BoolOp | ast.NamedExpr
    return _call(COPY, value, value) if isinstance(value, named) else value


def _call(name: str, place: ast.expr | ast.stmt, *args: ast.expr) -> ast.Call:
    called = ast.copy_location(ast.Name(name, ast.Load()), place)
    return ast.copy_location(ast.Call(called, list(args), []), place)


def instrument(
    function: Callable[..., Any],
    source: FunctionSource,
    hidden: Mapping[str, Any],
    convert: Callable[[Any], Any],
) -> types.FunctionType:
    """``function`` with its loops and annotated assignments announced.

    ``hidden`` maps LOOP, INNER and CAST to functions; the first two get what a loop goes over and
    whether it may draw random numbers, LOOP also the names that it reads. ``convert`` is applied to
    every global and closed-over value that the function sees. The signature, defaults and name
    stay.
    """
    tree = copied_tree(source.tree)
    tree.name, tree.decorator_list = _FUNCTION, []
    visitor = _Instrument(Scope.of(function))
    tree.body = visitor.visit(ast.Module(tree.body, [])).body
    visible = {name: convert(value) for name, value in function.__globals__.items()}
    made = recompiled(
        tree, function, {**visible, COPY: copied, **hidden}, lambda cell: _converted(cell, convert)
    )
    made.__annotations__ = function.__annotations__
    return made


def _converted(cell: types.CellType, convert: Callable[[Any], Any]) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet: Python raises NameError if it is used
        return cell
    changed = convert(value)
    return cell if changed is value else types.CellType(changed)


def cast(annotation: Any, value: Any) -> Any:
    """What ``name: annotation = value`` assigns in a kernel. Other annotations change nothing."""
    if isinstance(annotation, str):
        return value
    if isinstance(annotation, DType | VectorType | MatrixType):
        return annotation(value)
    if annotation is float and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value
    if annotation in (int, float, bool) and not isinstance(value, Elementwise):
        return annotation(value)
    return value
