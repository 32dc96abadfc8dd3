"""Structs in device loops: tuples whose items have names, and elements of fields of structs."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, elements, expressions, named, objects
from weft.frontend.context import EXPRESSIONS, Lowering
from weft.frontend.kinds import (
    Operand,
    Part,
    Static,
    Tensor,
    Tup,
    Varying,
    Vec,
    constant_value,
    describe,
    dtype_of,
)
from weft.frontend.named import cast_member, is_record
from weft.frontend.names import Scope, dotted
from weft.ir.core import Value
from weft.lang.loops import is_func
from weft.lang.structs import Struct, StructField, StructType
from weft.lang.vectors import letters
from weft.values import mutable


@mutable
class Slot:
    """An element of a field of structs, which is written ``field[subscript]``. ``indices``: what
    the subscript is, once it was evaluated."""

    field: Static
    subscript: ast.expr
    indices: list[Value] | None = None

    def part(self, cx: Lowering, tensor: Tensor, span: Span) -> Part:
        """The element there of the field of one member."""
        if self.indices is None:
            self.indices = elements.subscripted(cx, tensor, self.subscript, span).indices
        return Part(tensor, list(self.indices))


@mutable
class Spot:
    """A member of an element, or what further subscripts and letters choose of that."""

    slot: Slot
    tensor: Tensor
    subscripts: tuple[ast.expr, ...] = ()

    def part(self, cx: Lowering, span: Span) -> Part:
        """All of it evaluated."""
        found = self.slot.part(cx, self.tensor, span)
        for subscript in self.subscripts:
            found = elements.subscripted(cx, found, subscript, span)
        return found


# --- making structs ------------------------------------------------------------------------------
def makes_records(target: Any) -> bool:
    """Whether calling ``target`` makes a struct, a dataclass's object or a named tuple."""
    if isinstance(target, StructType) or target is Struct:
        return True
    if not isinstance(target, type):
        return False
    if dataclasses.is_dataclass(target):  # whose objects its fields alone make
        maker = next(kind for kind in target.__mro__ if "__init__" in vars(kind))
        params = vars(maker).get("__dataclass_params__")
        own = params is not None and params.init and target.__new__ is object.__new__
        changed = named.written(target, "__setattr__") or hasattr(target, "__post_init__")
        return own and not changed and not any(f.kw_only for f in dataclasses.fields(target))
    return (
        issubclass(target, tuple) and hasattr(target, "_fields")
        and target.__new__.__module__.startswith("namedtuple_")
    )  # fmt: skip


def make(
    cx: Lowering, target: Any, given: list[Operand], named: dict[str, Operand], span: Span
) -> Operand:
    """``target(*given, **named)``. Raises ``KernelTypeError``."""
    if target is Struct:
        (members,) = given or [Tup([])]
        if isinstance(members, Static) and isinstance(members.value, dict):
            members = _of_dict(members.value)
        items = dict(zip(members.names, members.items, strict=True)) if is_record(members) else {}  # type: ignore
        items = {name: _named(x) for name, x in {**items, **named}.items()}
        return Tup(list(items.values()), tuple(items))
    if isinstance(target, StructType):
        return _typed(cx, target, given, named, span)
    if issubclass(target, tuple):
        names, defaults = list(target._fields), dict(target._field_defaults)  # type: ignore[attr-defined]
    else:
        fields = {f.name: f for f in dataclasses.fields(target) if f.init}
        defaults = {n: f.default for n, f in fields.items() if f.default is not dataclasses.MISSING}
        names = list(fields)
    values: dict[str, Operand] = dict(zip(names, given, strict=False))
    wrong = [n for n in named if n in values or n not in names]
    values = {**{n: Static(v) for n, v in defaults.items()}, **values, **named}
    if wrong or len(given) > len(names) or any(n not in values for n in names):
        raise KernelTypeError(f"`{target.__name__}` takes {', '.join(names)}", span,
                              help="give each of them once")  # fmt: skip
    made = frozenset[Any]() if _is_fixed(target) else objects.site(cx, span)
    return Tup([values[n] for n in names], tuple(names), target, made)


