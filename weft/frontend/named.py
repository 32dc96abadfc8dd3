"""Tuples whose items have names: members, methods and arithmetic of structs.

What the class of a dataclass's object or of a named tuple defines in Python (``__add__``,
``__eq__``, ``__len__``, properties) is inlined, as its methods are.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, casts
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.kinds import (
    Method,
    Operand,
    Scalar,
    Static,
    Tup,
    Varying,
    constant_value,
    dtype_of,
)
from weft.frontend.objects import Making, Partial
from weft.frontend.scope import REFERENCES, Guard, noted
from weft.lang.structs import StructType
from weft.lang.vectors import MatrixType, VectorType

_ARITHMETIC = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor", "@": "matmul",
}  # fmt: skip
_COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNARY: dict[type, str] = {ast.USub: "__neg__", ast.UAdd: "__pos__", ast.Invert: "__invert__"}


class Given(ast.expr):
    """An operand where a node stands."""

    def __init__(self, operand: Operand, place: ast.AST) -> None:
        super().__init__()
        self.operand = operand
        ast.copy_location(self, place)


EXPRESSIONS[Given] = lambda cx, node: node.operand


_KEYS = (str, int, float, bool, enum.Enum)  # what a key of a dict is, or a tuple of


def key_of(x: Operand) -> Static | None:
    """A key of a dict that ``x`` is, as Python has it; None where it is none that is known."""
    if isinstance(x, Tup):
        items = [key_of(item) for item in x.items]
        plain = x.struct is None and not x.names and None not in items
        return Static(tuple(item.value for item in items if item)) if plain else None
    if not isinstance(x, Static):
        return None
    value = x.value
    if isinstance(value, tuple):
        return x if all(key_of(Static(item)) for item in value) else None
    return x if isinstance(value, _KEYS) and value == value else None


def item(x: Tup, key: Operand, span: Span) -> Operand:
    """``x[key]`` of a dict. Raises ``KernelTypeError``."""
    known = known_key(key, span)
    if known not in x.names:
        raise KernelTypeError(
            f"a dict has no item {known!r}", span, help=f"it has {', '.join(map(repr, x.names))}"
        )
    return x.items[x.names.index(known)]


def known_key(x: Operand, span: Span) -> Any:
    """The value of ``key_of``. Raises ``KernelTypeError``."""
    found = key_of(x)
    if found is None:
        raise KernelTypeError(
            "a dict of a device loop is subscripted by a run-time value", span,
            help="a loop over the dict has its keys as constants (by a name that loops alone "
            "assign), as weft.static(range(3)) has; what is chosen at run time is a list's",
        )  # fmt: skip
    return found.value


OF_DICTS = ("items", "values", "keys", "get", "copy")  # methods


def is_record(x: Any) -> bool:
    """Whether ``x`` is a tuple with named items."""
    return isinstance(x, Tup) and bool(x.names)


def member(cx: Lowering, x: Tup, name: str, span: Span) -> Operand | None:
    """``x.name``: a member, a method, or what a property or a number of the class gives; None
    where there is none."""
    if name in x.names and x.struct is not dict:
        return x.items[x.names.index(name)]
    own = method(x, name)
    if own is not None or (x.struct is dict and name in OF_DICTS):
        if isinstance(x.struct, type) and own is not None:  # which may be replaced
            cx.guards.append(Guard(x.struct, name, own))
        return Method(x, name)
    found = inspect.getattr_static(x.struct, name, None) if _has_class(x) else None
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        cx.guards.append(Guard(x.struct, name, found))
        return inlined(cx, found.fget, [x], span)
    if isinstance(found, staticmethod | classmethod):
        cx.guards.append(Guard(x.struct, name, getattr(x.struct, name)))
        return Static(getattr(x.struct, name))
    if found is None or hasattr(type(found), "__get__"):  # what Python makes of it is not known
        return None
    cx.guards.append(Guard(x.struct, name, found))
    return Static(found)


def put(cx: Lowering, x: Operand, name: str, value: Operand, span: Span) -> bool:
    """``x.name = value`` of a property with a setter, and of an object that is being made. False of
    others."""
    new = constant_value(x)
    if not isinstance(new, Making) and not (_has_class(x) and name not in x.names):  # type: ignore[union-attr]
        return False
    kind: Any = new.kind if isinstance(new, Making) else x.struct  # type: ignore[union-attr]
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property):
        if not isinstance(found.fset, types.FunctionType):
            raise KernelTypeError(f"the property `{name}` of `{kind.__name__}` has no setter", span,
                                  help=f"define one: @{name}.setter")  # fmt: skip
        cx.pending.clear()  # what the setter changes
        inlined(cx, found.fset, [x, value], span)
        return True
    if not isinstance(new, Making):
        return False
    if cx.builder.block is not new.block:
        raise KernelTypeError(
            f"`.{name}` of an object that is being made is assigned in a branch or a loop", span,
            help="give the value a name there, and assign it to the member after that",
        )  # fmt: skip
    new.members[name] = value
    return True


def member_of_new(cx: Lowering, x: Operand, name: str, span: Span) -> Operand:
    """``x.name`` of an object that is being made."""
    new: Making = constant_value(x)
    if name in new.members:
        return new.members[name]
    found = inspect.getattr_static(new.kind, name, None)
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        return inlined(cx, found.fget, [x], span)
    if isinstance(found, types.FunctionType):
        return Static(Partial(Static(found), [x], {}))
    if found is None or (not isinstance(found, staticmethod | classmethod)
                         and hasattr(type(found), "__get__")):  # fmt: skip
        raise KernelTypeError(f"`{new.kind.__name__}` has no `{name}` yet", span,
                              help="assign it before")  # fmt: skip
    value = getattr(new.kind, name)
    cx.guards.append(Guard(new.kind, name, value))
    return Static(value)


def method(x: Any, name: str) -> Any:
    """The function that is the method ``name`` of a struct."""
    if not is_record(x) or x.struct is None:
        return None
    kind = x.struct
    found = (
        kind.methods.get(name)
        if isinstance(kind, StructType)
        else inspect.getattr_static(kind, name, None)
    )
    return found if isinstance(found, types.FunctionType) else None


# --- special methods -----------------------------------------------------------------------------
def _has_class(x: Any) -> bool:
    """Whether ``x`` is a dataclass's object or a named tuple, and so one of a Python class."""
    return is_record(x) and isinstance(x.struct, type) and x.struct is not dict


