"""Division by a number of the call as multiplication."""

from __future__ import annotations

import struct

DIVISOR = struct.Struct("<iI")  # a word for each divisor, behind the arguments
DIVIDEND = 1 << 29  # what is divided lies between this and its negative


def reciprocal(divisor: int) -> tuple[int, int] | None:
    """(multiplier, shift) with ``((2 * n + 1) * multiplier) >> (32 + shift) == n // divisor`` for
    ``abs(n) <= DIVIDEND``; None where there is none.

    The multiplier m is 2**k / d rounded, with k = 31 + shift. (2 n + 1) m / 2**(k+1) is n / d, and
    half of 1 / d more; what rounding adds, (2 n + 1) (m d - 2**k) / (d 2**(k+1)), has to stay
    below the other half. (The idea is that of Granlund and Montgomery, "Division by invariant
    integers using multiplication", PLDI 1994.)
    """
    if not 0 < divisor < 1 << 31:
        return None
    k = max(31, 30 + (divisor - 1).bit_length())
    multiplier = min(((1 << k) + divisor // 2) // divisor, (1 << 31) - 1)
    rounding = (2 * DIVIDEND + 1) * abs(multiplier * divisor - (1 << k))
    return (multiplier, k - 31) if rounding < 1 << k else None
