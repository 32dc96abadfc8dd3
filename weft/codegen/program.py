"""The index arithmetic of a loop, by which launching decides for the sizes of a call."""

from __future__ import annotations

from weft.codegen.threads import argument_slots
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType
from weft.schedule.index_width import Program


def program_of(function: Function) -> Program:
    """The index arithmetic of ``function``, from its argument block."""
    places = {(s.kind, s.arg, s.axis): k for k, s in enumerate(argument_slots(function))}
    positions = {arg: k for k, arg in enumerate(function.args)}

    def slot_of(value: Value, axis: int) -> int | None:
        position = positions.get(value)
        if position is None:
            return None
        kind = "size" if isinstance(value.type, MemRefType) else "int"
        return places.get((kind, position, axis))

    return Program(function, slot_of)
