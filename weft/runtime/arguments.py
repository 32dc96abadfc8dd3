"""The memref arguments of one call of a kernel on a GPU, and which of its forms they allow."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from weft.codegen import launching
from weft.codegen.intervals import Interval, fits
from weft.codegen.launching import Facts
from weft.ir.types import MemRefType, Type

_WORD = struct.Struct("<q")


class Arguments:
    """Sizes and strides, in elements, of each memref argument, by its position."""

    def __init__(self, facts: Facts, types: Sequence[Type], slots: bytes) -> None:
        """``types``: of the kernel's arguments; ``slots``: the packed argument block."""
        self.facts = facts
        self.types: dict[int, MemRefType] = {}
        self.views: dict[int, tuple[list[int], list[int]]] = {}
        for k, slot in enumerate(facts.slots):
            if slot.kind == "pointer":
                self.views[slot.arg] = ([], [])
            elif slot.kind in ("size", "stride"):
                word = _WORD.unpack_from(slots, 8 * k)[0]
                self.views[slot.arg][slot.kind == "stride"].append(word)
        for arg, (sizes, strides) in self.views.items():
            type = types[arg]
            assert isinstance(type, MemRefType)
            self.types[arg] = type
            if type.layout == "unit" and sizes:
                strides.append(1)
            elif type.layout == "contiguous":
                length = 1
                for n in reversed(sizes):
                    strides.insert(0, length)
                    length *= max(n, 1)

    def narrow(self) -> bool:
        """Whether 32 bits hold the offset of every element."""
        return all(_reach(*view) < (1 << 31) - 1 for view in self.views.values())

    def even_rows(self, aligned: Sequence[tuple[int, int]]) -> bool:
        """Whether every row of what is accessed in vectors begins at a whole one if the first
        does. ``aligned`` as in ``Mapping``."""
        for arg, limit in aligned:
            type = self.types[arg]
            sizes, strides = self.views[arg]
            per = limit // type.element.bytes
            if any(s % per for s in strides[:-1]) or (
                type.layout == "contiguous" and len(sizes) > 1 and sizes[-1] % per
            ):
                return False
        return True

    def even(self, found: Sequence[Interval]) -> bool:
        """Whether the call's numbers and sizes make the even form right. ``found``: the interval of
        each step."""
        form = self.facts.even
        if form is None:
            return False
        for step in form.multiples:
            low, high = found[step]
            if low != high or not fits((low, high)) or low % form.count:
                return False
        positive = all(found[step][0] > 0 for step in form.divisors)
        return positive and self.even_rows(form.aligned)

    def streams(self, cache: int) -> bool:
        """Whether what is written should make way for what is read, in a second-level ``cache`` of
        so many bytes."""
        mapping = self.facts.mapping
        if mapping is None or not mapping.streamed:
            return False
        written = read = 0
        for arg, (sizes, _) in self.views.items():
            size = math.prod(sizes) * self.types[arg].element.bytes
            if arg in mapping.streamed:
                written += size
            else:
                read += size
        return launching.streams(written, read, cache)


def _reach(sizes: list[int], strides: list[int]) -> int:
    """The offset of the last element, in elements."""
    if 0 in sizes:
        return 0
    return sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