def _named(x: Operand) -> Operand:
    """A dict as the members of a struct; dicts in it are structs, too."""
    if isinstance(x, Tup) and x.struct is dict:
        return Tup([_named(item) for item in x.items], x.names)
    return x


def _of_dict(values: dict[str, Any]) -> Tup:
    items = [_of_dict(v) if isinstance(v, dict) else Static(v) for v in values.values()]
    return Tup(items, tuple(values))


def _typed(
    cx: Lowering, kind: StructType, given: list[Operand], named: dict[str, Operand], span: Span
) -> Tup:
    if len(given) == 1 and not named:
        whole = of_constant(cx, given[0], span)
        first = next(iter(kind.members.values()), None)
        inner = isinstance(first, StructType) and {*getattr(whole, "names", ())} <= {*first.members}
        if whole is not None and not inner:
            given, named = [], dict(zip(whole.names, whole.items, strict=True))
    try:
        values = kind.arguments(tuple(given), named)
    except KernelTypeError as error:
        raise KernelTypeError(error.message, span, help=error.help) from None
    items = [convert(cx, t, values.get(n, Static(0)), span) for n, t in kind.members.items()]
    return Tup(items, tuple(kind.members), kind)


def convert(cx: Lowering, kind: Any, x: Operand, span: Span) -> Operand:
    """``x`` as a member of type ``kind``."""
    if isinstance(kind, StructType):
        zero = isinstance(x, Static) and dtype_of(x) is not None and x.value == 0
        return _typed(cx, kind, [] if zero else [x], {}, span)
    return cast_member(cx, kind, x, span)


def of_constant(cx: Lowering, x: Operand, span: Span) -> Tup | None:
    """A struct, dataclass's object or named tuple that is known at compile time as one of the loop;
    ``x`` if it is one; else None."""
    if is_record(x):
        return x  # type: ignore[return-value]
    value = constant_value(x)
    if isinstance(value, Struct):
        names, kind = value.keys, value._type  # pyright: ignore[reportPrivateUsage]
    elif isinstance(value, objects.LocalFunction | objects.Partial):
        return None
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names, kind = [f.name for f in dataclasses.fields(value)], type(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names, kind = list(type(value)._fields), type(value)  # type: ignore[attr-defined]
    else:
        return None
    items = [expressions.attribute(cx, x, name, span) for name in names]
    plain = isinstance(kind, type) and not _is_fixed(kind)
    made = frozenset({(objects.OUTSIDE, id(value))} if plain else ())
    items = [of_constant(cx, i, span) or i for i in items]
    return Tup(items, tuple(names), kind, made)


def _is_fixed(kind: type) -> bool:
    """Whether it is a named tuple's class or that of a frozen dataclass."""
    params = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, tuple) or (params is not None and params.frozen)


