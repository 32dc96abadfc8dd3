"""Functions defined in a device loop: ``lambda`` and ``def``.

They are lowered where they are called, like other functions, and read the names around them as
they are then. What they assign is their own.
"""

from __future__ import annotations

import ast

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import lists, moves, objects
from weft.frontend.context import EXPRESSIONS, STATEMENTS, Lowering
from weft.frontend.desugar import RETURN_VALUE, desugar_function, returns
from weft.frontend.growing import grown
from weft.frontend.inline import changes, limit_calls, returned_value
from weft.frontend.kinds import Keywords, Operand, Static, Tup
from weft.frontend.names import bound_names, stored_lists
from weft.frontend.objects import LocalFunction
from weft.frontend.scope import Frame, assigned, note_counts


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
    bound = {*values, *(n for s in body for n in bound_names(s))}
    around = objects.around(cx, function, bound, span)
    cx.frame = Frame(function.frame.source, (*outer.path, site), caller=outer, cells=outer.cells)
    own = set(values) | set(assigned(body))
    outside = function.frame.arguments
    cx.frame.arguments = {k: v for k, v in outside.items() if k.partition(".")[0] not in own}
    cx.frame.around, cx.frame.tree = function.frame, tree
    note_counts(cx.frame, body)
    cx.frame.stored = stored_lists(tree)
    cx.frame.grown = grown(tree)
    cx.frame.given, cx.frame.imported = frozenset(values), frozenset(around)
    cx.frame.shared = frozenset({*around, *(n for n, x in values.items() if any(objects.held(x)))})
    places = _places(function, node)
    try:
        lists.check_given(cx, values, places, node, outer)
        cx.frame.env |= around
        for name, operand in values.items():
            cx.frame.counts[name] = cx.frame.counts.get(name, 0) + 1
            cx.assign(name, operand, span)
            objects.give(cx, name, cx.frame.env[name], body)
        if isinstance(tree, ast.Lambda):
            pending, begin = cx.pending, cx.begin
            cx.pending, cx.begin = [], 0
            value = cx.expression(tree.body)
            cx.pending, cx.begin = pending, begin
        else:
            cx.frame.counts[RETURN_VALUE] = len(returns(tree.body))
            moves.begin(cx, body, values, span)
            cx.block(body)
            moves.check(cx)
            value = returned_value(cx, span)
        inner = cx.frame
    finally:
        cx.frame = outer
    objects.check_around(cx, function, inner, span)
    moves.called(cx, inner, tree, places, node)
    places = {**places, **{n: ast.Name(n, ast.Load()) for n in around}}
    changes(cx, function.__name__, inner, {**values, **around}, places, node)
    return value


def _places(function: LocalFunction, node: ast.Call) -> dict[str, ast.expr]:
    """What a call writes for each parameter."""
    takes = function.node.args
    names = [a.arg for a in (*takes.posonlyargs, *takes.args)]
    if any(isinstance(a, ast.Starred) for a in node.args):
        return {}
    return {**dict(zip(names, node.args, strict=False)),
            **{k.arg: k.value for k in node.keywords if k.arg}}  # fmt: skip


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
