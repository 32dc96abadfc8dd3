"""The caches of this machine, as its system describes them; LLVM is not needed for it."""

from __future__ import annotations

import functools
from pathlib import Path

# Where the system does not say, and the most of what it says: larger caches are those of dozens of
# processors, of which a virtual machine shows a few. Where two had 480 MB, as it said, arrays of
# 48 MB stored past them took half the time, and three quarters where they were read at once.
USUAL = 32 << 20
_SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def last_level(system: Path = _SYSTEM) -> int:
    """The bytes of the largest cache that the first processor has a part in, up to ``USUAL``."""
    found = [_bytes(size.read_text()) for size in sorted(system.glob("index*/size"))]
    return min(max(found, default=0) or USUAL, USUAL)


def _bytes(text: str) -> int:
    """``32768K``; 0 where it is no size."""
    digits, unit = text.strip()[:-1], text.strip()[-1:]
    return int(digits) * _UNITS[unit] if digits.isdigit() and unit in _UNITS else 0