def _is_constant(value: Any) -> bool:
    """Whether ``of_constant`` makes a struct of it."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return plain or isinstance(value, Struct) or hasattr(value, "_fields")


# --- elements of fields --------------------------------------------------------------------------
def place(cx: Lowering, node: ast.expr) -> Spot | Slot | None:
    """The element of a field of structs, or part of it, that ``node`` writes; None of others.
    Subscripts are not evaluated yet."""
    if isinstance(node, ast.Subscript):
        inner = place(cx, node.value)
        if isinstance(inner, Spot):
            return replace(inner, subscripts=(*inner.subscripts, node.slice))
        field = _field(cx, node.value) if inner is None and dotted(node.value) else None
        return None if field is None else Slot(field, node.slice)
    if isinstance(node, ast.Attribute) and not dotted(node):
        inner = place(cx, node.value)
        if isinstance(inner, Slot) and node.attr in inner.field.value.members:
            return _member_place(cx, inner, node.attr, cx.span(node))
        if isinstance(inner, Spot) and not inner.subscripts and len(inner.tensor.element) == 1:
            at = letters(node.attr, inner.tensor.element[0])
            if at is not None and len(at) == 1:
                index = ast.copy_location(ast.Constant(at[0]), node)
                return replace(inner, subscripts=(index,))
    return None


def _field(cx: Lowering, node: ast.expr) -> Static | None:
    """The field of structs that a dotted name stands for."""
    root, _, rest = dotted(node).partition(".")
    known = cx.frame.env.get(root) or cx.frame.arguments.get(root)
    if dotted(node) in cx.frame.arguments and root not in cx.frame.env:
        known, rest = cx.frame.arguments[dotted(node)], ""
    if known is None:
        value = Scope.of(cx.frame.source.function).lookup(root)
    elif isinstance(known, Static) and not isinstance(known, Varying):
        value = known.value
    else:
        return None
    for name in filter(None, rest.split(".")):
        held = value.members if isinstance(value, StructField) else getattr(value, "__dict__", {})
        value = held.get(name)
    if not isinstance(value, StructField):
        return None
    found = cx.expression(node)
    return found if isinstance(found, Static) else None


def _member_place(cx: Lowering, slot: Slot, name: str, span: Span) -> Spot | Slot:
    found = expressions.attribute(cx, slot.field, name, span)
    if isinstance(found, Static):
        return Slot(found, slot.subscript, slot.indices)
    assert isinstance(found, Tensor)
    return Spot(slot, found)


def load(cx: Lowering, x: Spot | Slot, span: Span) -> Operand:
    """The element of a field, or a member of it, as a value."""
    if isinstance(x, Spot):
        part = x.part(cx, span)
        if elements.is_whole(part):
            return elements.load(cx, part, span)
        return cx.load_element(*elements.whole(part, span), span)
    kind: StructField = x.field.value
    items = [load(cx, member, span) for member in _members(cx, x, span)]
    return Tup(items, tuple(kind.members), kind.type)


def _members(cx: Lowering, slot: Slot, span: Span) -> Iterator[Spot | Slot]:
    """The members of an element, whose subscript is evaluated once."""
    if slot.indices is None:
        first = over(cx, slot.field, span)
        assert isinstance(first, Tensor)
        slot.part(cx, first, span)
    for name in slot.field.value.members:
        yield _member_place(cx, slot, name, span)


def over(cx: Lowering, x: Operand, span: Span) -> Operand:
    """What a loop over ``x`` goes over: of a field of structs, the field of its first member."""
    while isinstance(x, Static) and not isinstance(x, Varying) and isinstance(x.value, StructField):
        x = expressions.attribute(cx, x, next(iter(x.value.members)), span)
    return x


_others = EXPRESSIONS[ast.Attribute], EXPRESSIONS[ast.Subscript]


def _attribute(cx: Lowering, node: ast.Attribute) -> Operand:
    found = None if dotted(node) else place(cx, node)
    return _others[0](cx, node) if found is None else load(cx, found, cx.span(node))


def _subscript(cx: Lowering, node: ast.Subscript) -> Operand:
    found = place(cx, node)
    return _others[1](cx, node) if found is None else load(cx, found, cx.span(node))


EXPRESSIONS[ast.Attribute], EXPRESSIONS[ast.Subscript] = _attribute, _subscript


# --- assignments ---------------------------------------------------------------------------------
def store(cx: Lowering, target: ast.Attribute | ast.Subscript, x: Operand, span: Span) -> bool:
    """Assigns to a member of a struct, or an element of a field of structs. False where ``target``
    is neither."""
    found = place(cx, target)
    if found is not None:
        _store(cx, found, x, cx.span(target), span)
        return True
    root: ast.expr = target
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    item = isinstance(target, ast.Subscript) and target.value is root  # of a plain vector
    if not isinstance(root, ast.Name):
        return False
    known = cx.frame.env.get(root.id)
    item = item and not (isinstance(known, Tup) and known.struct is dict)
    if item or not (is_record(known) or isinstance(known, Static) or any(objects.held(known))):
        return False
    base = cx.expression(target.value)
    if isinstance(target, ast.Attribute) and named.put(cx, base, target.attr, x, span):
        return True
    if not isinstance(base, Static | Tup | Vec):  # a tensor that an object has
        return False
    if isinstance(known, Static) and not _is_constant(known.value):
        return False
    check_changed(cx, root.id, known, _owner(cx, target.value), cx.span(target))
    record = of_constant(cx, base, span) if isinstance(base, Static | Tup) else None
    if record is not None and isinstance(record.struct, type) and _is_fixed(record.struct):
        raise KernelTypeError(
            f"a member of `{record.struct.__name__}` cannot be assigned: its objects are immutable",
            span, help="make another one",
        )  # fmt: skip
    if record is not None and isinstance(target, ast.Attribute) and target.attr in record.names:
        kinds = record.struct.members if isinstance(record.struct, StructType) else {}
        if target.attr in kinds:
            x = convert(cx, kinds[target.attr], x, span)
        items = list(record.items)
        items[record.names.index(target.attr)] = x
        _put(cx, target.value, replace(record, items=items), span)
        return True
    if record is not None and record.struct is dict and isinstance(target, ast.Subscript):
        key = named.known_key(cx.expression(target.slice), span)
        if key not in record.names:
            raise KernelTypeError(
                f"an item of a dict of {', '.join(map(repr, record.names))} is assigned by another "
                "key", span, help="make the dict with all of its keys, which are constants",
            )  # fmt: skip
        items = list(record.items)
        items[record.names.index(key)] = x
        _put(cx, target.value, replace(record, items=items), span)
        return True
    if isinstance(base, Vec):
        if isinstance(target, ast.Subscript):
            new: Operand = aggregates.replace(cx, base, target, x, span)
        else:
            places = aggregates.swizzle(base, target.attr)
            if places is None:
                return False
            many = [x] if len(places) == 1 else aggregates.unpack(x, len(places), span)
            entries = list(base.items)
            for k, item in zip(places, many, strict=True):
                entries[k] = item  # type: ignore[assignment]
            new = Vec(entries, base.shape)
        cx.bind(_target(target.value), new, span)
        return True
    if isinstance(target, ast.Subscript) and isinstance(base, Tup) and base.struct is dict:
        raise KernelTypeError(
            "a dict gets another key", span, help="make the dict with all of its keys, which are "
            "constants; by a number of run time there are elements of tensors and of lists",
        )  # fmt: skip
    if isinstance(target, ast.Subscript) and isinstance(base, Tup) and base.in_order:
        raise KernelTypeError(
            f"an item of `{ast.unparse(target.value)}` is assigned, and lists that objects hold do "
            "not change", span,
            help="give the list a name of its own, and hand it to the functions that change it",
        )  # fmt: skip
    raise KernelTypeError(f"{describe(base)} has no member that can be assigned here", span,
                          help="assign to a member of the struct")  # fmt: skip


def _put(cx: Lowering, node: ast.expr, new: Tup, span: Span) -> None:
    """Has what ``node`` names be ``new``: an object in all variables that hold it."""
    if objects.is_one(new):
        assert cx.statement is not None
        objects.spread(cx, new, cx.statement, span)
    else:
        cx.bind(_target(node), new, span)


def _owner(cx: Lowering, node: ast.expr) -> Tup | None:
    """The innermost of Python's objects that ``node`` is a part of; the innermost struct, if it is
    a part of none."""
    inner: Tup | None = None
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
        found = of_constant(cx, cx.expression(node), cx.span(node))
        if found is not None and found.objects:
            return found
        inner = found if inner is None else inner
        if isinstance(node, ast.Name):
            break
        node = node.value
    return inner


def _is_value(x: Operand | None) -> bool:
    """Whether it is a struct, and no object of Python's."""
    return is_record(x) and not isinstance(x.struct, type)  # type: ignore[union-attr]