def special(x: Any, name: str) -> types.FunctionType | None:
    """The special method ``name`` that the class of ``x``, a dataclass's object or a named tuple,
    defines; None where it is Python's own, or made by ``dataclass``."""
    if _has_class(x):
        return written(x.struct, name)
    return written(type(x.value), name) if isinstance(x, Static) and has_members(x) else None


def written(kind: type, name: str) -> types.FunctionType | None:
    """What a class defines as ``name`` in Python's text, none of what ``dataclass`` makes."""
    found = inspect.getattr_static(kind, name, None)
    own = isinstance(found, types.FunctionType) and found.__code__.co_filename != "<string>"
    return found if own else None


def has_members(x: Any) -> bool:
    """Whether ``x`` is a struct, or a dataclass's object or named tuple known at compile time."""
    if isinstance(x, Tup):
        return is_record(x)
    known = isinstance(x, Static) and not isinstance(x, Varying)  # a number that changes is none
    return known and is_object(x.value)


def is_object(value: Any) -> bool:
    """Whether a value of Python's is a dataclass's object or a named tuple."""
    data = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return data or (isinstance(value, tuple) and hasattr(value, "_fields"))


def called(
    cx: Lowering, function: Operand, arguments: Sequence[Operand | ast.expr],
    by_name: dict[str, Operand], span: Span, node: ast.AST | None = None,
) -> Operand:  # fmt: skip
    """``function(*arguments, **by_name)``. ``node``: what it is a part of, of the statement that is
    lowered; what the function changes, that assigns. An argument that is an expression is a
    variable, which the function may change where it holds one of several objects."""
    column = len(span.text[: span.column].encode())
    place = ast.Pass(lineno=span.line, col_offset=column, end_lineno=span.end_line,
                     end_col_offset=span.end_column)  # fmt: skip
    callee = Given(function, place)
    places = [x if isinstance(x, ast.expr) else Given(x, place) for x in arguments]
    words = [ast.keyword(name, Given(x, place)) for name, x in by_name.items()]
    call = ast.copy_location(ast.Call(callee, places, words), place)
    node = node or cx.statement
    noted(call, getattr(node, REFERENCES, set()))  # in an earlier round
    found = cx.expression(call)
    if node is not None:
        noted(node, getattr(call, REFERENCES, set()))
    return found


def inlined(
    cx: Lowering, function: Any, arguments: Sequence[Operand | ast.expr], span: Span
) -> Operand:
    """``function(*arguments)``, inlined."""
    return called(cx, Static(function), arguments, {}, span)


def call_special(
    cx: Lowering, x: Any, name: str, given: list[Operand], span: Span,
    place: ast.expr | None = None,
) -> Any:  # fmt: skip
    """``x.name(*given)`` of a special method that the class of ``x`` defines, else None.
    ``place``: the variable that holds ``x``."""
    function = special(x, name)
    if function is None:
        return None
    cx.guards.append(Guard(_kind(x), name, function))  # which may be replaced
    found = inlined(cx, function, [place or x, *given], span)
    return None if isinstance(found, Static) and found.value is NotImplemented else found


def truth(cx: Lowering, x: Operand, span: Span) -> Operand | None:
    """Whether ``x`` is true, by its ``__bool__`` or ``__len__``; None where it has neither."""
    found = call_special(cx, x, "__bool__", [], span)
    found = call_special(cx, x, "__len__", [], span) if found is None else found
    if found is None or isinstance(found, Static):
        return found
    return Scalar(cx.scalars.truth(cx.read_number(found, span), span), "bool")


