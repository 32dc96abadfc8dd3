"""serialize_reductions: axes that only accumulations run over become serial loops inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.texts import in_function, parsed
from weft.ir.interp import run
from weft.ir.text import same
from weft.passes.serialize_reductions import serialize_reductions

ROWS = "%x: memref<?x?xf32>, %s: memref<?xf32>, %n: index, %m: index"


def box(body: str, **attributes: object) -> str:
    attributes = {"noalias": True, **attributes}
    loop = f"scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {{{body}scf.reduce\n}}"
    return in_function(ROWS, loop, **attributes)


SUM = box("""
  %v = memref.load %x[%i, %j] : memref<?x?xf32>
  %o = memref.atomic_rmw addf %v, %s[%j] {atomic = true} : (f32, memref<?xf32>) -> f32
""")


def test_an_axis_that_no_subscript_has_becomes_a_serial_loop() -> None:
    after = in_function(
        ROWS,
        """
        %runs = arith.cmpi slt, %c0, %n : index
        %end = arith.select %runs, %m, %c0 : index
        scf.parallel (%j) = (%c0) to (%end) step (%c1) {
          %s0 = memref.load %s[%j] : memref<?xf32>
          %t = scf.for %i = %c0 to %n step %c1 iter_args(%a = %s0) -> (f32) {
            %v = memref.load %x[%i, %j] : memref<?x?xf32>
            %b = arith.addf %a, %v : f32
            scf.yield %b : f32
          }
          memref.store %t, %s[%j] : memref<?xf32>
          scf.reduce
        }
        """,
        noalias=True,
    )
    assert same(serialize_reductions(parsed(SUM)), parsed(after))


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (17, 3), (3, 0)])
@pytest.mark.parametrize("kind", ["addf", "mulf", "maximumf"])
def test_each_element_has_its_updates_in_their_order(shape: tuple[int, int], kind: str) -> None:
    """And memory that no iteration touches is left alone: there are no columns without rows."""
    random = np.random.default_rng(shape)
    x = random.standard_normal(shape).astype(np.float32)
    start = random.standard_normal(shape[1] if shape[0] else 0).astype(np.float32)
    before = parsed(SUM.replace("addf", kind))
    found: list[Any] = []
    for function in (before, serialize_reductions(before)):
        s = start.copy()
        run(function, [x, s, *shape], races=True)
        found.append(s)
    np.testing.assert_array_equal(*found)
    assert serialize_reductions(before) is not before


UPDATE = "%o = memref.atomic_rmw addf %v, %s[%j] {atomic = true} : (f32, memref<?xf32>) -> f32\n"
LOAD = "%v = memref.load %x[%i, %j] : memref<?x?xf32>\n"


@pytest.mark.parametrize(
    "text",
    [
        SUM.replace("%s[%j]", "%s[%c0]"),  # no axis is left
        box(f"{LOAD}{UPDATE}memref.store %o, %x[%i, %j] : memref<?x?xf32>\n"),
        box(f"{LOAD}{UPDATE}memref.store %v, %x[%i, %j] : memref<?x?xf32>\n"),
        box("%v = memref.load %s[%i] : memref<?xf32>\n" + UPDATE),  # what it reads changes
        box(f"{LOAD}%p = arith.remsi %j, %n : index\n" + UPDATE.replace("[%j]", "[%p]")),
        box(f"{LOAD}%q = arith.cmpi slt, %i, %j : index\nscf.if %q {{\n{UPDATE}scf.yield\n}}\n"),
        SUM.replace("noalias = true", "noalias = false"),
    ],
    ids=["one element", "used", "store", "read", "shared elements", "condition", "overlap"],
)
def test_what_stays(text: str) -> None:
    function = parsed(text)
    assert serialize_reductions(function) is function