def is_shared(function: Any, name: str, arguments: dict[str, Operand]) -> bool:
    """Whether a function that is called with ``arguments`` has the caller's own object in ``name``:
    a dataclass's, if it is no ``weft.func``, or what holds one, and what a struct's method is
    called of."""
    x = arguments[name]
    kind = x.struct if is_record(x) else None  # type: ignore[union-attr]
    if isinstance(kind, StructType):
        return name == next(iter(arguments)) and function in kind.methods.values()
    return any(objects.held(x)) and not is_func(function)


def check_changed(
    cx: Lowering, root: str, whole: Operand | None, x: Operand | None, span: Span
) -> None:  # fmt: skip
    """Notes that ``x``, a part of ``whole``, the variable ``root``, gets a new member. Refuses it
    where others should see that and would not: in a loop objects are values."""
    local = cx.frame.around is None and is_func(cx.frame.source.function)
    if root in cx.frame.shared:
        assigned = not objects.is_one(x) and objects.is_assigned(cx, root)
        if assigned and not (isinstance(x, Tup) and x.objects):
            raise KernelTypeError(
                f"`{root}`, which is the caller's, is changed here and assigned elsewhere", span,
                help="assign to another name",
            )  # fmt: skip
        if not objects.is_one(x) and not assigned:
            cx.frame.changed.add(root)
    elif root in cx.frame.given and not (local and _is_value(whole)):
        raise KernelTypeError(
            f"`{root}` is what the function was called with, and a copy of it", span,
            help="return a new struct, or copy it to another name before; a parameter that is "
            "annotated weft.template() is the caller's, and one of a weft.func is a copy",
        )  # fmt: skip
    if isinstance(x, Tup) and x.objects:
        objects.check_seen(cx, x, root, span)


