"""What compiled code and its caller agree on: the argument block, and the checks that can fail.

Light to import: a kernel that comes from the disk cache needs this and not the code generator.
"""

from __future__ import annotations

import struct

from weft.values import frozen


@frozen
class Slot:
    """One 8-byte word of the argument block. ``kind`` is "pointer", "int", "float", "size",
    "stride" or "record"; ``arg`` is the position among the function's arguments. Where accesses are
    watched for races, there follow, for each memref that is, "shadow" (the address of the words for
    its first element, of which ``axis`` belong to an element) and "shift" (log2 of the bytes of the
    memref for which there are as many words)."""

    kind: str
    arg: int
    axis: int = 0


@frozen
class Check:
    """A weft.assert, weft.bounds or weft.check_race: record[0] == 1 + its position in
    ``CpuCode.checks`` says that it failed. ``values`` are the kinds ("int", "float", "bool",
    "unsigned") of record[1:], which the ``message`` of an assertion is a template for.

    ``kind`` "race": ``message`` is what the access does, ``axis`` the number of subscripts,
    ``tensor`` "grouped" where the loop's indices are a vector. The record has the words of this
    access and of the other (iteration + 1, shifted by ``word_shift``, and the check's position),
    subscripts, and first value, step and count of each index."""

    kind: str
    message: str
    tensor: str
    axis: int
    values: tuple[str, ...]
    span: tuple[str, int, int, int, int, str, str] | None  # the fields of source.Span


def word_shift(checks: int) -> int:
    """How many bits of a word tell which of so many checks it is."""
    return max(checks - 1, 0).bit_length()


def number_of(word: int, kind: str) -> int | float | bool:
    """The number that a word (64 bits, with a sign) of a record is."""
    if kind == "float":
        return struct.unpack("<d", struct.pack("<q", word))[0]
    return bool(word) if kind == "bool" else word % (1 << 64) if kind == "unsigned" else word
