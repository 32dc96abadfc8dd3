"""Calls in a kernel: the functions that the language knows, casts, methods, inlined functions.

``HANDLERS[canonical name]`` lowers one call; canonical names are those of ``weft.lang.names``. What
is not there is a plain Python function, which is inlined, or refused.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import operator
import types
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    aggregates,
    bits,
    closures,
    collections,
    complex_calls,
    complexes,
    comprehensions,
    constructors,
    draws,
    elements,
    expressions,
    growing,
    list_methods,
    lists,
    named,
    overflow,
    partials,
    record_calls,
    records,
    row_calls,
    rows,
    sequences,
    signatures,
    statics,
    type_calls,
    uncallable,
)
from weft.frontend.arguments import keywords, positional
from weft.frontend.casts import (
    CASTING,
    Handler,
    cast,
    dtype_from,
    of_constants,
    static_items,
)
from weft.frontend.closures import LocalFunction
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.effects import LAZY
from weft.frontend.functions import FUNCTIONS, pythons
from weft.frontend.inline import inline
from weft.frontend.kinds import (
    Box,
    Complex,
    Keywords,
    Method,
    Operand,
    Range,
    Scalar,
    Static,
    Tensor,
    Tup,
    Vec,
    constant_value,
    describe,
    is_complex,
    is_weak,
)
from weft.frontend.names import KNOWN_MODULES, dotted
from weft.frontend.scope import Guard, default_of
from weft.frontend.statics import stop_grad
from weft.lang import function_table, names
from weft.lang.types import TYPE_QUESTIONS, matrix, vector
from weft.source import adds_nothing


# --- the call itself ----------------------------------------------------------------------------
def call(cx: Lowering, node: ast.Call) -> Operand:
    span = cx.span(node)
    function = cx.expression(node.func)

    def bound(takes: tuple[str, ...] | None, text: str) -> list[Operand]:
        given, by_name = positional(cx, node), keywords(cx, node)
        return given if takes is None else signatures.bind(takes, text, given, by_name, span)

    for kind in (record_calls, partials):
        if (made := kind.call(cx, node, function)) is not None:
            return made
    if isinstance(function, Method) and (own := named.method(function.receiver, function.name)):
        return _inlined(cx, node, Static(own), span, [function.receiver])
    if isinstance(function, Tup) and (own := named.special(function, "__call__")):
        return _inlined(cx, node, Static(own), span, [function])
    if isinstance(function, Method) and growing.has(function):
        return growing.method(cx, function, bound(None, ""), span)
    if isinstance(function, Method) and list_methods.has(function):
        given, by_name = positional(cx, node), keywords(cx, node)
        return list_methods.method(cx, function, given, by_name, span)
    if isinstance(function, Method) and row_calls.has(function):
        return row_calls.method(cx, node, function, bound)
    if isinstance(function, Method) and (target := _torch_function(function)) is not None:
        if (word := names.canonical(target)) is None:
            return _inlined(cx, node, Static(target), span, [function.receiver])
        given = [function.receiver, *bound(signatures.FUNCTIONS[word][1:], f".{function.name}")]
        if word == "select":  # x.where(condition, other)
            given[:2] = given[1::-1]
        if any(map(rows.is_row, given)):
            return row_calls.elementwise(cx, node, word, given)
        return FUNCTIONS[word](cx, node, given)
    if isinstance(function, Method):
        takes = signatures.METHODS.get(function.name)
        return _method(cx, function, bound(takes, f".{function.name}"), span)
    if not isinstance(function, Static):
        raise KernelTypeError(
            f"{describe(function)} cannot be called", span, help="call a function"
        )
    written = target = function.value
    if isinstance(target, LocalFunction):
        return closures.call(cx, target, positional(cx, node), keywords(cx, node), node)
    if names.canonical(target) is None:
        target = function_table.stands_for(target)
        function = function if target is written else Static(target)
    if (made := type_calls.call(cx, node, target, written, bound)) is not None:
        return made
    name = names.canonical(target)
    if (found := comprehensions.of_generator(cx, name, node)) is not None:
        return found
    if written is math.hypot and len(node.args) > 2:
        name, function = None, Static(function_table.formula("length_of"))
    if name is None or name in INLINED:
        return _inlined(cx, node, function, span)
    if name in LAZY:
        return LAZY[name](cx, node)
    if name.startswith("torch."):
        return row_calls.function(cx, node, name.removeprefix("torch."), bound)
    handler, text = HANDLERS.get(name), ast.unparse(node.func)
    if handler is None:
        raise KernelSyntaxError(
            f"`{text}` cannot be called in a device loop", span, help="call it in the host part"
        )
    given = bound(signatures.FUNCTIONS[name], text)
    own = _of_no_numbers(cx, name, given, node)
    if own is not None:
        return own
    if any(map(rows.is_row, given)) and (name in FUNCTIONS or name in complex_calls.FUNCTIONS):
        return row_calls.elementwise(cx, node, name, given)
    if name in FUNCTIONS and any(map(is_complex, given)):
        return complex_calls.of_complex(cx, name, text, given, span)
    return handler(cx, node, given)


def _of_no_numbers(
    cx: Lowering, name: str, given: list[Operand], node: ast.Call
) -> Operand | None:  # fmt: skip
    """A call with lists and tuples, or with an object whose class says what it means."""
    found = list_methods.extreme(cx, name, given, node) if name in ("min", "max") else None
    if found is None and given and named.has_members(given[0]):
        found = named.of_function(cx, name, given, cx.span(node))
    return found


def _held(made: Static, name: str, *place: int | str) -> Static:
    """An argument that ``made``, a ``functools.partial``, holds, or its function."""
    source = made.read
    value = functools.reduce(operator.getitem, place, getattr(made.value, name))
    if source is None:
        return Static(value)

    def read(args: Sequence[Any]) -> Any:
        with contextlib.suppress(AttributeError, LookupError, TypeError):  # another one, later
            return functools.reduce(operator.getitem, place, getattr(source(args), name))

    return Static(value, (*made.key, name, *place), read)


# What is called otherwise than by a method that is written in Python.
_NO_OBJECTS = (type, types.FunctionType, types.MethodType, torch.nn.Module)


def _own_call(target: Any) -> types.FunctionType | None:
    """The ``__call__`` that an object's class defines in Python; none of another kernel, which
    is called as its function."""
    if isinstance(target, _NO_OBJECTS) or adds_nothing(target):
        return None
    called = inspect.getattr_static(type(target), "__call__", None)
    return called if isinstance(called, types.FunctionType) else None


def _owner(
    cx: Lowering, function: ast.expr, method: types.MethodType, origin: Static
) -> Static:  # fmt: skip
    """The object whose method is called, known by where it was found: its tensors are arguments
    that the loop may have already."""
    if isinstance(function, ast.Attribute) and dotted(function):
        found = cx.expression(function.value)
        if type(found) is Static and found.value is method.__self__:
            return found
    return _held(origin, "__self__") if origin.value is method else Static(method.__self__)


def _inlined(
    cx: Lowering, node: ast.Call, function: Static, span: Span, receiver: Sequence[Operand] = ()
) -> Operand:
    target: Any = function.value
    arguments = positional(cx, node)
    of_number = isinstance(target, types.BuiltinMethodType) and not node.keywords
    of_number = of_number and type(target.__self__) in (int, float)
    if (of_number or (any(target is f for f in _OF_CONSTANTS) and arguments)) and all(
        isinstance(a, Static) for a in arguments
    ):
        return of_constants(target, [a.value for a in arguments], node, span)  # type: ignore[union-attr]
    if target is breakpoint:
        raise KernelSyntaxError(
            "`breakpoint()` in compiled code", span,
            help=f"run the Python itself: WEFT_INTERPRET=1, or {cx.source.name}.interpret(...)",
        )  # fmt: skip
    named: dict[str, Operand] = {}
    origin = function
    while isinstance(target, functools.partial):
        cx.guards.append(Guard(target, "keywords", target.keywords))
        receiver = [*(_held(function, "args", k) for k in range(len(target.args))), *receiver]
        named = {**{k: _held(function, "keywords", k) for k in target.keywords}, **named}
        target, origin = target.func, _held(function, "func")
        name = names.canonical(target)
        if name in HANDLERS and name not in INLINED and not isinstance(target, functools.partial):
            given = [*receiver, *arguments], named | keywords(cx, node)
            takes = signatures.FUNCTIONS[name]
            bound = signatures.bind(takes, ast.unparse(node.func), *given, span)
            return HANDLERS[name](cx, node, bound)
        target = function_table.stands_for(target)
    if (called := _own_call(target)) is not None:
        cx.guards.append(Guard(type(target), "__call__", called))
        receiver = [Static(target, function.key, function.read), *receiver]
        target = called
    if isinstance(target, types.MethodType):
        receiver = [_owner(cx, node.func, target, origin), *receiver]
        target = target.__func__
    while adds_nothing(target):
        wrapped = inspect.getattr_static(target, "__wrapped__")
        cx.guards.append(Guard(target, "__wrapped__", wrapped))
        target = wrapped
    why, help = uncallable.reason(target)
    if not isinstance(target, types.FunctionType) or why:
        name = ast.unparse(node.func)
        raise KernelTypeError(
            f"`{name}` cannot be called in a device loop: {why}", span,
            help=help + uncallable.host_loop(cx),
        )  # fmt: skip
    if (target.__module__ or "").partition(".")[0] not in KNOWN_MODULES:
        read = ["__code__"]
        if target.__defaults__ or target.__kwdefaults__:
            read += ["__defaults__", "__kwdefaults__"]
        cx.guards += [Guard(target, name, getattr(target, name)) for name in read]
    arguments = [*receiver, *arguments]
    named |= keywords(cx, node)
    signature = inspect.signature(target, follow_wrapped=False)
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise KernelTypeError(
            f"`{target.__name__}`: {error}",
            span,
            help=f"it is defined as {target.__name__}{signature}",
        ) from None
    values: dict[str, Operand] = {}
    for parameter in signature.parameters.values():
        if parameter.name in bound.arguments:
            value = bound.arguments[parameter.name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                value = Tup(list(value))
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                value = Static(Keywords(value))
            values[parameter.name] = value
        elif parameter.default is not inspect.Parameter.empty:
            values[parameter.name] = default_of(origin, parameter.name, parameter.default)
        else:
            rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
            values[parameter.name] = Static(Keywords()) if rest else Tup([])
    places = _places(signature, node, len(receiver))
    return inline(cx, target, values, places, node, origin if origin.value is target else None)


def _places(signature: inspect.Signature, node: ast.Call, before: int) -> dict[str, ast.expr]:
    """What a call writes for each parameter, ``before`` of which are bound already."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature.parameters.values() if p.kind in positional]
    method = before and names and isinstance(node.func, ast.Attribute)
    places: dict[str, ast.expr] = {names[0]: node.func.value} if method else {}  # type: ignore[union-attr]
    for name, argument in zip(names[before:], node.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        places[name] = argument
    places |= {k.arg: k.value for k in node.keywords if k.arg in signature.parameters and k.arg}
    return places


# Functions that are evaluated by Python where all arguments are known at compile time.
_OF_CONSTANTS = (
    ord, chr, str, vector, matrix, *TYPE_QUESTIONS, *function_table.LIMITS,
    *(f for f in vars(math).values() if callable(f)),
)  # fmt: skip


def _to(dtype: Any) -> Handler:
    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        if not arguments:
            return Static(dtype())
        x = arguments[0]
        if isinstance(text := constant_value(x), str):
            return of_constants(dtype, [text], node, span)
        if dtype is bool and (some := growing.has_some(cx, x, span)) is not None:
            return some
        return cast(cx, x, dtype, span)

    return handler


# --- loops, tuples ------------------------------------------------------------------------------
def _range(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    items: list[Any] = []
    for k, a in enumerate(arguments):
        at = cx.span(node.args[k]) if len(node.args) == len(arguments) else span
        number = cx.read_scalar(a, at)
        if isinstance(number, Static) and isinstance(number.value, int):
            items.append(number)
        else:
            items.append(Scalar(cx.scalars.index(number, at), "int"))
    if len(items) == 1:
        items.insert(0, Static(0))
    if len(items) == 2:
        items.append(Static(1))
    return Range(*items)


def _ndrange(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    bounds = []
    for a in arguments:
        if isinstance(a, (Tup, Vec)) and len(a.items) == 2:
            bounds.append((a.items[0], a.items[1]))
        else:
            bounds.append((Static(0), cx.read_scalar(a, cx.span(node))))
    return Box(bounds)


def _grouped(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    (x,) = arguments
    x = records.over(cx, x, span)
    if isinstance(x, Tensor):
        return Box(elements.subscripts_of(cx, x, span), grouped=True)
    if isinstance(x, Box):
        return Box(x.bounds, grouped=True)
    if isinstance(x, Range) and isinstance(x.step, Static) and x.step.value == 1:
        return Box([(x.lower, x.upper)], grouped=True)
    raise KernelTypeError(
        f"`grouped` takes a tensor or an ndrange, and this is {describe(x)}",
        span,
        help="write weft.grouped(x) or weft.grouped(weft.ndrange(n, m))",
    )


def _len(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    (x,) = arguments
    if isinstance(x, Tup) and x.iterated() is not None:
        return Static(len(x.items))
    if isinstance(x, Vec):
        return Static(x.shape[0])
    if isinstance(x, Static) and hasattr(x.value, "__len__"):
        return Static(len(x.value))
    if isinstance(x, Tensor) and x.rank:
        return elements.extent(cx, x, 0)
    found = sequences.items(cx, x, cx.span(node))
    if found is not None:
        return found.count
    raise KernelTypeError(
        f"{describe(x)} has no len()", cx.span(node), help="use a tensor or a tuple"
    )


def _items(cx: Lowering, node: ast.Call, x: Operand) -> list[Operand]:
    items = static_items(x)
    if items is None:
        raise KernelTypeError(
            f"`{ast.unparse(node.func)}` needs a tuple or a vector, and this is {describe(x)}",
            cx.span(node),
            help="write the loop over the elements",
        )
    return items


def _sum(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    result: Operand = signatures.argument(arguments, 1) or Static(0)
    row = rows.of(cx, arguments[0])
    if row is not None:
        return sequences.total(cx, row, result, cx.span(node))
    for item in _items(cx, node, arguments[0]):
        result = expressions.binary(cx, "+", result, item, cx.span(node))
    return result


def _any(symbol: str) -> Handler:
    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        if rows.is_row(arguments[0]):
            return row_calls.call(cx, "all" if symbol == "&" else "any", arguments[:1], span)
        result: Operand = Static(symbol == "&")
        for item in _items(cx, node, arguments[0]):
            truth = cx.scalars.cast(cx.read_scalar(item, span), "bool", span)
            first = isinstance(result, Static)
            result = truth if first else cx.scalars.binary(symbol, result, truth, span)
        return result

    return handler


def _list(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    if arguments and static_items(arguments[0]) is None:
        return list_methods.copied(cx, arguments, cx.span(node))
    return Tup(_items(cx, node, arguments[0]) if arguments else [])


def _enumerate(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    start, span = signatures.argument(arguments, 1) or Static(0), cx.span(node)
    if static_items(arguments[0]) is None:
        return sequences.enumerated(cx, arguments[0], start, span)
    items = _items(cx, node, arguments[0])
    return Tup([Tup([expressions.binary(cx, "+", start, Static(k), span), x])
                for k, x in enumerate(items)])  # fmt: skip


def _zip(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    strict = [expressions.test(cx, k.value) for k in node.keywords]
    if any(static_items(a) is None for a in arguments):
        exact = any(isinstance(s, Static) and s.value for s in strict)
        return sequences.zipped(cx, arguments, exact, cx.span(node))
    columns = [_items(cx, node, a) for a in arguments]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1 and any(isinstance(s, Static) and s.value for s in strict):
        raise KernelTypeError(
            f"zip(strict=True) of {' and '.join(map(str, sorted(lengths)))} items", cx.span(node),
            help="pass tuples or vectors of one length",
        )  # fmt: skip
    return Tup([Tup(list(row)) for row in zip(*columns, strict=False)])


def _divmod(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    a, b = arguments
    return Tup([expressions.binary(cx, symbol, a, b, span) for symbol in ("//", "%")])


# --- vectors ------------------------------------------------------------------------------------
def _of_method(name: str) -> Handler:
    """``weft.math.dot(a, b)`` is ``a.dot(b)``."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        first = aggregates.build(arguments[0], span)
        return aggregates.method(cx, first, name, arguments[1:], span)

    return handler


def _cast(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    return cast(cx, arguments[0], dtype_from(arguments[1], span), span)


def _distance(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    difference = expressions.binary(cx, "-", arguments[0], arguments[1], span)
    return aggregates.method(cx, aggregates.build(difference, span), "norm", [], span)


def _torch_function(method: Method) -> Any:
    """What a method of an element does that torch has as a function as well: `x[i].clamp(min=0)`.
    None of another one, and of Python's numbers, which have none."""
    x, name = method.receiver, method.name
    if not isinstance(x, Scalar) or is_weak(x.dtype) or name in signatures.METHODS:
        return None
    function = getattr(torch, name, None)
    word, formula = names.canonical(function), function_table.stands_for(function)
    if word in FUNCTIONS and word in signatures.FUNCTIONS:
        return function
    return None if formula is function else formula


def _method(cx: Lowering, method: Method, arguments: list[Operand], span: Span) -> Operand:
    x, name = method.receiver, method.name
    if isinstance(x, Vec):
        if name in ("cast", "to"):
            return cast(cx, x, dtype_from(arguments[0], span), span)
        if name == "to_list":
            return Tup(list(aggregates.rows(x)))
        return aggregates.method(cx, x, name, arguments, span)
    if isinstance(x, Complex):
        if name == "item" and not arguments:
            return x
        if name in ("to", "type", "cast") and len(arguments) == 1:
            return cast(cx, x, dtype_from(arguments[0], span), span)
        own = {"conjugate": "conj", "conj_physical": "conj"}.get(name, name)
        if own in complexes.NAMES and not arguments and own in (*names.UNARY, *names.COMPLEX):
            return complexes.function(cx.scalars, own, [x], span)
    if isinstance(x, Scalar):
        if not arguments and (found := bits.method(cx, x, name, span)) is not None:
            return found
        if name == "item" and not arguments:
            return pythons(cx, x, span)
        if name == "clone" and not arguments:
            return x
        if name == "detach" and not arguments:
            return stop_grad(cx, x, span)
        if name in ("to", "type", "cast") and len(arguments) == 1:
            return cast(cx, x, dtype_from(arguments[0], span), span)
        if name in CASTING and not arguments:
            overflow.fits(cx, x, CASTING[name], span)
            return cx.scalars.cast_exactly(x, CASTING[name], span)
    if isinstance(x, Tensor):
        if name == "size":
            dims = Tup([elements.extent(cx, x, k) for k in range(x.rank)])
            if not arguments:
                return dims
            axis = arguments[0].value if isinstance(arguments[0], Static) else None
            if type(axis) is int and -x.rank <= axis < x.rank:
                return dims.items[axis]
            raise KernelTypeError(
                f"`{x.name}.size(...)` of no dimension of {describe(x)}", span,
                help=f"write a constant, -{x.rank} to {x.rank - 1}",
            )  # fmt: skip
        if name in ("dim", "ndimension") and not arguments:
            return Static(x.rank)
        if name == "numel" and not arguments:
            total: Operand = Static(1)
            for k in range(x.rank):
                total = cx.scalars.binary("*", total, elements.extent(cx, x, k), span)
            return total
        if name == "item" and x.rank == 0 and not arguments:
            return pythons(cx, cx.read_scalar(x, span), span)
    help = "read elements with x[i, j]; whole-tensor methods belong in the host part"
    if isinstance(x, Scalar) and names.canonical(getattr(torch, name, None)):
        help = f"write torch.{name}(...) of it"
    if isinstance(x, Scalar) and name in names.ROWS:
        help = "it is one number, not a row: write what that comes to"
    raise KernelTypeError(
        f"{describe(x)} has no method `{name}` in a device loop", span,
        help=help + uncallable.host_loop(cx),
    )  # fmt: skip


HANDLERS: dict[str, Handler] = {
    **FUNCTIONS,
    **complex_calls.FUNCTIONS,
    **bits.BITS,
    **draws.HANDLERS,
    **statics.HANDLERS,
    "divmod": _divmod,
    "int": _to(int), "float": _to(float), "bool": _to(bool),
    "range": _range, "ndrange": _ndrange, "grouped": _grouped,
    "serial": lambda cx, node, arguments: arguments[0],
    "len": _len, "sum": _sum, "any": _any("|"), "all": _any("&"), "tuple": _list, "list": _list,
    "enumerate": _enumerate, "zip": _zip,
    "sorted": lists.ordered, "array": lists.of_torch, "zeros": lists.zeros,
    "reversed": lambda cx, node, a: sequences.reverse(cx, a[0], cx.span(node)),
    **constructors.FUNCTIONS,
    **collections.FUNCTIONS,
    "dot": _of_method("dot"), "cross": _of_method("cross"), "length": _of_method("norm"),
    "normalize": _of_method("normalized"), "determinant": _of_method("determinant"),
    "inverse": _of_method("inverse"), "distance": _distance, "cast": _cast,
}  # fmt: skip
# weft.math.mix, step, smoothstep and reflect are written in Python: they are inlined as they stand.
INLINED = frozenset({"mix", "step", "smoothstep", "reflect"})
EXPRESSIONS[ast.Call] = call
