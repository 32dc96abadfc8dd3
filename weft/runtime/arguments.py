"""The sizes and numbers of one call of a kernel on a GPU, read from its packed argument block."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.codegen.launching import Facts
from weft.codegen.shading import ShaderFacts
from weft.ir.types import MemRefType, Type
from weft.schedule.intervals import Interval, evaluate
from weft.schedule.sizes import Array, Sizes

_WORD = struct.Struct("<q")


def sizes_of(
    facts: Facts | ShaderFacts, types: Sequence[Type], slots: bytes,
    aligned: frozenset[tuple[str, int]],
) -> Sizes:  # fmt: skip
    """``types``: of the kernel's arguments; ``slots``: the argument block. ``aligned``: arrays, and
    bytes that their addresses are multiples of."""

    def word(k: int) -> Interval:
        value = _WORD.unpack_from(slots, 8 * k)[0]
        return value, value

    nest = facts.nest
    return Sizes(nest, evaluate(nest.program, word), _arrays(facts, types, slots), aligned)


def _arrays(facts: Facts | ShaderFacts, types: Sequence[Type], slots: bytes) -> dict[str, Array]:
    views: dict[int, tuple[list[int], list[int]]] = {}
    for k, slot in enumerate(facts.slots):
        if slot.kind == "pointer":
            views[slot.arg] = ([], [])
        elif slot.kind in ("size", "stride"):
            value = _WORD.unpack_from(slots, 8 * k)[0]
            views[slot.arg][slot.kind == "stride"].append(value)
    found: dict[str, Array] = {}
    for arg, (sizes, strides) in views.items():
        type = types[arg]
        assert isinstance(type, MemRefType)
        contiguous = type.layout == "contiguous"
        if type.layout == "unit" and sizes:
            strides.append(1)
        elif contiguous:
            length = 1
            for n in reversed(sizes):
                strides.insert(0, length)
                length *= max(n, 1)
        name, bytes = facts.nest.arrays[arg], type.element.bytes
        found[name] = Array(tuple(sizes), tuple(strides), bytes, contiguous)
    return found
