"""Trip counts as LLVM instructions."""

from __future__ import annotations

from typing import ClassVar

from weft.codegen.emit import Emitter
from weft.ir import trips
from weft.ir.core import Value


class _Instructions:
    """Integers of LLVM's type ``ty``, by their names."""

    # The dividend of a trip count is never negative, and may need all bits.
    _OPS: ClassVar = {"addi": "add", "subi": "sub nsw", "floordivsi": "udiv"}

    def __init__(self, e: Emitter, ty: str) -> None:
        self.e = e
        self.ty = ty

    def constant(self, value: str) -> int | None:
        return None if value.startswith("%") else int(value)

    def number(self, value: int) -> str:
        return str(value)

    def op(self, name: str, a: str, b: str) -> str:
        if name == "maxsi":
            return self.e.intrinsic(f"llvm.smax.{self.ty}", self.ty, (self.ty, a), (self.ty, b))
        return self.e.inst(f"{self._OPS[name]} {self.ty} {a}, {b}")


def trip_count(e: Emitter, lower: Value, upper: Value, step: Value, ty: str = "i64") -> str:
    """How many iterations a loop with these bounds has."""
    return trips.trip_count(_Instructions(e, ty), e.name(lower), e.name(upper), e.name(step))
