"""Calls of compiled code that checks itself: the error record, and the words for race checks.

Where index sets cannot tell whether iterations meet (see ``passes/race_checks.py``), the code notes
in words of their own, for each element, which iterations have read, written or updated it. These
words are made anew for each launch. Arguments whose memory overlaps share them, by address: an
element is known by where it begins, as in ``kernel.interpret``.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.codegen.interface import Check, Slot, word_shift
from weft.errors import RaceError
from weft.lang.loops import Index
from weft.runtime.conflict import race
from weft.source import Span

LEAST_WORDS = 16


class Shadows:
    """The words for the memrefs that ``slots`` names. ``sizes``: for each tensor of the argument
    block, in its order, bytes from its first to its last element, and of one element."""

    def __init__(self, slots: Sequence[Slot], sizes: Sequence[tuple[int, int]]) -> None:
        pointers = [slot.arg for slot in slots if slot.kind == "pointer"]
        watched = [slot for slot in slots if slot.kind == "shadow"]
        self.words = max((slot.axis for slot in watched), default=0)
        self.places = [pointers.index(slot.arg) for slot in watched]
        self.sizes = [sizes[place] for place in self.places]

    def make(self, block: bytes) -> tuple[list[torch.Tensor], bytes]:
        """Words for the tensors in an argument block, all zero, and what follows the block."""
        begins = [struct.unpack_from("<Q", block, 8 * place)[0] for place in self.places]
        tail: dict[int, tuple[int, int]] = {}
        made = []
        for group in self._groups(begins):
            origin = begins[group[0]]
            end = max(begins[k] + self.sizes[k][0] for k in group)
            # Sizes of elements are powers of two, and so is what divides them all.
            unit = math.gcd(
                *(self.sizes[k][1] for k in group), *(begins[k] - origin for k in group)
            )
            count = -(-(end - origin) // unit) * self.words
            words = torch.zeros(count, dtype=torch.int64, device="cpu")
            made.append(words)
            for k in group:
                first = (begins[k] - origin) // unit * self.words
                tail[k] = words.data_ptr() + 8 * first, unit.bit_length() - 1
        flat = [word for k in range(len(self.places)) for word in tail[k]]
        return made, struct.pack(f"<{len(flat)}Q", *flat)

    def _groups(self, begins: list[int]) -> list[list[int]]:
        """Which tensors overlap, directly or through others; the one that begins first in front."""
        groups: list[list[int]] = []
        reach = -1
        for k in sorted(range(len(begins)), key=begins.__getitem__):
            if begins[k] < reach:
                groups[-1].append(k)
            else:
                groups.append([k])
            reach = max(reach, begins[k] + self.sizes[k][0])
        return groups


def checked(
    call: Callable[[bytes], Any], slots: Sequence[Slot], checks: Sequence[Check],
    sizes: Sequence[tuple[int, int]], error: Callable[[Check, list[int]], Exception],
) -> Callable[[bytes], None]:  # fmt: skip
    """``call`` with an error record of its own, the last word of a block; raises what the record
    says (``error`` words all but races). ``sizes``: see ``Shadows``."""
    shadows = Shadows(slots, sizes)
    words = max([LEAST_WORDS, *(1 + len(check.values) for check in checks)])

    def launch(block: bytes) -> None:
        record = (ctypes.c_int64 * words)()
        noted, tail = shadows.make(block)
        call(block[:-8] + struct.pack("<Q", ctypes.addressof(record)) + tail)
        del noted  # alive until here
        if record[0]:
            check, values = checks[record[0] - 1], list(record[1:])
            raise race_error(checks, values) if check.kind == "race" else error(check, values)

    return launch


def race_error(checks: Sequence[Check], values: list[int]) -> RaceError:
    """The error that the record of a ``weft.check_race`` stands for."""
    shift = word_shift(len(checks))
    sides = sorted(values[:2])
    own = checks[values[0] & ((1 << shift) - 1)]
    position, space = tuple(values[2 : 2 + own.axis]), values[2 + own.axis : len(own.values)]
    found = []
    for word in sides:
        check = checks[word & ((1 << shift) - 1)]
        assert check.span is not None
        found.append(
            (check.message, _iteration((word >> shift) - 1, space, own), Span(*check.span))
        )
    return race(found[0], found[1], position, found[sides.index(values[0])][2])


def _iteration(number: int, space: Sequence[int], check: Check) -> Any:
    """The index of an iteration, or its indices, as the kernel's loop has them."""
    found: list[int] = []
    for first, step, count in reversed(list(zip(*[iter(space)] * 3, strict=True))):
        number, k = divmod(number, count)
        found.insert(0, first + k * step)
    if check.tensor == "grouped":
        return Index(found)
    return found[0] if len(found) == 1 else tuple(found)
