"""Lists, tuples, dicts, named tuples and dataclasses that hold tensors, as arguments of a loop.

Each of their members is passed as an argument of its own, so that all that is known of tensors as
arguments (layouts, overlap, races, gradients) is known of members, and the loop puts them together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from weft.frontend.kinds import Operand, Tup, Vec
from weft.lang.elements import Elementwise
from weft.lang.structs import Struct, made_of, members_of, type_of
from weft.values import frozen

_DEEPEST = 8  # collections in each other: one that holds itself is none


@frozen
class Form:
    """What a collection is like. ``kind``: list, tuple, dict, or the class of a named tuple or
    dataclass; ``names``: the keys of its items, if they have some; ``items``: their forms, None of
    what is no collection of tensors. ``total``: a loop accumulates into it, a vector or matrix of
    this ``shape``, or a struct."""

    kind: Any
    names: tuple[Any, ...]
    items: tuple[Form | None, ...]
    shape: tuple[int, ...] = ()
    total: bool = False


def form_of(value: Any, depth: int = 0) -> Form | None:
    """The form of a collection that holds tensors; None of other values."""
    parts = parts_of(value) if depth < _DEEPEST else None
    if parts is None:
        return None
    kind, names, items = parts
    forms = tuple(form_of(item, depth + 1) for item in items)
    if not any(forms) and not any(isinstance(item, torch.Tensor) for item in items):
        return None
    return Form(kind, names, forms)


def form_of_total(value: Elementwise | Struct) -> Form | None:
    """The form of a vector or matrix, or of a struct of such and numbers: its numbers. None where a
    struct has other members."""
    if isinstance(value, Elementwise):
        entries = (None,) * len(value.entries())
        return Form(type(value), (), entries, tuple(value.shape), total=True)
    items: list[Form | None] = []
    for member in members_of(value).values():
        form = form_of_total(member) if isinstance(member, Elementwise | Struct) else None
        real = isinstance(member, bool | int | float) or (
            isinstance(member, torch.Tensor) and not member.dim() and not member.is_complex()
        )
        if form is None and not real:
            return None
        items.append(form)
    return Form(type_of(value), tuple(members_of(value)), tuple(items), total=True)


def with_leaves(value: Any, form: Form | None, given: Iterator[Any]) -> Any:
    """A value of this form, of a total, with other numbers."""
    if form is None:
        return next(given)
    if form.shape:
        return value.with_entries([next(given) for _ in form.items])
    old = members_of(value).items()
    pairs = zip(old, form.items, strict=True)
    return made_of({n: with_leaves(v, inner, given) for (n, v), inner in pairs}, form.kind)


def parts_of(value: Any) -> tuple[type, tuple[Any, ...], Sequence[Any]] | None:
    """What a collection is made of: its kind, names, and items."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value), tuple(value._fields), value  # type: ignore[attr-defined]
    if isinstance(value, tuple | list) and not hasattr(value, "entries"):
        return (tuple if isinstance(value, tuple) else list), (), value
    if isinstance(value, torch.nn.ParameterList):
        return list, (), list(value)
    if isinstance(value, torch.nn.ParameterDict):
        value = dict(value.items())
    if isinstance(value, dict):
        keyed = all(type(key) in (str, int) for key in value)
        return (dict, tuple(value), list(value.values())) if keyed and value else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in dataclasses.fields(value))
        plain = all(hasattr(value, name) for name in names)
        return (type(value), names, [getattr(value, n) for n in names]) if plain else None
    return None


def leaves(value: Any, form: Form | None) -> Iterator[Any]:
    """What a value of this form holds."""
    if form is None:
        yield value
        return
    if form.shape:
        yield from value.entries()
        return
    if isinstance(value, Struct):
        items: Sequence[Any] = list(members_of(value).values())
    else:
        _, _, items = parts_of(value) or (None, (), ())
    for item, inner in zip(items, form.items, strict=True):
        yield from leaves(item, inner)


def leaf_names(name: str, form: Form | None) -> Iterator[str]:
    """As ``leaves``, how each is written where the collection is ``name``."""
    if form is None:
        yield name
        return
    for k, inner in enumerate(form.items):
        own = f"{name}[{k}]"
        if form.kind is dict:
            own = f"{name}[{form.names[k]!r}]"
        elif form.names:
            own = f"{name}.{form.names[k]}"
        yield from leaf_names(own, inner)


def whole(form: Form | None, operands: Iterator[Operand]) -> Operand:
    """The collection of this form whose members are ``operands``, in a loop."""
    if form is None:
        return next(operands)
    items = [whole(inner, operands) for inner in form.items]
    if form.shape:
        return Vec(items, form.shape)  # type: ignore[arg-type]
    return Tup(items, form.names, form.kind if form.names else None)
