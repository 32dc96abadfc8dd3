"""Plain Python functions that a device loop calls: their bodies are lowered where they are called.

Parameters and results that are annotated with a dtype are converted. A parameter annotated
``weft.template()`` is the caller's own variable: what the function assigns to it, it has after the
call.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from weft.errors import KernelSyntaxError, KernelTypeError, KernelValueError, Span
from weft.frontend import casts, lists, loops, moves, objects, records
from weft.frontend.accumulations import atomics
from weft.frontend.as_statements import ChangedInPartError, is_part
from weft.frontend.context import Lowering
from weft.frontend.desugar import RETURN_VALUE, desugar_function, returns
from weft.frontend.growing import grown
from weft.frontend.kinds import (
    OpaqueKind,
    Operand,
    Scalar,
    Static,
    Tensor,
    Tup,
    Unbound,
    Vec,
    dtype_of,
    is_complex,
)
from weft.frontend.named import is_record
from weft.frontend.names import Scope, stored_lists
from weft.frontend.parameters import annotations_of, assigned_references, returned_types
from weft.frontend.scope import Frame, note_counts, noted, referenced
from weft.lang.dtypes import ComplexType, DType
from weft.lang.loops import is_func
from weft.lang.numbers import strong
from weft.lang.types import is_template
from weft.lang.vectors import MatrixType, VectorType
from weft.source import read_function, subtree

MOST_CALLS = 10_000  # of one loop
MOST_LEVELS = 32  # of a function that calls itself


def inline(
    cx: Lowering, function: Any, arguments: dict[str, Operand], places: dict[str, ast.expr],
    node: ast.Call, origin: Static | None = None,
) -> Operand:  # fmt: skip
    """The value of a call. ``places``: what was written for each parameter, where that is known;
    ``origin``: the function, where an argument is or holds it."""
    span = cx.span(node)
    source = cx.sources.get(function)
    if source is None:
        source = cx.sources[function] = read_function(function, cx.source.name)
        source.asserts = cx.source.asserts
        source.tree = atomics(source, Scope.of(function))
    outer = cx.frame
    at = outer.source.span(node)
    site = (function, at.line, at.column, at.end_line, at.end_column, outer.turns)
    limit_calls(cx, function, source.name, span)
    hints = annotations_of(function)
    body = desugar_function(source.tree.body, valued=node is not cx.discarded)
    cx.frame = Frame(source, (*outer.path, site), caller=outer, origin=origin, cells=outer.cells)
    cx.frame.called_at = outer.called_at or (span if _is_own(function) else None)
    note_counts(cx.frame, body)
    cx.frame.stored = stored_lists(source.tree)
    cx.frame.grown = grown(source.tree)
    own = {
        n for n, hint in hints.items() if is_template(hint) and isinstance(places.get(n), ast.Name)
    }
    cx.frame.given = frozenset(arguments) - own
    shared = {n for n in arguments if records.is_shared(function, n, arguments)}
    placed = {n for n, hint in hints.items() if is_template(hint) and n in places}
    cx.frame.shared = frozenset(shared | {n for n in placed - own if is_record(arguments[n])})
    cx.frame.counts[RETURN_VALUE] = len(returns(source.tree.body))  # its end, if reached, is none
    try:
        lists.check_given(cx, arguments, places, node, outer)
        for name, operand in arguments.items():
            cx.frame.counts[name] = cx.frame.counts.get(name, 0) + 1
            operand = _converted(cx, operand, hints.get(name), span)
            if isinstance(operand, (Scalar, Vec, Tup, Static)):
                cx.assign(name, operand, span)
            else:
                cx.frame.env[name] = operand
            if name in shared:
                objects.give(cx, name, cx.frame.env[name], source.tree.body)
        moves.begin(cx, body, arguments, span)
        cx.block(body)
        moves.check(cx)
        value = returned_value(cx, span)
        value = _returned(cx, value, returned_types(function), span)
        inner = cx.frame
    finally:
        cx.frame = outer
    after, changed = inner.env, inner.changed
    moves.called(cx, inner, source.tree, places, node)
    targets = changes(cx, source.name, inner, arguments, places, node, is_func(function))
    for name in _references(source.tree, hints, arguments):
        if name in places and name not in changed and not isinstance(after[name], Unbound):
            target = _target(cx, source.name, name, places[name], arguments[name], span)
            if any(ast.unparse(t) == ast.unparse(target) for t in targets):
                raise KernelTypeError(
                    f"`{source.name}` assigns to two template()s, and both are "
                    f"`{ast.unparse(target)}`", span, help="pass a copy for one of them",
                )  # fmt: skip
            cx.bind(target, after[name], span)
            targets.append(target)
    check_whole(cx, source.name, targets, span)
    note(cx, node, targets)
    return value


def changes(
    cx: Lowering, function: str, inner: Frame, arguments: dict[str, Operand],
    places: dict[str, ast.expr], node: ast.Call, copies: bool = False,
) -> list[ast.expr]:  # fmt: skip
    """Has the caller's variables be what ``function``, whose frame is ``inner``, has made of what
    it was called with; gives these variables. ``copies``: it is a ``weft.func``."""
    span = cx.span(node)
    names = objects.hand_back(cx, function, inner.changed_objects, inner.env, node, span)
    if names and copies:
        raise KernelTypeError(
            f"`{function}` changes `{names[0]}`, and is a weft.func, which has copies", span,
            help="take the decorator off, or return a new object",
        )  # fmt: skip
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    for name in sorted(inner.changed):
        place = _named(cx, function, name, places.get(name), span)
        target = _target(cx, function, name, place, arguments[name], span)
        records.check_changed(cx, _root(target) or "", arguments[name], arguments[name], span)
        cx.bind(target, inner.env[name], span)
        targets.append(target)
    objects.check_lent(cx, function, inner, span)
    check_whole(cx, function, targets, span)
    note(cx, node, targets)
    return targets


def _named(
    cx: Lowering, function: str, name: str, place: ast.expr | None, span: Span
) -> ast.expr:  # fmt: skip
    """``place``, which an object that ``function`` changes was passed by, if it is a variable."""
    if place is None or not isinstance(place, ast.Name | ast.Attribute | ast.Subscript):
        raise KernelTypeError(
            f"`{function}` changes `{name}`, which has no name here", span,
            help="give the object a name before the call",
        )  # fmt: skip
    held = {n.id for n in subtree(place) if isinstance(n, ast.Name)}
    if not held & {*cx.frame.env}:
        raise KernelTypeError(
            f"`{function}` changes `{ast.unparse(place)}`, which is no variable here", span,
            help="pass the object to the function that changes it",
        )  # fmt: skip
    return place


def check_whole(cx: Lowering, function: str, targets: Sequence[ast.expr], span: Span) -> None:
    """Refuses a change in a part of a statement that need not run, or runs several times."""
    if targets and is_part(cx):
        raise ChangedInPartError(
            f"`{function}` changes `{ast.unparse(targets[0])}` where only part of a statement "
            "may run, or runs several times", span,
            help="call it in a statement of its own, before the condition, or in a loop",
        )  # fmt: skip


def _is_own(function: Any) -> bool:
    """Whether a function is written in the language by weft: whose lines mean nothing to a user."""
    return (getattr(function, "__module__", None) or "").startswith("weft.lang.")


def limit_calls(cx: Lowering, function: Any, name: str, span: Span) -> None:
    """Refuses recursion without a bound that is known at compile time, and too many calls."""
    if sum(part[0] is function for part in cx.frame.path) > MOST_LEVELS:
        raise KernelSyntaxError(
            f"`{name}` calls itself, more than {MOST_LEVELS} levels deep", span,
            help="recursion is written out: it has to end by what is known at compile time; write "
            "a loop, or a stack in a local array",
        )  # fmt: skip
    cx.inlined += 1
    if cx.inlined > MOST_CALLS:
        raise KernelValueError(
            f"a loop with more than {MOST_CALLS:,} calls of Python functions, each of which is "
            f"compiled where it stands: the last is one of `{name}`", span,
            help="functions that each call the one below twice double them with every level: call "
            "it once and pass what it gives on, or write a loop",
        )  # fmt: skip


def returned_value(cx: Lowering, span: Span) -> Operand:
    """What the function that was lowered returns."""
    value = cx.frame.env.get(RETURN_VALUE, Static(None))
    if not isinstance(value, Unbound):
        return value
    kind = cx.kinds.get((*cx.frame.path, RETURN_VALUE))
    if kind is None or isinstance(kind, OpaqueKind):
        raise KernelTypeError(f"`{cx.frame.source.name}` returns an object from inside a loop",
                              span, help="return numbers or vectors")  # fmt: skip
    assert cx.widened  # only the next round knows at a loop's start what the loop returns
    return loops.zeros(cx, kind)


def _references(
    tree: ast.FunctionDef, hints: dict[str, Any], arguments: dict[str, Operand]
) -> list[str]:
    """The parameters that are the caller's variables and were assigned, in the function or in one
    that it calls."""
    found = assigned_references(tree, hints)
    names = [name for name, hint in hints.items() if name != "return" and is_template(hint)]
    if names:
        called: set[str] = set().union(*map(referenced, subtree(tree)))
        found |= {name: True for name in names if name in called}
    return [n for n, bound in found.items() if bound or isinstance(arguments.get(n), Vec | Tup)]


def _converted(cx: Lowering, x: Operand, annotation: Any, span: Span) -> Operand:
    """``x`` as the annotation says. What is known when the kernel is compiled stays known."""
    if not isinstance(annotation, DType | ComplexType | VectorType | MatrixType):
        return x
    if isinstance(annotation, DType) and isinstance(x, Static) and dtype_of(x) is not None:
        casts.cast(cx, x, annotation, span)  # refuses what does not fit
        return Static(strong(x.value, annotation))
    scalar = dtype_of(x) is not None or is_complex(x) or (isinstance(x, Tensor) and x.rank == 0)
    return casts.cast(cx, x, annotation, span) if scalar or isinstance(x, (Vec, Tup)) else x


def _returned(cx: Lowering, x: Operand, wanted: Any, span: Span) -> Operand:
    if isinstance(wanted, tuple) and isinstance(x, Tup) and len(x.items) == len(wanted):
        return Tup([_returned(cx, item, w, span) for item, w in zip(x.items, wanted, strict=True)])
    return _converted(cx, x, wanted, span)


def _target(
    cx: Lowering, function: str, name: str, place: ast.expr, x: Operand, span: Span
) -> ast.expr:
    """The caller's variable that is the parameter ``name``."""
    root = _root(place)
    if root is None or not isinstance(place, ast.Name | ast.Subscript | ast.Attribute):
        raise KernelTypeError(
            f"`{function}` assigns to `{name}`, a template(), and `{ast.unparse(place)}` is no "
            "variable", cx.span(place),
            help="give it a name before the call, or have the function return the value",
        )  # fmt: skip
    if isinstance(place, ast.Name) and (isinstance(x, Tensor) or root not in cx.frame.env):
        what = "a tensor" if isinstance(x, Tensor) else "from outside of the loop"
        raise KernelTypeError(
            f"`{function}` assigns to `{name}`, a template(), and `{root}` is {what}",
            cx.span(place), help=f"store into `{name}[...]`, or return the value: "
            f"`other = {function}(...)`",
        )  # fmt: skip
    return place


def _root(place: ast.expr) -> str | None:
    """The variable that ``place`` is, or is a part of."""
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return place.id if isinstance(place, ast.Name) else None


def note(cx: Lowering, node: ast.Call, targets: list[ast.expr]) -> None:
    """Has ``scope.assigned`` know that the call assigns; branches and loops around it ask that."""
    roots = {root for t in targets if (root := _root(t)) is not None}
    if noted(node, roots):
        cx.widened = True  # what was lowered before this call did not know: once more
