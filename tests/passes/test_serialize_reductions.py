"""serialize_reductions: axes that only accumulations run over become serial loops inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.texts import in_function, parsed
from weft.ir.interp import run
from weft.ir.text import same
from weft.passes.if_convert import if_convert
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
ASKED = "%q = arith.cmpf ogt, %v, %zero : f32\n"
COUNT = UPDATE.replace("%o", "%p").replace("%s", "%t")


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (17, 3), (3, 0), (5, 9)])
@pytest.mark.parametrize(
    "body",
    [
        f"scf.if %q {{\n{UPDATE}}}\n",
        f"scf.if %q {{\n{UPDATE}}} else {{\n{COUNT}}}\n",
        f"{UPDATE}scf.if %q {{\n{COUNT}}}\n",
        f"scf.for %k = %c0 to %j step %c1 {{\nscf.if %q {{\n{UPDATE}}}\n}}\n",
    ],
    ids=["one", "two", "always", "loop"],
)
def test_updates_under_a_condition(shape: tuple[int, int], body: str) -> None:
    """No element is touched that an array has not, where no iteration comes to its update; zeros
    keep their signs."""
    text = box(f"{LOAD}{ASKED}%e = arith.cmpi slt, %j, %w : index\nscf.if %e {{\n{body}}}\n")
    text = text.replace("%m: index", "%t: memref<?xf32>, %w: index, %m: index")
    before = parsed(text)
    after = serialize_reductions(before)
    assert after is not before
    random = np.random.default_rng(shape)
    x = random.standard_normal(shape).astype(np.float32)
    width = min(shape[1], 7)
    found: list[Any] = []
    for function in (before, after, if_convert(after)):
        s, t = np.full(width, -0.0, np.float32), np.zeros(width, np.float32)
        run(function, [x, s, shape[0], t, width, shape[1]], races=True)
        found.append(np.stack([s, t]).view(np.int32))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(
    "text",
    [
        SUM.replace("%s[%j]", "%s[%c0]"),  # no axis is left
        box(f"{LOAD}{UPDATE}memref.store %o, %x[%i, %j] : memref<?x?xf32>\n"),
        box(f"{LOAD}{UPDATE}memref.store %v, %x[%i, %j] : memref<?x?xf32>\n"),
        box("%v = memref.load %s[%i] : memref<?xf32>\n" + UPDATE),  # what it reads changes
        box(f"{LOAD}%p = arith.remsi %j, %n : index\n" + UPDATE.replace("[%j]", "[%p]")),
        box(f"{LOAD}{UPDATE}{UPDATE.replace('%o', '%p').replace('%j', '%n')}\n"),
        SUM.replace("noalias = true", "noalias = false"),
    ],
    ids=["one element", "used", "store", "read", "shared elements", "elements", "overlap"],
)
def test_what_stays(text: str) -> None:
    function = parsed(text)
    assert serialize_reductions(function) is function
