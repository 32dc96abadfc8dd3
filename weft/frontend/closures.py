"""Functions defined in a device loop: ``lambda`` and ``def``.

They are lowered where they are called, like other functions, and read the names around them as
they are then. What they assign is their own.
"""

from __future__ import annotations

import ast

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend.context import EXPRESSIONS, STATEMENTS, Lowering
from weft.frontend.desugar import RETURN_VALUE, desugar_function, returns
from weft.frontend.growing import grown
from weft.frontend.inline import limit_calls, returned_value
from weft.frontend.kinds import Keywords, Operand, Static, Tup
from weft.frontend.names import stored_lists
from weft.frontend.scope import Frame, assigned
from weft.values import mutable


@mutable
class LocalFunction:
    """A function of a device loop, with the frame that it stands in. It is the value of a
    ``Static``."""

    node: ast.Lambda | ast.FunctionDef
    frame: Frame
    defaults: dict[str, Operand]

    @property
    def __name__(self) -> str:
        return getattr(self.node, "name", "lambda")


def _made(cx: Lowering, node: ast.Lambda | ast.FunctionDef) -> Static:
    takes = node.args
    places = [a.arg for a in (*takes.posonlyargs, *takes.args)]
    given = dict(zip(places[len(places) - len(takes.defaults) :], takes.defaults, strict=True))
    named = zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
    given |= {a.arg: default for a, default in named if default is not None}
    return Static(LocalFunction(node, cx.frame, {k: cx.expression(v) for k, v in given.items()}))


def _define(cx: Lowering, node: ast.FunctionDef) -> None:
    if node.decorator_list:
        raise KernelSyntaxError("a decorator in a device loop", cx.span(node.decorator_list[0]),
                                help="define the function outside of the kernel")  # fmt: skip
    cx.frame.env[node.name] = _made(cx, node)


def call(
    cx: Lowering, function: LocalFunction, given: list[Operand], named: dict[str, Operand],
    node: ast.Call,
) -> Operand:  # fmt: skip
    """The value of a call of ``function``."""
    span, outer, tree = cx.span(node), cx.frame, function.node
    limit_calls(cx, tree, function.__name__, span)
    values = _bound(function, given, named, span)
    lines = [tree.body] if isinstance(tree, ast.FunctionDef) else []
    body = [s for line in lines for s in desugar_function(line, valued=node is not cx.discarded)]
    site = (tree, span.line, span.column, span.end_line, span.end_column, outer.turns)
    cx.frame = Frame(function.frame.source, (*outer.path, site))
    own = set(values) | set(assigned(body))
    around = function.frame.arguments
    cx.frame.arguments = {k: v for k, v in around.items() if k.partition(".")[0] not in own}
    cx.frame.around = function.frame
    cx.frame.counts, cx.frame.stored = assigned(body), stored_lists(tree)
    cx.frame.grown = grown(tree)
    try:
        for name, operand in values.items():
            cx.frame.counts[name] = cx.frame.counts.get(name, 0) + 1
            cx.assign(name, operand, span)
        if isinstance(tree, ast.Lambda):
            return cx.expression(tree.body)
        cx.frame.counts[RETURN_VALUE] = len(returns(tree.body))
        cx.block(body)
        return returned_value(cx, span)
    finally:
        cx.frame = outer


def _bound(
    function: LocalFunction, given: list[Operand], named: dict[str, Operand], span: Span
) -> dict[str, Operand]:
    """What each parameter is given. Raises ``KernelTypeError``."""
    takes = function.node.args
    places = [a.arg for a in (*takes.posonlyargs, *takes.args)]
    values: dict[str, Operand] = dict(zip(places, given, strict=False))
    rest = given[len(places) :]
    by_name = {a.arg for a in (*takes.args, *takes.kwonlyargs)}
    more = {k: v for k, v in named.items() if k not in by_name}
    twice = values.keys() & named.keys()
    values |= {k: v for k, v in named.items() if k in by_name}
    values = {**function.defaults, **values}
    needed = [*places, *(a.arg for a in takes.kwonlyargs)]
    lacking = [name for name in needed if name not in values]
    if lacking or twice or (rest and not takes.vararg) or (more and not takes.kwarg):
        raise KernelTypeError(
            f"`{function.__name__}` is called with other arguments than it takes", span,
            help=f"it takes ({ast.unparse(takes)})",
        )  # fmt: skip
    if takes.vararg:
        values[takes.vararg.arg] = Tup(rest)
    if takes.kwarg:
        values[takes.kwarg.arg] = Static(Keywords(more))
    return values


EXPRESSIONS[ast.Lambda] = _made
STATEMENTS[ast.FunctionDef] = _define
