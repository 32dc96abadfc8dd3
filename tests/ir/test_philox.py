"""Random words: Philox 4x32-10, by the known answers that its authors publish (Random123)."""

from __future__ import annotations

import pytest

from weft.ir import philox

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_blocks_are_those_of_the_paper(counter, key, words) -> None:
    assert philox.block(counter, key) == words


def test_words_are_numbered_along_blocks() -> None:
    key, iteration = -(1 << 63) + 5, -7
    halves = [iteration & ONES, iteration >> 32 & ONES]
    own = key & ONES, key >> 32 & ONES
    expected = [w for at in range(3) for w in philox.block((at, 0, *halves), own)]
    assert [philox.word(key, iteration, number) for number in range(12)] == expected
    assert philox.word(key, iteration, -1) == philox.block((ONES, ONES >> 2, *halves), own)[3]