def of_function(cx: Lowering, name: str, given: list[Operand], span: Span) -> Operand | None:
    """``abs(x)``, ``len(x)`` and the like by a special method of ``x``; None where it has none."""
    if name == "bool":
        return truth(cx, given[0], span)
    own = name in ("abs", "len", "round", "int", "float", "floor", "ceil", "trunc")
    return call_special(cx, given[0], f"__{name}__", given[1:], span) if own else None


def unary(cx: Lowering, op: ast.unaryop, x: Operand, span: Span) -> Operand | None:
    """``-x``, ``+x`` or ``~x`` by a special method; None where ``x`` has none."""
    return call_special(cx, x, _UNARY[type(op)], [], span) if type(op) in _UNARY else None


def _kind(x: Operand) -> Any:
    """The class of a struct or of an object that is known at compile time; None of others."""
    if isinstance(x, Tup):
        return x.struct
    return type(x.value) if isinstance(x, Static) and has_members(x) else None


def _either(
    cx: Lowering, a: Operand, b: Operand, names: tuple[str, str], span: Span
) -> Operand | None:
    """By the first special method of ``a``, or by the second one of ``b``."""
    kinds = [_kind(x) for x in (a, b)]
    sides = [(a, names[0], b), (b, names[1], a)]
    if kinds[0] is not kinds[1] and isinstance(kinds[1], type) and isinstance(kinds[0], type):
        derived = issubclass(kinds[1], kinds[0])  # which Python asks first
        sides = sides[::-1] if derived and special(b, names[1]) else sides
    for x, name, other in sides:
        found = call_special(cx, x, name, [other], span)
        if found is not None:
            return found
    return None


def augmented(
    cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span, place: ast.expr
) -> Operand | None:
    """What ``a symbol= b`` assigns, by a special method of its own; None where there is none.
    ``place``: the variable, or the part of one, that holds ``a``."""
    return call_special(cx, a, f"__i{_ARITHMETIC[symbol]}__", [b], span, place)


def compare(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand | None:
    """``a symbol b`` by a special method; None where neither has one. Raises ``KernelTypeError``
    where objects are compared by what they are, as of ``dataclass(eq=False)``."""
    wanted = f"__{_COMPARED[symbol]}__", f"__{_COMPARED[_TURNED[symbol]]}__"
    found = _either(cx, a, b, wanted, span)
    if found is None and symbol == "!=" and (equal := compare(cx, "==", a, b, span)) is not None:
        return cx.scalars.negation(cx.read_number(equal, span), span)
    if found is None and symbol in ("==", "!="):
        for x in (a, b):
            if _has_class(x) and inspect.getattr_static(x.struct, "__eq__") is object.__eq__:  # type: ignore
                raise KernelTypeError(
                    f"`{x.struct.__name__}` has no __eq__: Python compares which objects they are",  # type: ignore
                    span, help="compare their members, or let dataclass make one",
                )  # fmt: skip
    return found


def compared(x: Tup) -> list[Operand]:
    """The members that ``==`` of structs compares."""
    if not (_has_class(x) and dataclasses.is_dataclass(x.struct)):
        return x.items
    left_out = {f.name for f in dataclasses.fields(x.struct) if not f.compare}
    return [item for name, item in zip(x.names, x.items, strict=True) if name not in left_out]


def cast_member(cx: Lowering, kind: Any, x: Operand, span: Span) -> Operand:
    """``x`` as a member of type ``kind``; as it is where that is no type of numbers."""
    if isinstance(kind, StructType) and isinstance(x, Tup):
        pairs = zip(kind.members.values(), x.items, strict=True)
        return Tup([cast_member(cx, t, i, span) for t, i in pairs], x.names, kind)
    try:
        wanted = casts.dtype_from(Static(kind), span)
    except KernelTypeError:
        return x
    if isinstance(wanted, VectorType | MatrixType) and isinstance(x, Static):
        x = aggregates.build(x, span) if dtype_of(x) is None else x
    return casts.cast(cx, x, wanted, span)


def binary(
    cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span,
    combine: Callable[..., Operand],
) -> Operand | None:  # fmt: skip
    """By a special method; of weft's structs member by member, each by ``combine``; None where
    neither is such a value."""
    name = _ARITHMETIC[symbol]
    found = _either(cx, a, b, (f"__{name}__", f"__r{name}__"), span)
    if found is not None:
        return found
    records = [x for x in (a, b) if isinstance(x, Tup) and _is_struct(x)]
    if not records:
        return None
    first = records[0]
    if any(x.names != first.names for x in records):
        raise KernelTypeError(f"`{symbol}` of structs with other members", span,
                              help="both need members of the same names")  # fmt: skip
    items: list[Operand] = []
    for k in range(len(first.items)):
        x, y = (v.items[k] if isinstance(v, Tup) and _is_struct(v) else v for v in (a, b))
        items.append(combine(cx, symbol, x, y, span))
    made = Tup(items, first.names, first.struct)
    return made if first.struct is None else cast_member(cx, first.struct, made, span)


def _is_struct(x: Tup) -> bool:
    return bool(x.names) and (x.struct is None or isinstance(x.struct, StructType))
