"""Random bits by number: Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
as easy as 1, 2, 3" (SC 2011).

A bijection of 128 bits for each key: what it makes of a counter is a block of four random words.
There is no state, so any number is computed alone, on any thread. The word ``number`` of iteration
``iteration`` under ``key`` is word ``number % 4`` of the block whose counter is ``number // 4``
(the low 64 bits) and ``iteration`` (the high ones).
"""

from __future__ import annotations

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the words of the key grow by from round to round
WORDS = 4  # of a block
_MASK = 0xFFFFFFFF


def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four words of 32 bits, unsigned, that Philox makes of a counter."""
    a, b, c, d = counter
    low, high = key
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = second >> 32 ^ b ^ low, second & _MASK, first >> 32 ^ d ^ high, first & _MASK
        low, high = low + WEYL[0] & _MASK, high + WEYL[1] & _MASK
    return a, b, c, d


def word(key: int, iteration: int, number: int) -> int:
    """A random word of 32 bits, unsigned. Of negative arguments, the 64 bits count."""
    at = number % (1 << 64) // WORDS
    counter = at & _MASK, at >> 32, iteration & _MASK, iteration >> 32 & _MASK
    return block(counter, (key & _MASK, key >> 32 & _MASK))[number % WORDS]
