"""Functions that have some of their arguments: ``functools.partial``, methods of ``super()``,
``operator.itemgetter`` and ``operator.attrgetter``."""

from __future__ import annotations

import ast
import functools
import operator
import types
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import expressions, making, named, records
from weft.frontend.arguments import keywords, positional
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.kinds import Operand, Static, Tup, constant_value, describe
from weft.frontend.objects import Making, Partial
from weft.frontend.scope import Frame, Guard
from weft.values import mutable

_GETTERS = (operator.itemgetter, operator.attrgetter)


@mutable
class _Fields:
    """The ``__init__`` that ``dataclass`` makes of ``kind``, of ``new``, which is being made."""

    kind: type
    new: Operand


def call(cx: Lowering, node: ast.Call, function: Operand) -> Operand | None:
    """A call that makes one of these functions, or is one of it; None of another call."""
    target = constant_value(function)
    if isinstance(target, Partial):
        given = [*target.given, *positional(cx, node)]
        by_name = target.named | keywords(cx, node)
        del cx.pending[cx.begin :]  # the function has these now
        return named.called(cx, target.function, given, by_name, cx.span(node), node)
    if isinstance(target, _Fields):
        made = records.make(
            cx, target.kind, positional(cx, node), keywords(cx, node), cx.span(node)
        )
        assert isinstance(made, Tup)
        for name, item in zip(made.names, made.items, strict=True):
            named.put(cx, target.new, name, item, cx.span(node))
        return Static(None)
    if how := making.begins(target):
        return None if records.makes_records(target) else making.make(cx, node, target, how)
    if target is functools.partial and node.args:
        held, *given = positional(cx, node)
        return Static(Partial(held, given, keywords(cx, node)))
    if isinstance(target, _GETTERS):
        return _got(cx, target, positional(cx, node), node)
    if any(target is kind for kind in _GETTERS):
        wanted = [constant_value(x) for x in positional(cx, node)]
        if not wanted or None in wanted or node.keywords:
            raise KernelTypeError(
                f"`{ast.unparse(node.func)}` of what is known at run time", cx.span(node),
                help="write a lambda: lambda v: v[k]",
            )  # fmt: skip
        return Static(target(*wanted))
    return None


def _got(cx: Lowering, getter: Any, given: list[Operand], node: ast.Call) -> Operand:
    """What an ``itemgetter`` or ``attrgetter`` finds."""
    wanted, span = getter.__reduce__()[1], cx.span(node)
    if len(given) != 1 or node.keywords:
        raise KernelTypeError(f"`{ast.unparse(node.func)}` takes one object", span,
                              help="call it as getter(x)")  # fmt: skip
    found: list[Operand] = []
    for name in wanted:
        x = given[0]
        if isinstance(getter, operator.attrgetter):
            for part in name.split("."):
                x = expressions.attribute(cx, x, part, span)
        else:
            key = ast.copy_location(ast.Constant(name), node)
            item = ast.Subscript(named.Given(x, node), key, ast.Load())
            x = cx.expression(ast.copy_location(item, node))
        found.append(x)
    return found[0] if len(found) == 1 else Tup(found)


# --- super() -------------------------------------------------------------------------------------
def _super(cx: Lowering, node: ast.Call, name: str, span: Span) -> Operand:
    """``super().name``: of the classes behind the one whose text this is, in the order of the
    receiver's class."""
    frame: Frame = cx.frame
    while frame.around is not None:
        frame = frame.around
    code, cells = frame.source.function.__code__, frame.source.function.__closure__ or ()
    held = dict(zip(code.co_freevars, cells, strict=True)).get("__class__")
    if held is None or node.args or node.keywords or not code.co_argcount:
        raise KernelTypeError("`super()` outside of a method, or with arguments", span,
                              help="write super().method(...) in a method")  # fmt: skip
    owner, receiver = held.cell_contents, frame.lookup(code.co_varnames[0], span, cx.guards)
    kind: Any = receiver.struct if isinstance(receiver, Tup) else constant_value(receiver)
    is_new = isinstance(kind, Making)
    if not isinstance(kind, type):
        kind = kind.kind if is_new else type(kind)
    if owner not in kind.__mro__:
        raise KernelTypeError(f"`super()` of {describe(receiver)}", span,
                              help="call the method of an object of the class")  # fmt: skip
    for base in kind.__mro__[kind.__mro__.index(owner) + 1 :]:
        if name in vars(base):
            found = vars(base)[name]
            cx.guards += [Guard(base, name, getattr(base, name))] if base is not object else []
            if name == "__init__" and records.makes_records(base) and is_new:
                return Static(_Fields(base, receiver))
            return _of_base(cx, found, receiver, Static(kind), span)
    raise KernelTypeError(f"`super()` of `{owner.__name__}` has no `{name}`", span,
                          help="check the spelling")  # fmt: skip


def _of_base(cx: Lowering, found: Any, x: Operand, kind: Static, span: Span) -> Operand:
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        return named.inlined(cx, found.fget, [x], span)
    if isinstance(found, types.FunctionType):
        return Static(Partial(Static(found), [x], {}))
    if isinstance(found, classmethod):
        return Static(Partial(Static(found.__func__), [kind], {}))
    if found is object.__init__:
        return Static(Partial(Static(_nothing), [], {}))
    return Static(found.__func__ if isinstance(found, staticmethod) else found)


def _nothing() -> None:
    """What ``object`` does to begin one."""


_attribute_of = EXPRESSIONS[ast.Attribute]


def _attribute(cx: Lowering, node: ast.Attribute) -> Operand:
    match node.value:
        case ast.Call(func=ast.Name(id="super")) as made if (
            constant_value(cx.expression(made.func)) is super
        ):
            return _super(cx, made, node.attr, cx.span(node))
        case ast.Name(id=name) if isinstance(constant_value(cx.frame.env.get(name)), Making):
            return named.member_of_new(cx, cx.frame.env[name], node.attr, cx.span(node))
        case _:
            return _attribute_of(cx, node)


EXPRESSIONS[ast.Attribute] = _attribute
