"""What the compiler makes of the kernels of the replay is what the record says."""

from __future__ import annotations

import pytest

from tests.golden.cases import KERNELS
from tests.golden.replay import differences, hashes, recorded

HOW = "see how with `python -m tests.golden --show {0}`; if it is meant, `make replay ARGS=record`"


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiler_makes_what_is_recorded(name: str) -> None:
    lines = hashes(name)
    assert len({line.rsplit(" ", 1)[0] for line in lines}) == len(lines), "names of their own"
    changed = differences(recorded().get(name, []), lines)
    assert changed == [], HOW.format(name)


def test_the_record_is_sorted_and_has_no_kernel_that_is_gone() -> None:
    assert list(recorded()) == sorted(KERNELS)


def test_a_changed_a_new_and_a_missing_text_are_named() -> None:
    before = ["k 0 ir cpu aaa", "k 0 llvm cpu32 bbb", "k 0 llvm i32-v1 ccc"]
    now = ["k 0 ir cpu aaa", "k 0 llvm cpu32 ddd", "k 0 llvm i64-v1 eee"]
    assert differences(before, now) == [
        "k 0 llvm cpu32: changed", "k 0 llvm i32-v1: gone", "k 0 llvm i64-v1: new",
    ]  # fmt: skip
