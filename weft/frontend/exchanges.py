"""Rows of a list of lists that change places."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from weft.errors import KernelTypeError
from weft.frontend.context import Lowering
from weft.frontend.desugar import placed
from weft.frontend.kinds import Operand, Part, Row, Tensor, Tup, View, of_lists
from weft.frontend.names import without_subscripts
from weft.frontend.scope import Frame
from weft.source import subtree


def exchanged(cx: Lowering, node: ast.Assign) -> list[ast.stmt] | None:
    """``t[i], t[j] = t[j], t[i]`` of a list of lists: the loop that exchanges the elements of two
    rows; None of another assignment. Raises ``KernelTypeError`` where a row has another name, which
    would go on to be that row."""
    match node:
        case ast.Assign(
            targets=[ast.Tuple(elts=[ast.Subscript() as a, ast.Subscript() as b])],
            value=ast.Tuple(elts=[ast.Subscript() as c, ast.Subscript() as d]),
        ) if (ast.unparse(a), ast.unparse(b)) == (ast.unparse(d), ast.unparse(c)):
            pass
        case _:
            return None
    name, span = getattr(without_subscripts(a), "id", ""), cx.span(node)
    whole = cx.frame.env.get(name)
    if not isinstance(whole, Tensor) or not of_lists(whole):
        return None
    inner = [n for place in (a, b) for n in subtree(place)]
    names = [n.id for n in inner if isinstance(n, ast.Name)].count(name)
    again = names > 2 or any(isinstance(n, ast.Call | ast.NamedExpr) for n in inner)
    if again or getattr(without_subscripts(b), "id", "") != name or not of_lists(cx.expression(d)):
        return None
    for other, x in _variables(cx.frame):
        if any(view.tensor.memref is whole.memref for view in _views(x)):
            raise KernelTypeError(
                f"rows of `{name}` are exchanged, and `{other}` is one of them", span,
                help=f"write {name}[i] in place of `{other}`, or give it a copy",
            )  # fmt: skip
    known: list[ast.stmt] | None = getattr(node, "weft_exchange", None)
    if known is None:
        k = f"k {ast.unparse(a)} {node.lineno}:{node.col_offset}"
        at = ast.Name(k, ast.Load())
        elements: list[ast.expr] = [ast.Subscript(row, at, ast.Load()) for row in (c, d)]
        places: list[ast.expr] = [ast.Subscript(row, at, ast.Store()) for row in (d, c)]
        one = ast.Assign([ast.Tuple(places, ast.Store())], ast.Tuple(elements, ast.Load()))
        size = ast.Call(ast.Constant(len), [c], [])  # type: ignore[arg-type]
        over = ast.Call(ast.Constant(range), [size], [])  # type: ignore[arg-type]
        known = [placed(ast.For(ast.Name(k, ast.Store()), over, [one], []), node)]
        node.weft_exchange = known  # type: ignore[attr-defined]
    return known


def _variables(frame: Frame | None) -> Iterator[tuple[str, Operand]]:
    """Those of the function that is lowered, and of all that have called it."""
    while frame is not None:
        yield from frame.env.items()
        frame = frame.caller


def _views(x: Operand) -> list[View | Part]:
    """The parts of tensors that ``x`` is or holds."""
    if isinstance(x, Tup):
        return [view for item in x.items for view in _views(item)]
    if isinstance(x, Row):
        return [x.view] if x.view else list(x.choice.views if x.choice else ())
    return [x] if isinstance(x, Part) else []
