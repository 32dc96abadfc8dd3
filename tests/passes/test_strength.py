"""strength: text before, text after."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.texts import normal, result_of
from weft.ir.interp import run
from weft.ir.text import parse_function
from weft.passes.dce import dce
from weft.passes.strength import strength


def text(body: str) -> str:
    return f"""
        func.func @f(%m: memref<index>, %x: index, %n: index) {{
          {body}
          memref.store %r, %m[] : memref<index>
          func.return
        }}"""


EIGHT = "%c8 = arith.constant 8 : index\n"
MODULO = (
    EIGHT
    + """
          %q = arith.floordivsi %x, %c8 : index
          %p = arith.muli %q, %c8 : index
          %r = arith.subi %x, %p : index"""
)


@pytest.mark.parametrize(("before", "after"), [
    (EIGHT + "%r = arith.floordivsi %x, %c8 : index",
     "%c3 = arith.constant 3 : index\n%r = arith.shrsi %x, %c3 : index"),
    (EIGHT + "%r = arith.divui %x, %c8 : index",
     "%c3 = arith.constant 3 : index\n%r = arith.shrui %x, %c3 : index"),
    (EIGHT + "%r = arith.remui %x, %c8 : index",
     "%c7 = arith.constant 7 : index\n%r = arith.andi %x, %c7 : index"),
    (MODULO, "%c7 = arith.constant 7 : index\n%r = arith.andi %x, %c7 : index"),
    (EIGHT + "%r = arith.remsi %x, %c8 : index", EIGHT + "%r = arith.remsi %x, %c8 : index"),
    ("%r = arith.floordivsi %x, %n : index", "%r = arith.floordivsi %x, %n : index"),
    ("%c = arith.constant 6 : index\n%r = arith.floordivsi %x, %c : index",
     "%c = arith.constant 6 : index\n%r = arith.floordivsi %x, %c : index"),
    ("%c = arith.constant -8 : index\n%r = arith.floordivsi %x, %c : index",
     "%c = arith.constant -8 : index\n%r = arith.floordivsi %x, %c : index"),
])  # fmt: skip
def test_rule(before, after):
    assert anonymous(result_of([strength, dce], text(before))) == anonymous(normal(text(after)))


def anonymous(printed: str) -> list[str]:
    """Lines without the names of constants."""
    return [line.replace("%c3", "%c").replace("%c7", "%c") for line in printed.splitlines()]


def test_modulo_of_negative_numbers_is_pythons():
    function = strength(parse_function(text(MODULO)))
    out = np.zeros((), np.int64)
    for x in range(-20, 20):
        run(function, [out, x, 0])
        assert out == x % 8
