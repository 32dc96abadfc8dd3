"""Room for Python's ints in names that elements are assigned to, too.

A number of Python's is weak: beside an element it takes its dtype, also where both are assigned to
one name. A literal that does not fit is refused. An int of run time (an index, a size, an argument)
would wrap though nothing is computed: ``r = i`` and then ``r = next[r]``, of i8. Such names hold
ints of Python, which have 64 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.frontend.kinds import (
    BITS,
    INTS,
    Kind,
    Operand,
    Scalar,
    ScalarKind,
    Tup,
    TupKind,
    Vec,
    VecKind,
)
from weft.ir.views import constant_of

_WEAK = "int"
Key = tuple[Any, ...]  # the path and name of a variable, or of a list


class Rooms:
    """The kinds of variables that have room for Python's ints, in all rounds of lowering."""

    def __init__(self) -> None:
        self.made: dict[Key, Kind] = {}
        self.missing: dict[Key, Kind] = {}  # as this round has found out

    def begin(self) -> None:
        """Another round."""
        self.missing.clear()

    def given(self, key: Key, kind: Kind) -> Kind:
        """``kind``, of the variable at ``key``, with the room that it has."""
        return as_roomy(kind, self.made.get(key, kind))

    def note(self, key: Key, kind: Kind, operand: Operand) -> None:
        """The variable is of ``kind`` and holds ``operand``, too."""
        if (wide := roomy(kind, operand)) != kind:
            self.missing[key] = wide

    def are_made(self) -> bool:
        """Makes what is missing now that a round has found the kinds of all: whether something
        was."""
        self.made |= self.missing
        return bool(self.missing)


def roomy(kind: Kind, x: Operand) -> Kind:
    """``kind``, to which ``x`` is to be converted, with room for the ints of run time in ``x``."""
    if isinstance(kind, ScalarKind) and isinstance(x, Scalar):
        weak = x.dtype == _WEAK and constant_of(x.value) is None
        return ScalarKind(_WEAK) if weak and _is_narrow(kind.dtype) else kind
    if isinstance(kind, VecKind) and isinstance(x, Vec):
        items = {roomy(ScalarKind(kind.dtype), item) for item in x.items}
        return replace(kind, dtype=_WEAK) if ScalarKind(_WEAK) in items else kind
    if isinstance(kind, TupKind) and isinstance(x, Tup):
        return _with_items(kind, tuple(map(roomy, kind.items, x.items)))
    return kind


def dtype_with_room(dtype: str, *operands: Operand) -> str:
    """The same of a number's dtype."""
    kind: Kind = ScalarKind(dtype)
    for x in operands:
        kind = roomy(kind, x)
    assert isinstance(kind, ScalarKind)
    return kind.dtype


def as_roomy(kind: Kind, like: Kind) -> Kind:
    """``kind`` with room wherever ``like``, of the same form, has it."""
    if isinstance(kind, ScalarKind | VecKind) and isinstance(like, type(kind)):
        wide = like.dtype == _WEAK and _is_narrow(kind.dtype)
        return replace(kind, dtype=_WEAK) if wide else kind
    if isinstance(kind, TupKind) and isinstance(like, TupKind):
        return _with_items(kind, tuple(map(as_roomy, kind.items, like.items)))
    return kind


def _is_narrow(dtype: str) -> bool:
    return dtype in INTS and BITS[dtype] < 64


def _with_items(kind: TupKind, items: tuple[Kind, ...]) -> TupKind:
    return kind if items == kind.items else replace(kind, items=items)
