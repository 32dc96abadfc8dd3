"""What compiled code and its caller agree on: the argument block, and the checks that can fail.

Light to import: a kernel that comes from the disk cache needs this and not the code generator.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One 8-byte word of the argument block. ``kind`` is "pointer", "int", "float", "size",
    "stride" or "record"; ``arg`` is the position among the function's arguments."""

    kind: str
    arg: int
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """A weft.assert or weft.bounds: record[0] == 1 + its position in ``CpuCode.checks`` says that
    it failed. ``values`` are the kinds ("int", "float", "bool") of record[1:]."""

    kind: str
    message: str
    tensor: str
    axis: int
    values: tuple[str, ...]
    span: tuple[str, int, int, int, int, str, str] | None  # the fields of source.Span
