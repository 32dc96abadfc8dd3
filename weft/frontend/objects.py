"""Python's objects that a device loop changes: those of dataclasses, and dicts.

While a loop is lowered an object is a ``Tup``, a value, which has written with it where it was made
(``Tup.objects``). A variable that has one such place holds that very object, as does another one
that has the same place: each value that a loop carries has all the places of its name, and each
turn of an unrolled loop is a place of its own. So a change is one of all variables of the frame
that hold the object, and, after a call, of those of the caller's that do. Where a variable may hold
one of several objects, a change that another name would see is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Keywords,
    Method,
    Operand,
    Static,
    Tup,
    TupKind,
    constant_value,
)
from weft.frontend.names import bound_names
from weft.frontend.scope import Frame, noted
from weft.source import subtree
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


@mutable
class Partial:
    """A function with its first arguments, and some by name. It is the value of a ``Static``."""

    function: Operand
    given: list[Operand]
    named: dict[str, Operand]

    @property
    def __name__(self) -> str:
        return "partial"


@mutable
class Making:
    """An object that the ``__init__`` of its class is at. It is the value of a ``Static``.
    ``block``: where its members are put."""

    kind: type
    members: dict[str, Operand]
    block: Any

    @property
    def __name__(self) -> str:
        return self.kind.__name__


OUTSIDE = "outside"
# The parameters of an inlined function that hold objects have a second name in it, which the
# function does not assign.
_GIVEN = " as it was given"


def site(cx: Lowering, span: Span) -> frozenset[Any]:
    """Where an object is made."""
    return frozenset({(*cx.frame.path, cx.frame.turns, span.line, span.column)})


def is_one(x: Any) -> bool:
    """Whether ``x`` is one object, which was made in the loop, and not one of several."""
    return isinstance(x, Tup) and len(x.objects) == 1 and next(iter(x.objects))[0] != OUTSIDE


def held(x: Any) -> Iterator[Tup]:
    """The objects that ``x`` is or holds."""
    if isinstance(x, Tup):
        if x.objects:
            yield x
        for item in x.items:
            yield from held(item)
    else:
        for item in _hidden(x):
            yield from held(item)


def _hidden(x: Any) -> Iterable[Operand]:
    """What holds objects, and is not replaced where they change."""
    if isinstance(x, Method):
        return (x.receiver,)
    value = x.value if isinstance(x, Static) else None
    if isinstance(value, Keywords):
        return value.values()
    if isinstance(value, Making):
        return value.members.values()
    if isinstance(value, Partial):
        return (value.function, *value.given, *value.named.values())
    return value.defaults.values() if isinstance(value, LocalFunction) else ()


def holds(x: Any, new: Making) -> bool:
    """Whether ``x`` is or holds ``new``, which is being made."""
    if isinstance(x, Tup):
        return any(holds(item, new) for item in x.items)
    return constant_value(x) is new or any(holds(item, new) for item in _hidden(x))


def give(cx: Lowering, name: str, x: Operand, body: Sequence[ast.AST]) -> None:
    """Notes that a function, with its ``body``, has ``x``, which may hold the caller's objects, as
    its ``name``."""
    found = list(held(x))
    several: list[frozenset[Any]] = [] if all(map(is_one, found)) else [y.objects for y in found]
    if found and not several and isinstance(x, Tup):
        cx.frame.env[f"{name}{_GIVEN}"] = x
    cx.frame.lent[name] = frozenset[Any]().union(*several), body


def is_assigned(cx: Lowering, name: str) -> bool:
    """Whether a function assigns to its parameter ``name``."""
    _, body = cx.frame.lent.get(name, (None, []))
    return any(name in bound_names(statement) for statement in body)


def spread(cx: Lowering, new: Tup, node: ast.AST, span: Span) -> None:
    """Gives ``new``, one object after a change, to all variables that hold the object; ``node``
    assigns them."""
    cx.frame.changed_objects.add(new.objects)
    names: set[str] = set()
    for name, x in list(cx.frame.env.items()):
        put = _put(x, new)
        if put is not x:
            names.add(name)
            cx.assign(name, put, span)
    cx.widened |= noted(node, names)


def of_sides(x: Any, sides: Iterable[Any]) -> Any:
    """``x``, an operand or a kind, with the objects that ``sides``, any of which it may be, have in
    the same places."""
    if not isinstance(x, Tup | TupKind):
        return x
    alike = [s for s in sides if isinstance(s, Tup | TupKind) and len(s.items) == len(x.items)]
    items = [of_sides(item, [s.items[k] for s in alike]) for k, item in enumerate(x.items)]
    made = frozenset[Any]().union(*(s.objects for s in alike))
    if isinstance(x, TupKind):
        return replace(x, items=tuple(items), objects=made)
    return replace(x, items=items, objects=made)


def carried(cx: Lowering, node: ast.AST, name: str, kind: TupKind, x: Operand) -> TupKind:
    """``kind`` with the objects that the variable ``name`` holds where the loop ``node`` begins, as
    ``x``, and where its turns end, as far as that is known (see ``goes_on``)."""
    key = _key(cx, node, name)
    cx.kinds[key] = found = of_sides(kind, [x, cx.kinds.get(key)])
    return found


def goes_on(cx: Lowering, node: ast.AST, name: str, kind: Any, x: Operand) -> bool:
    """Notes that a turn of the loop ends with ``x`` as a variable that began as ``kind``. Whether
    it began as no object that is known, and what has been lowered since tells nothing."""
    if not isinstance(kind, TupKind):
        return False
    found = of_sides(kind, [kind, x])
    cx.widened |= found != kind
    cx.kinds[_key(cx, node, name)] = found
    return found != kind and not kind.objects


def _key(cx: Lowering, node: ast.AST, name: str) -> tuple[Any, ...]:
    span = cx.span(node)
    return (*cx.frame.path, cx.frame.turns, span.line, span.column, f"{name} in a loop")


def renewed(cx: Lowering, x: Operand) -> Operand:
    """``x``, which was evaluated before ``cx.frame.changed_objects`` were changed, as it is now."""
    changed = frozenset[Any]().union(*cx.frame.changed_objects)
    for old in list(held(x)) if changed else ():
        if old.objects & changed and is_one(old):
            now = (y for v in cx.frame.env.values() for y in held(v) if y.objects == old.objects)
            x = _put(x, next(now, old))
    return x


def _put(x: Operand, new: Tup) -> Operand:
    if not isinstance(x, Tup):
        return x
    if x.objects == new.objects:
        return new
    items = [_put(item, new) for item in x.items]
    same = all(a is b for a, b in zip(items, x.items, strict=True))
    return x if same else replace(x, items=items)


def check_seen(cx: Lowering, x: Tup, root: str, span: Span) -> None:
    """Refuses a change of ``x``, a part of the variable ``root``, that another name may see, and
    notes one that callers alone may see (``check_lent``)."""
    if any(made[0] == OUTSIDE for made in x.objects):
        raise KernelTypeError(
            f"{_quoted(root)} is an object from outside of the loop, and all iterations would "
            "change it", span, help=f"make one in the loop: {named_anew(x)}",
        )  # fmt: skip
    one = is_one(x)
    for name, (given, _) in cx.frame.lent.items():
        if not one and given & x.objects and (name != root or is_assigned(cx, name)):
            cx.frame.unseen |= x.objects
    for name, value in cx.frame.env.items():
        if name.startswith("."):
            continue
        found = [y for y in held(value) if y.objects & x.objects]
        if found and not isinstance(value, Tup):
            raise KernelTypeError(
                f"{_quoted(name)} holds an object that is changed, and does not see "
                "it: a bound method, `**` arguments or defaults of a function", span,
                help="hand the object itself on, by a name",
            )  # fmt: skip
        doubtful = [y for y in found if not (one and y.objects == x.objects)]
        if len(doubtful) > (name == root and not one):
            other = _quoted(name) if name != root else "another part of it"
            raise KernelTypeError(
                f"what is changed by the name {_quoted(root)} may be {other}, too", span,
                help=f"an object that is one of several has one name where a loop changes it: make "
                f"another one, {named_anew(x)}",
            )  # fmt: skip


def around(cx: Lowering, function: LocalFunction, own: set[str], span: Span) -> dict[str, Operand]:
    """The variables around ``function`` that hold objects, as they are where it is called: it may
    change these, too. ``own``: names of its own."""
    caller, defining = cx.frame, function.frame
    here: dict[str, Operand] = {n: x for n, x in defining.env.items()
            if isinstance(x, Tup) and n[0] != "." and n not in own and any(held(x))}  # fmt: skip
    if caller is defining:
        return here
    seen = {n: caller.env[n] for n in caller.imported} if caller.around is defining else {}
    changed, frame = frozenset[Any](), caller
    while frame is not None and frame is not defining:
        changed = changed.union(*frame.changed_objects)
        frame = frame.caller
    read = _read(function.node, defining, set())
    for name in here.keys() - seen.keys():
        if name in read and any(y.objects & changed for y in held(here[name])):
            raise KernelTypeError(
                f"`{function.__name__}` reads `{name}` of the function that defines it, which has "
                "been changed by what calls it", span, help=f"call it with `{name}` as an argument",
            )  # fmt: skip
    return here | {n: x for n, x in seen.items() if n in here}


def _read(node: ast.AST, frame: Frame, known: set[ast.AST]) -> set[str]:
    """The names that a function reads, and those which it calls that are defined in ``frame``."""
    known.add(node)
    found = {n.id for n in subtree(node) if isinstance(n, ast.Name)}
    for name in list(found):
        value = getattr(frame.env.get(name), "value", None)
        if isinstance(value, LocalFunction) and value.node not in known:
            found |= _read(value.node, value.frame, known)
    return found


def check_around(cx: Lowering, function: LocalFunction, inner: Frame, span: Span) -> None:
    """Refuses that ``function``, which was called with the frame ``inner``, has changed objects of
    the function that defines it, where that would not see it: another one has called it."""
    defining, frame = function.frame, cx.frame
    changed, unseen = frozenset[Any]().union(*inner.changed_objects), frozenset[Any]()
    while frame is not None and frame is not defining:  # each hands on what it holds
        unseen |= changed.difference(*(y.objects for x in frame.env.values() for y in held(x)))
        frame = frame.caller
    unseen = changed if frame is None else unseen
    for name, x in defining.env.items():
        if any(y.objects & unseen for y in held(x)):
            raise KernelTypeError(
                f"`{function.__name__}` changes `{name}` of the function that defines it, and is "
                "called by another one", span, help="call it where it is defined",
            )  # fmt: skip


def check_lent(cx: Lowering, function: str, inner: Frame, span: Span) -> None:
    """Refuses that ``function``, which was called with the frame ``inner``, has changed what may be
    an object that the caller holds, by a name that is not handed back."""
    _check_read(cx, function, inner.unseen, span)
    for name, x in cx.frame.env.items():
        if not name.startswith(".") and any(y.objects & inner.unseen for y in held(x)):
            raise KernelTypeError(
                f"what `{function}` changes by another name than it was given by, or after that "
                f"was assigned, may be {_quoted(name)}", span,
                help="an object that is one of several has one name where a loop changes it: "
                f"change it in `{function}` by the parameter, and assign to other names",
            )  # fmt: skip
    cx.frame.unseen |= inner.unseen  # its caller may hold it, too


def _check_read(cx: Lowering, function: str, changed: frozenset[Any], span: Span) -> None:
    read = (*cx.frame.read, *cx.pending[: cx.begin])
    if any(y.objects & changed for x in read for y in held(x)):
        raise KernelTypeError(
            f"`{function}` changes an object that this statement has read before", span,
            help="call it in a statement of its own, before this one",
        )  # fmt: skip


def _quoted(name: str) -> str:
    """A variable as the user wrote it: those of comprehensions have their place behind."""
    given = "what the function was given as " if name.endswith(_GIVEN) else ""
    return f"{given}`{name.partition(' ')[0]}`"


def named_anew(x: Tup) -> str:
    """How another object like ``x`` is written."""
    if x.struct is dict:
        return "{" + ", ".join(f"{name!r}: a[{name!r}]" for name in x.names) + "}"
    return f"{x.struct.__name__}({', '.join(f'a.{name}' for name in x.names)})"


def hand_back(
    cx: Lowering, function: str, changed: Iterable[frozenset[Any]], after: dict[str, Operand],
    node: ast.Call, span: Span,
) -> list[str]:  # fmt: skip
    """Has the caller's variables hold the objects ``changed`` as ``function`` leaves them.
    ``after``: its variables at its end. Gives the names of the caller's."""
    names: list[str] = []
    for objects in sorted(changed, key=str):
        holders = [name for name, x in cx.frame.env.items()
                   if any(y.objects & objects for y in held(x))]  # fmt: skip
        if not holders:
            continue
        new = next((y for x in after.values() for y in held(x) if y.objects == objects), None)
        if new is None:
            raise KernelTypeError(
                f"`{function}` changes `{holders[0]}` and keeps no name of it", span,
                help="assign to another name in it",
            )  # fmt: skip
        _check_read(cx, function, objects, span)
        own = [n for n in holders if any(y.objects == objects for y in held(cx.frame.env[n]))]
        check_seen(cx, new, (own or holders)[0].removesuffix(_GIVEN), span)
        spread(cx, new, node, span)
        names += holders
    return names
