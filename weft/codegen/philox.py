"""Random bits as instructions: the ten rounds of ``weft.ir.philox``, written out.

Words are kept in the low halves of 64 bits, where a round's products are: vectors multiply them so
without packing. Several words of one block are one computation once LLVM has merged them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.emit import Emitter
from weft.ir.core import Op
from weft.ir.philox import MULTIPLIERS, ROUNDS, WEYL, WORDS
from weft.ir.types import i1, i32, i64

_MASK = 0xFFFFFFFF


def random_word(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """The rule of ``math.philox``."""
    wide = e.type(i64)

    def two(instruction: str, a: str, b: str | int) -> str:
        return e.inst(f"{instruction} {wide} {a}, {e.literal(b, i64) if isinstance(b, int) else b}")

    def halves(x: str) -> tuple[str, str]:
        return two("and", x, _MASK), two("lshr", x, 32)

    key, iteration, number = operands
    low, high = halves(key)
    a, b = halves(two("lshr", number, 2))
    c, d = halves(iteration)
    for k in range(ROUNDS):
        if k:
            low = two("and", two("add", low, WEYL[0]), _MASK)
            high = two("and", two("add", high, WEYL[1]), _MASK)
        first, second = two("mul", a, MULTIPLIERS[0]), two("mul", c, MULTIPLIERS[1])
        a, b = two("xor", two("xor", two("lshr", second, 32), b), low), two("and", second, _MASK)
        c, d = two("xor", two("xor", two("lshr", first, 32), d), high), two("and", first, _MASK)
    words = a, b, c, d
    known = e.constants.get(op.last)
    if known is not None:
        found = words[int(known) % WORDS]
    else:
        place, found = two("and", number, WORDS - 1), words[0]
        for k, one in enumerate(words[1:], 1):
            this = e.inst(f"icmp eq {wide} {place}, {e.literal(k, i64)}")
            found = e.inst(f"select {e.type(i1)} {this}, {wide} {one}, {wide} {found}")
    return [e.inst(f"trunc {wide} {found} to {e.type(i32)}")]
