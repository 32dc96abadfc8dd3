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
from weft.values import frozen

_DEEPEST = 8  # collections in each other: one that holds itself is none


@frozen
class Form:
    """What a collection is like. ``kind``: list, tuple, dict, or the class of a named tuple or
    dataclass; ``names``: the keys of its items, if they have some; ``items``: their forms, None of
    what is no collection of tensors. ``shape``: of a vector or matrix that a loop accumulates
    into."""

    kind: type
    names: tuple[Any, ...]
    items: tuple[Form | None, ...]
    shape: tuple[int, ...] = ()


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


def form_of_total(value: Elementwise) -> Form:
    """The form of a vector or matrix: its numbers."""
    return Form(type(value), (), (None,) * len(value.entries()), tuple(value.shape))


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
