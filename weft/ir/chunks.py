"""How the iterations of a loop are cut into chunks (``weft.chunks``): by the sizes alone."""

from __future__ import annotations

from weft.ir.trips import NUMBERS, steps_of

MOST = 256  # chunks
LONG = 256  # iterations, beyond which a chunk begins where a line of memory does
LINE = 64  # iterations that are whole lines, whatever their elements are


def chunks(total: int, row: int, wished: float) -> tuple[int, int]:
    """The iterations of a chunk, and the number of chunks, of ``total`` iterations, in rows of
    ``row``, that are to be cut into ``wished``: long chunks are whole lines or rows."""
    count = int(min(wished, MOST))
    if count < 2:
        return max(total, 1), min(total, 1)
    even = steps_of(NUMBERS, total, count)
    unit = max(row, 1) if even > row else LINE if even > LONG else 1
    size = max(steps_of(NUMBERS, even, unit) * unit, 1)
    return size, steps_of(NUMBERS, total, size)