def _target(node: ast.expr) -> ast.expr:
    """The same place, assigned."""
    new = copy.copy(node)
    new.ctx = ast.Store()  # type: ignore[attr-defined]
    return new


def _store(cx: Lowering, found: Spot | Slot, x: Operand, at: Span, span: Span) -> None:
    if isinstance(found, Spot):
        for tensor, indices, item in elements.stored(cx, found.part(cx, at), x, at, span):
            value = cx.read_scalar(item, span)
            cx.store_element(tensor.memref, tensor.dtype, indices, value, at)
        return
    names = list(found.field.value.members)
    record = of_constant(cx, x, span)
    if record is None and dtype_of(x) is None:
        raise KernelTypeError(
            f"an element of this field has {', '.join(names)}, and this is {describe(x)}", span,
            help="store a struct with these members",
        )  # fmt: skip
    if record is not None and list(record.names) != names:
        raise KernelTypeError(
            f"an element of this field has {', '.join(names)}, and this struct "
            f"{', '.join(record.names)}", span, help="store a struct with these members",
        )  # fmt: skip
    for k, member in enumerate(_members(cx, found, at)):
        _store(cx, member, x if record is None else record.items[k], at, span)


def updated(cx: Lowering, node: ast.AugAssign, symbol: str, span: Span) -> Part | bool:
    """The number or vector of a field of structs that ``node`` accumulates into; True where it was
    a whole struct, which is done; False where it is none."""
    found = place(cx, node.target)
    if found is None:
        return False
    at = cx.span(node.target)
    if isinstance(found, Spot):
        return found.part(cx, at)
    value = expressions.binary(cx, symbol, load(cx, found, at), cx.expression(node.value), span)
    _store(cx, found, value, at, span)
    return True
